"""A trained client as a classifier of scikit-learn, for whatever takes one: scorers, importances, pipelines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from fedbnn.deployment.trained_client import TrainedClient
from fedbnn.federation.inputs import Inputs
from fedbnn.federation.method import Variant
from fedbnn.models.label_prior import Prior
from fedbnn.models.regression import of_classes


class ClientClassifier(ClassifierMixin, TrainedClient):  # type: ignore[misc]  # scikit-learn has no types
    """What a client says of classes; attributes of `TrainedClient`, and one more.

    Attributes:
        prior: how likely each class is before its record is seen; None: as the variant takes it.

    """

    def __init__(
        self, run: Any, client: int | str = 0, variant: Variant | None = None, prior: Prior | None = None
    ) -> None:
        super().__init__(run, client, variant)
        self.prior = prior

    def predict_proba(self, X: Inputs) -> NDArray[np.float32]:
        """Class probabilities of records with values as in the run's files; images may come as flat rows."""
        said = self.loaded.predict(self.client, self._records(X), variant=self.variant, prior=self.prior)
        probs: NDArray[np.float32] = of_classes(said.prediction).probs.numpy()
        return probs

    def predict(self, X: Inputs) -> NDArray[np.str_]:
        """The most probable class of each record, by its name."""
        names: NDArray[np.str_] = self.classes_[self.predict_proba(X).argmax(1)]
        return names

    @property
    def classes_(self) -> NDArray[np.str_]:
        return np.array(self.loaded.class_names)
