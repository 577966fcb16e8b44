"""A trained client in scikit-learn's words, whatever it predicts: which one it is, and what it is asked with."""

from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator

from fedbnn.base.errors import UserError
from fedbnn.deployment.loaded import LoadedRun, load
from fedbnn.federation.inputs import Inputs
from fedbnn.federation.method import Variant


class TrainedClient(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What a client of a run folder says. It is trained: `fit` refuses.

    Attributes:
        run: the run folder; one that needs code of its own is loaded first and given as `fedbnn.load` returns it.
        client: the client's name or number.
        variant: which of its models, as in `LoadedRun.predict`; None: the one that the method is judged by.

    """

    def __init__(self, run: Any, client: int | str = 0, variant: Variant | None = None) -> None:
        self.run = run
        self.client = client
        self.variant = variant

    def fit(self, X: Inputs, y: Inputs) -> NoReturn:
        """Refuse: a client is trained in its federation, and a silent nothing would pass for training."""
        raise UserError(
            "this client was trained in its federation and is not fitted again; sklearn.frozen.FrozenEstimator keeps "
            "others from trying"
        )

    def _records(self, X: Inputs) -> Inputs:
        """Records with values as in the run's files; images may come as flat rows."""
        x = np.asarray(X) if not hasattr(X, "columns") else X
        shape = self.loaded.data.dataset.input_shape
        if len(shape) == 3 and x.ndim == 2:
            if x.shape[1] != self.n_features_in_:
                raise UserError(f"X: a record has {x.shape[1]} values, those of the run have {self.n_features_in_}")
            x = np.asarray(x, dtype=np.float32).reshape(-1, *shape)
        return x

    @property
    def n_features_in_(self) -> int:
        return int(np.prod(self.loaded.data.dataset.input_shape))

    @property
    def loaded(self) -> LoadedRun:
        """The run: loaded once, and again where `set_params` has named another folder."""
        kept: tuple[Any, LoadedRun] | None = getattr(self, "_kept", None)
        if kept is None or kept[0] is not self.run:
            kept = self.run, self.run if isinstance(self.run, LoadedRun) else load(self.run)
            self._kept = kept
        return kept[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True
