"""A trained client of a run folder as an estimator, without scikit-learn until one is asked for: it loads for long."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedbnn.deployment.estimated import check_wish
from fedbnn.deployment.loaded import LoadedRun, load
from fedbnn.federation.calibrated import Wish
from fedbnn.federation.method import Variant
from fedbnn.models.label_prior import Prior

if TYPE_CHECKING:
    from fedbnn.deployment.client_classifier import ClientClassifier
    from fedbnn.deployment.client_regressor import ClientRegressor


def estimator(
    run: str | Path | LoadedRun, client: int | str = 0, *, variant: Variant | None = None, prior: Prior | None = None
) -> "ClientClassifier | ClientRegressor":
    """A client of a run folder as a classifier or a regressor of scikit-learn, as its task is, trained already;
    arguments as in `LoadedRun.predict`.

    A run that needs code of its own is loaded first, and given as `fedbnn.load` returns it.
    """
    loaded = run if isinstance(run, LoadedRun) else load(run)
    if loaded.config.data.regression:
        from fedbnn.deployment.client_regressor import ClientRegressor  # noqa: PLC0415

        check_wish(Wish(), prior)
        made = ClientRegressor(run, client, variant)
    else:
        from fedbnn.deployment.client_classifier import ClientClassifier  # noqa: PLC0415

        made = ClientClassifier(run, client, variant, prior)
    made.loaded.index(client)  # what cannot be loaded is told now
    return made
