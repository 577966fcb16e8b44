"""A trained client as a classifier of scikit-learn, for whatever takes one: scorers, importances, pipelines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from fedbnn.base.errors import UserError
from fedbnn.deployment.loaded import LoadedRun, load
from fedbnn.federation.inputs import Inputs
from fedbnn.federation.method import Variant
from fedbnn.models.label_prior import Prior
from fedbnn.models.regression import of_classes


class ClientClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What a client of a run folder says, in scikit-learn's words. It is trained: `fit` refuses.

    Attributes:
        run: the run folder; one that needs code of its own is loaded first and given as `fedbnn.load` returns it.
        client: the client's name or number.
        variant: which of its models, as in `LoadedRun.predict`; None: the one that the method is judged by.
        prior: how likely each class is before its record is seen; None: as the variant takes it.

    """

    def __init__(
        self, run: Any, client: int | str = 0, variant: Variant | None = None, prior: Prior | None = None
    ) -> None:
        self.run = run
        self.client = client
        self.variant = variant
        self.prior = prior

    def fit(self, X: Inputs, y: Inputs) -> "ClientClassifier":
        """Refuse: a client is trained in its federation, and a silent nothing would pass for training."""
        raise UserError(
            "this classifier was trained in its federation and is not fitted again; sklearn.frozen.FrozenEstimator "
            "keeps others from trying"
        )

    def predict_proba(self, X: Inputs) -> NDArray[np.float32]:
        """Class probabilities of records with values as in the run's files; images may come as flat rows."""
        x = np.asarray(X) if not hasattr(X, "columns") else X
        shape = self.loaded.data.dataset.input_shape
        if len(shape) == 3 and x.ndim == 2:
            if x.shape[1] != self.n_features_in_:
                raise UserError(f"X: a record has {x.shape[1]} values, those of the run have {self.n_features_in_}")
            x = np.asarray(x, dtype=np.float32).reshape(-1, *shape)
        found = of_classes(self.loaded.predict(self.client, x, variant=self.variant, prior=self.prior).prediction)
        probs: NDArray[np.float32] = found.probs.numpy()
        return probs

    def predict(self, X: Inputs) -> NDArray[np.str_]:
        """The most probable class of each record, by its name."""
        names: NDArray[np.str_] = self.classes_[self.predict_proba(X).argmax(1)]
        return names

    @property
    def classes_(self) -> NDArray[np.str_]:
        return np.array(self.loaded.class_names)

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
