"""A prior over weights that is chosen by what its networks *output*: the function-space prior of FedBNN.

psi* = argmin_psi  E_{w ~ p(. ; psi)}  CE(softmax(target), f(AD; w))        (Makhija, Ghosh, Ho 2023, Eq. for psi)

In regression the target is a Gaussian at each point, and CE that of Gaussians (`fedbnn.models.regression.measured`).

The peers' consensus on the alignment set (AD) is thereby turned into a prior over the weights of whatever network
a client happens to have.
"""

import torch

from fedbnn.models.augmentation import Augment
from fedbnn.models.bayes.fit import fit
from fedbnn.models.bayes.gaussian import Gaussian
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, steps


def tune_prior(
    network: FlatNetwork,
    start: Gaussian,
    taught: Records,
    *,
    count: int,
    batch_size: int,
    learning_rate: float,
    order: torch.Generator,
    noise: torch.Generator,
    augment: Augment = "none",
    rest_rate: float = 0.0,
) -> tuple[Gaussian, float]:
    """`count` Adam steps on psi from `start` towards what is taught: the alignment set with its targets."""
    batches = steps(taught, count, batch_size, order, augment)
    return fit(network, start, batches, learning_rate=learning_rate, generator=noise, rest_rate=rest_rate)
