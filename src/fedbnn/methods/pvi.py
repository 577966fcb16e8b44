"""PVI (Bui, Nguyen, Swaroop, Turner 2018; Ashman et al. 2022): partitioned variational inference, in parallel.

The joint posterior is the prior times one factor of each client, q(w) = p(w) prod_i t_i(w), all mean-field Gaussians.
Gaussians are multiplied by adding their precision and their shift = precision * mean. In a round client i

    takes its own factor out,     cavity = q / t_i
    fits q_i by Bayes by Backprop with the cavity as its prior,    CE(records) + kl_weight KL[q_i || cavity]
    makes a damped change,        t_i <- t_i (q_i / q)^damping

and sends the change, by which the server multiplies q. Factors are kept at the clients; the server tells a client how
many of its changes it has taken in, so that one that got lost on the way is not held for a part of q.

At damping 1/N the server's q is the geometric mean of the q_i, a Gaussian whatever they are; with more it may happen
that a weight's precision would not be positive: then its Gaussian stays what it was. A cavity's precision has a floor.
The prior is N(w_0, prior_sd^2) around common first weights, since no network learns from weights that are all zero, and
local fits begin at q's means with standard deviations of softplus(initial_rho) at most. Scored are q (global) and a
client's q_i (fine-tuned), by averaging over draws. The KL is tempered as in the other Bayesian methods: with
kl_weight = 1 it is the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import ABSURD, MOST_SENT, Message, Numbers, UploadSpec
from fedbnn.federation.method import Method, State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import refuse_mixed
from fedbnn.methods.bayesian import BayesianTraining
from fedbnn.models.bayes import Gaussian
from fedbnn.models.regression import Answer

LEAST_SD = 2e-3  # of a weight in a local fit: its precision must fit into a message
FLOOR = 1e-3  # of a precision, as a share of the prior's


@dataclass(frozen=True)
class Factor(State):
    """A client's factor as the server knows it, the change it sent after that, and its own fit, theta = [mu | rho]."""

    precision: Tensor
    shift: Tensor
    sent_precision: Tensor
    sent_shift: Tensor
    taken: Tensor  # how many of its changes are in the factor
    theta: Tensor


@dataclass(frozen=True)
class Joint(State):
    """The server's posterior, and how many changes of each client are in it."""

    mean: Tensor
    precision: Tensor
    taken: Tensor


def gaussian(mean: Tensor, precision: Tensor) -> Gaussian:
    """N(mean, 1 / precision)."""
    sd = precision.rsqrt()
    return Gaussian(torch.cat([mean, sd + torch.log(-torch.expm1(-sd))]))


def cavity(mean: Tensor, precision: Tensor, factor: tuple[Tensor, Tensor], floor: float) -> tuple[Tensor, Tensor]:
    """Mean and precision of N(mean, 1 / precision) without a factor of this precision and shift.

    Where that leaves less precision than the floor, the mean stays and the precision is the floor.
    """
    left = precision - factor[0]
    known = left >= floor
    left = left.clamp_min(floor)
    # So written it is exactly the mean where the factor is none: Adam would make full steps of what rounding leaves.
    return torch.where(known, mean + (factor[0] * mean - factor[1]) / left, mean), left


@settings
class PVI(BayesianTraining, Method[Factor, Joint]):
    """A posterior that is the product of the prior and a factor of each client."""

    name = "pvi"
    summary = "partitioned variational inference: a posterior as a product of the clients' factors"
    client_state = Factor
    server_state = Joint
    one_architecture = True
    regression = True

    # Fits that begin at tiny standard deviations end at them: factors would be sure of what no record has said.
    initial_rho: float = with_default(BayesianTraining, "initial_rho", -3.0)
    damping: float = Field(
        default=0.0, ge=0, le=1, description="power of a change of factor; 0: one over the number of clients"
    )

    @property
    def floor(self) -> float:
        return FLOOR / self.prior_sd**2

    def client_init(self, client: Client) -> Factor:
        weights = client.initial_weights()
        nothing = [torch.zeros_like(weights) for _ in range(4)]  # a saved state's tensors share no memory
        never = torch.zeros(1, device=weights.device)
        return Factor(nothing[0], nothing[1], nothing[2], nothing[3], never, self.initial_posterior(client).theta)

    def client_update(
        self, state: Factor, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Factor]:
        mean, precision, taken = (message.arrays[name] for name in ("mean", "precision", "taken"))
        precision = precision.clamp_min(self.floor)
        heard = 1.0 if bool(taken > state.taken + 0.5) else 0.0
        factor = state.precision + heard * state.sent_precision, state.shift + heard * state.sent_shift
        prior = gaussian(*cavity(mean, precision, factor, self.floor))
        start = gaussian(mean, precision)
        start = Gaussian(torch.cat([mean, start.rho.clamp_max(self.initial_rho)]))
        q, loss = self.train(start, prior, client, client.training.passes(round_number), rng)
        q = q.with_sd_at_least(LEAST_SD)
        power, found = self.damping or 1 / client.clients, q.sd.square().reciprocal()
        change = power * (found - precision), power * (found * q.mean - precision * mean)
        new = Factor(*factor, *change, taken.clone(), q.theta)
        return Update(new, Message({"precision": change[0], "shift": change[1]}), {"loss": loss})

    def predict(self, state: Factor, client: Client, x: Tensor, rng: Stream) -> Answer:
        return self.outputs(Gaussian(state.theta), client, x, rng)

    def scored(self, state: Factor, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Factor]:
        q = gaussian(message.arrays["mean"], message.arrays["precision"].clamp_min(self.floor))
        return {"global": replace(state, theta=q.theta), "fine_tuned": state}

    def server_init(self, roster: Roster) -> Joint:
        refuse_mixed(roster, self.name)
        mean = roster.initial_weights(0)
        return Joint(mean, torch.full_like(mean, self.prior_sd**-2), torch.zeros(roster.clients))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        form = Numbers((roster.network(client).size,), -MOST_SENT, MOST_SENT)
        return {"precision": form, "shift": form}

    def server_update(self, state: Joint, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Joint:
        precision, shift = state.precision.double(), state.precision.double() * state.mean.double()
        taken = state.taken.clone()
        for client, reply in replies.items():
            precision = precision + reply.arrays["precision"]
            shift = shift + reply.arrays["shift"]
            taken[client] += 1
        mean = shift / precision
        proper = (precision >= self.floor) & (precision <= MOST_SENT) & (mean.abs() <= ABSURD)
        return Joint(
            torch.where(proper, mean.float(), state.mean),
            torch.where(proper, precision.float(), state.precision),
            taken,
        )

    def broadcast(self, state: Joint, client: int) -> Message:
        taken = state.taken[client : client + 1]
        return Message({"mean": state.mean, "precision": state.precision, "taken": taken})
