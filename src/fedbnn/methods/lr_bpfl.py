"""LR-BPFL (Zhang, Liu, Simeone, Wang, Pezaros, Zhu 2025): one network under personal low-rank Bayesian corrections.

Of every linear and convolution layer with weights W (outputs x inputs, a kernel's places being inputs), client i has

    W_i = W * (1 + U_i V_i^T),    U_i: outputs x rank,    V_i: inputs x rank,    * entry by entry,

W deterministic and the same for all, U_i and V_i its own, with a mean-field posterior q_i under the prior
N(0, prior_sd^2). A turn takes W from the server and goes by coordinates, each by Adam with one draw of U_i, V_i a step:

    q_i <- epochs on mean CE(y, f(x; W_i)) + kl_weight / n KL[q_i || prior], W fixed;
    W_i' <- epochs on mean CE(y, f(x; W_i)) over W and all other weights (biases, norms), q_i fixed.

It sends W_i' and keeps q_i; the server averages, W <- sum_i (n_i / sum n) W_i'. Corrections come first: W would
otherwise learn at each client what is that client's alone, and averaging would undo it. The mask multiplies, as in
rank-1 Bayesian networks and in the paper; written as 1 + U V^T it is 1 at the prior's mean, where a client without
evidence is the shared network. U begins at mean zero, so nobody is corrected at first, and V at a draw from the prior,
since with both at zero neither would have a gradient.

Scored are the newest W under the client's own correction (personal) and W alone (global). Unlike the paper, the rank is
a setting, where the paper's clients choose theirs by gates on the columns; both coordinates share the round's local
epochs; and the KL is tempered as in the other Bayesian methods: with kl_weight = 1 it is the plain ELBO.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.bayesian import BayesianTraining, Posterior
from fedbnn.methods.fedrep import split
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Anchor, Gaussian, average, fit, weight_draws
from fedbnn.models.low_rank import Corrected
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import Answer, mixture_over
from fedbnn.models.training import fit_point

_ENDLESS = 2**62  # draws, as many as there are steps


@lru_cache(maxsize=4)
def _scratch(
    model: str, shape: tuple[int, ...], outputs: int, rank: int, seed: int, device: torch.device
) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: Corrected(build(settings, shape, outputs), rank), Stream((seed, "scratch")).seed, device)


@settings
class LRBPFL(BayesianTraining, Averaging[Posterior]):
    """Personal low-rank posteriors on top of an averaged network."""

    name = "lr_bpfl"
    summary = "an averaged network under personal low-rank Bayesian corrections of its layers"
    client_state = Posterior
    regression = True

    prior_sd: float = with_default(BayesianTraining, "prior_sd", 0.5)
    initial_rho: float = with_default(BayesianTraining, "initial_rho", -4.0)
    rank: int = Field(default=2, ge=1, description="rank of each layer's correction: columns of U and of V")
    correction_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="share of a round's local epochs that trains the correction, before the shared network; each has "
        "at least one",
    )

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        if not self.network(client).module.names:
            raise UserError(
                f"method '{self.name}' corrects linear and convolution layers that are trained, and model "
                f"'{client.model.name}' has none"
            )

    def network(self, client: Client) -> FlatNetwork:
        """The client's architecture with corrections: scratch space, and never the same as without."""
        model, shape = json.dumps(asdict(client.model)), tuple(client.train.x.shape[1:])
        return _scratch(model, shape, client.outputs, self.rank, client.seed, client.device)

    def client_init(self, client: Client) -> Posterior:
        network = self.network(client)
        mean = torch.zeros(network.size)
        right = network.span("right")
        mean[right].normal_(std=self.prior_sd, generator=Stream((client.seed, "correction", client.index)).torch())
        q = Gaussian.around(mean.to(client.device), self.initial_rho)
        return Posterior(_over(client.initial_weights(), q).theta)

    def client_update(
        self, state: Posterior, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Posterior]:
        network, w = self.network(client), message.arrays["weights"]
        size, prior = len(w), Gaussian.isotropic(network.size, self.prior_sd, client.device)
        of_correction, of_shared = split(client.training.passes(round_number), 1 - self.correction_share)
        q, loss = fit(
            network,
            _over(w, state.q),
            local_batches(client, of_correction, rng.child("correction")),
            learning_rate=self.learning_rate,
            generator=rng.child("weights").torch(),
            anchor=Anchor(prior, self.kl_weight / len(client.train)),
        )
        draws = weight_draws(Gaussian(torch.cat([q.mean[size:], q.rho[size:]])), _ENDLESS, rng.child("draws").torch())

        def corrected_anew(weights: Tensor) -> None:
            weights[size:] = next(draws)

        shared, shared_loss = fit_point(
            network,
            torch.cat([w, next(draws)]),
            local_batches(client, of_shared, rng.child("shared")),
            learning_rate=self.learning_rate,
            weight_decay=0.0,
            part=slice(0, size),
            visit=corrected_anew,
        )
        sent = shared[:size].clone()
        info = {"loss": loss, "shared_loss": shared_loss, "drift": float((sent - w).norm())}
        return Update(Posterior(_over(sent, q).theta), self.upload(sent, client), info)

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Answer:
        draws = weight_draws(state.q, self.mc_samples, rng.child("predict").torch())
        return (mixture_over if client.regression else average)(self.network(client), draws, x)

    def scored(self, state: Posterior, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Posterior]:
        w = message.arrays["weights"]
        alone = torch.cat([w, torch.zeros_like(state.q.mean[len(w) :])])
        known = Gaussian.around(alone, 0.0).known_at(torch.ones(len(alone), dtype=torch.bool))
        return {"personal": Posterior(_over(w, state.q).theta), "global": Posterior(known.theta)}


def _over(shared: Tensor, q: Gaussian) -> Gaussian:
    """The corrections of q over these shared weights, which have no spread."""
    moved = Gaussian(torch.cat([shared, q.mean[len(shared) :], q.rho]))
    return moved.known_at(torch.arange(len(q.mean)) < len(shared))
