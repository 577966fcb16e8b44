"""A trained client of a run folder as a classifier, without scikit-learn until one is asked for: it loads for long."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedbnn.base.errors import UserError
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.federation.method import Variant
from fedbnn.models.label_prior import Prior

if TYPE_CHECKING:
    from fedbnn.deployment.client_classifier import ClientClassifier


def estimator(
    run: str | Path | LoadedRun, client: int | str = 0, *, variant: Variant | None = None, prior: Prior | None = None
) -> "ClientClassifier":
    """A client of a run folder as a classifier of scikit-learn, trained already; arguments as in `LoadedRun.predict`.

    A run that needs code of its own is loaded first, and given as `fedbnn.load` returns it.
    """
    from fedbnn.deployment.client_classifier import ClientClassifier  # noqa: PLC0415

    made = ClientClassifier(run, client, variant, prior)
    made.loaded.index(client)  # what cannot be loaded is told now
    if made.loaded.config.data.regression:
        raise UserError(f"{made.loaded.path}: an estimator of scikit-learn is for classification, this is regression")
    return made
