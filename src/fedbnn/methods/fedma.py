"""FedMA (Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni 2020), after PFNM (Yurochkin et al. 2019): matched averaging.

A hidden layer's neurons (of a convolution, its channels) may stand in any order without a change of the network, so the
neurons that are averaged should be those that mean the same. Layer by layer from the input, with pi the order that was
found for the layer before, client i's neuron j is the vector

    w_ij = [weights on the inputs, these in the order pi, and the bias],

and the layer's order is the assignment, one to one, of client's neurons to the server's that is least in total:

    pi = argmin over permutations of sum_g ||theta_g - w_i,pi(g)||^2      (the Hungarian algorithm)

with theta_g the server's neurons at the round's start, and in further sweeps those of the average so far. The last
layer's outputs are classes and stay. What clients sent is averaged in these orders, w <- sum_i (n_i / sum n) w_i. Where
no order is better than the own it is FedAvg.

Clients take the server's weights, train them on their own records, and send them back; with common_start = false each
begins the warm-up at first weights of its own, as if it had trained alone before. Many networks that begin apart have
few neurons in common, and their average is small and has rounds of training before it. Scored are the server's model
(global) and the client's after local training (fine-tuned). Unlike both papers, the network keeps its size: there, a
neuron that is far from all others becomes a new one of the server's at a cost, so that networks grow, but here all
clients run the one architecture that was agreed on. With it goes their prior over neurons, so distances are plain ones.
And all layers are matched in one exchange; FedMA's clients train what is above a layer once more before the next layer
is matched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global, SharedPoint
from fedbnn.methods.point import Point
from fedbnn.models.network import view_of

# Between layers, what treats every neuron alike and keeps it apart from the others. A layer's outputs, flattened, are
# each channel's places one after the other.
_ACTIVATIONS = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout)
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


@dataclass(frozen=True)
class Layer:
    """Where a layer's weights and bias lie in a flat vector."""

    shape: torch.Size
    weight: int
    bias: int | None

    def weights_in(self, vector: Tensor) -> Tensor:
        return view_of(vector, self.weight, self.shape)

    def bias_in(self, vector: Tensor) -> Tensor | None:
        return None if self.bias is None else vector[self.bias : self.bias + self.shape[0]]

    def neurons(self, vector: Tensor) -> Tensor:
        """Each neuron's weights and bias, neurons x numbers."""
        bias, weights = self.bias_in(vector), self.weights_in(vector).flatten(1)
        return weights if bias is None else torch.cat([weights, bias[:, None]], 1)


def layers_of(roster: Roster) -> list[Layer]:
    """The layers of the roster's network, if they stand one after the other; a UserError for any other."""
    network, model, found = roster.network(0), roster.models[0].name, list[Layer]()
    flat = roster.alignment.dim() == 2  # whether what the next layer sees is a row of numbers
    for name, layer in _in_order(network.module):
        convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1
        if convolution or (isinstance(layer, nn.Linear) and flat):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            prefix = f"{name}." if name else ""
            weight, bias = network.spans.get(f"{prefix}weight"), network.spans.get(f"{prefix}bias")
            if weight is None or (bias is None and layer.bias is not None):
                raise UserError(f"method 'fedma' matches neurons of all layers, but '{model}' does not train '{name}'")
            found.append(Layer(layer.weight.shape, weight.start, None if bias is None else bias.start))
        elif not isinstance(layer, (nn.Flatten, *_ACTIVATIONS, *_POOLING)):
            raise UserError(
                "method 'fedma' matches neurons of convolution layers, then nn.Flatten, then linear layers, in one "
                f"nn.Sequential with pooling, activations, dropout: model '{model}' has a {type(layer).__name__} there"
            )
        flat = not convolution and (flat or (isinstance(layer, nn.Flatten) and layer.start_dim == 1))
    return found


def _in_order(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for key, child in module._modules.items():  # also one that is there twice
        assert child is not None
        yield from _in_order(child, f"{name}.{key}" if name else key)


def matched(weights: Tensor, reference: Tensor, layers: list[Layer]) -> Tensor:
    """The same network with its neurons in the order of those of the reference that they are nearest to."""
    found, order = weights.clone(), None
    for number, layer in enumerate(layers):
        own = layer.weights_in(found)
        if order is not None:
            own.copy_(own.reshape(len(own), len(order), -1)[:, order].reshape(own.shape))
        if number == len(layers) - 1:
            break
        neurons, wanted = (layer.neurons(one).cpu().double() for one in (found, reference))
        # ||a - b||^2 without ||a||^2 and ||b||^2, which all assignments have in common.
        order = torch.from_numpy(linear_sum_assignment(-(wanted @ neurons.T).numpy())[1]).to(found.device)
        own.copy_(own[order])
        bias = layer.bias_in(found)
        if bias is not None:
            bias.copy_(bias[order])
    return found


@settings
class FedMA(SharedPoint, Averaging[Point]):
    """Averaging of neurons that mean the same."""

    name = "fedma"
    summary = "FedAvg of networks whose neurons are first matched, layer by layer"
    regression = True

    sweeps: int = Field(
        default=1, ge=1, description="how often clients are matched in a round, after the first time to their average"
    )
    common_start: bool = Field(
        default=True, description="whether all begin the warm-up at the server's weights, or each at weights of its own"
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        alone = round_number == 0 and not self.common_start
        heard = Message({"weights": state.weights}) if alone else message
        return super().client_update(state, client, heard, round_number, rng)

    def server_init(self, roster: Roster) -> Global:
        state = super().server_init(roster)
        layers_of(roster)
        return state

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        layers = layers_of(roster)
        for _ in range(self.sweeps):
            aligned = {
                client: Message({**reply.arrays, "weights": matched(reply.arrays["weights"], state.weights, layers)})
                for client, reply in replies.items()
            }
            state = super().server_update(state, aligned, roster, rng)
        return state
