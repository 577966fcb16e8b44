"""A trained client as a regressor of scikit-learn, for whatever takes one: scorers, importances, pipelines."""

from typing import Literal, overload

from sklearn.base import RegressorMixin

from fedbnn.deployment.trained_client import TrainedClient
from fedbnn.federation.inputs import Inputs
from fedbnn.models.conformal import Floats
from fedbnn.models.regression import of_numbers


class ClientRegressor(RegressorMixin, TrainedClient):  # type: ignore[misc]  # scikit-learn has no types
    """What a client says of a real number, in the target's own unit."""

    @overload
    def predict(self, X: Inputs, return_std: Literal[False] = False) -> Floats: ...
    @overload
    def predict(self, X: Inputs, return_std: Literal[True]) -> tuple[Floats, Floats]: ...
    def predict(self, X: Inputs, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of each record with values as in the run's files, and with `return_std` the standard deviation, of
        noise and doubt together, as scikit-learn's GaussianProcessRegressor has it; images may come as flat rows.
        """
        said = of_numbers(self.loaded.predict(self.client, self._records(X), variant=self.variant).prediction)
        mean: Floats = said.mean.double().numpy()
        return (mean, said.sd.double().numpy()) if return_std else mean
