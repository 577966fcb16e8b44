"""FedBNN: one posterior a client, of any architecture, that answers two questions.

Beyond the method as published (`fedbnn.methods.fedbnn_paper`):

- A client learns the *general* conditional p(y | x), in which no class is special. Its own records come with their own
  label prior s, so their likelihood is that of softmax(f(x) + log(classes s)): what a client never saw it does not
  unlearn. A prediction is then asked with a label prior: `personal` with s, `general` with every class alike.
- A Bayesian head on public features speaks for the client and predicts beside its network (`fedbnn.methods.head`).
  Together the heads find, by outputs on the alignment set alone, what one head fitted to all records would say.
- Local training rehearses the consensus: each minibatch of own records is joined by one of alignment points
  (`fedbnn.methods.rehearsal`), a prior on outputs, where the Gaussian psi is one on weights only.
- Heads speak in every round, networks learn in some: they have no part in what is said.
- Inputs unlike the alignment set are met with doubt, whatever network and head say of them.

In regression no class is special, and there is one question; the head is `fedbnn.methods.regression_head`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.bayesian import BayesianTraining, Posterior
from fedbnn.methods.consensus import Rule, target_of
from fedbnn.methods.exchange import Exchange, ExchangeState
from fedbnn.methods.fedbnn_paper import FunctionSpacePrior
from fedbnn.methods.head import GRIP, IMAGE_SD, TABLE_SD, Head, own_offset
from fedbnn.methods.mechanisms import mechanism_of
from fedbnn.methods.regression_head import SD, RegressionHead
from fedbnn.methods.rehearsal import Rehearsal
from fedbnn.models.bayes import Gaussian, Prediction, entropy, kl_divergence
from fedbnn.models.label_prior import uniform
from fedbnn.models.regression import Answer, Mixture
from fedbnn.privacy import PrivacySettings

Share = Annotated[float, Field(ge=0, le=2)] | Literal["auto"]

HEAD_DRAWS = 20  # at least, as they cost little; draws of the network are repeated beside them
IMAGE_WEIGHTS, TABLE_WEIGHTS = (1.1, 0.3), (0.5, 1.0)  # of head and network; validation records of CIFAR-10 and `heart`
REGRESSION_WEIGHTS = (0.5, 0.5)
_IMPOSSIBLE = 1e-6  # the least probability of a network whose logarithm is taken


@dataclass(frozen=True)
class FedBNNState(ExchangeState, Posterior):
    """A client's posterior over its network's weights, and what it sent last.

    The head follows from the newest consensus: it is worked out when questions are asked, and not kept.
    """

    sent: Tensor | None = None  # points x classes
    head: Tensor | None = None  # (features + 1) x classes, in double precision
    behind: Tensor | None = None  # how many records the consensus stood for that it has seen


@settings
class FedBNN(FunctionSpacePrior, BayesianTraining, Exchange[FedBNNState]):
    """Bayesian networks and heads on public features, joined by a prior in function space."""

    name = "fedbnn"
    partly_bayesian = True
    summary = "Bayesian networks of any architecture and heads on public features, joined in function space"
    client_state = FedBNNState

    head: bool = Field(
        default=True,
        description="a Bayesian softmax head on public features speaks for the client and predicts beside its network; "
        "without it networks speak by themselves, as `consensus` says",
    )
    head_sd: float = Field(
        default=0.0,
        ge=0,
        description="standard deviation of the head's logits under its prior; 0: 3.5 for images, whose labels are "
        "hardly ever wrong, 0.3 for tables, and 0.7 of the target's scale in regression",
    )
    trust: float = Field(
        default=0.2, gt=0, description="precision that one record of the federation brings to what the head says"
    )
    grip: float = Field(
        default=GRIP,
        gt=0,
        description="how firmly speaking heads are held to the consensus, in records, the same at all clients: heads "
        "agree in the end whatever it is, those of a few records sooner with less",
    )
    head_weight: Share = Field(
        default="auto",
        description="of the head's logits in those of a prediction, from 0 to 2; auto: 1.1 for images, where a penalty "
        "holds them back, and 0.5 for tables; in regression, where both are joined by precision, only the ratio of "
        "both weights counts",
    )
    network_weight: Share = Field(
        default="auto",
        description="of the network's logits there, from 0 to 2; both know the same records, and together they know "
        "more than one, but not twice as much; auto: 0.3 for images, or the nearer to 1 the further a client's own "
        "records are from the alignment set, and 1 for tables",
    )
    network_every: int = Field(
        default=4,
        ge=1,
        description="rounds from one training of a client's network to the next, counted back from the last round; "
        "heads speak in every round, and networks have no part in what they say",
    )
    rehearsal: float = Field(
        default=1.0,
        ge=0,
        description="weight of the consensus in local training itself, where each minibatch of own records is joined "
        "by one of alignment points; 0 leaves all to what the consensus has taught before",
    )

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        if client.regression and self.head and sum(self.weights(client)) == 0:
            raise UserError(
                f"methods.{self.name}.head_weight = network_weight = 0: one of them must be above 0 in regression"
            )
        if self.head and client.privacy.features == "scattering" and not _images(client):
            raise UserError(
                f"method '{self.name}' uses public features: privacy.features = 'scattering' needs images, the "
                f"records are {tuple(client.alignment.shape[1:])}; set privacy.features to auto"
            )

    @property
    def adds_up(self) -> bool:
        return self.head

    def rule(self, privacy: PrivacySettings) -> Rule:
        return mechanism_of(privacy).rule or ("mean_logits" if self.head else self.consensus)

    def client_init(self, client: Client) -> FedBNNState:
        return FedBNNState(self.initial_posterior(client).theta)

    def client_update(
        self, state: FedBNNState, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[FedBNNState]:
        if self.exchange_of(client, message) > 0:
            return self.replied(state, client, message, round_number, partial(self.phi, state, client, rng), {})
        info: dict[str, float] = {}
        told, asked = self.told(client, message), self.asked(client, message)
        if self.network_learns(client, round_number):
            state, info = self.learned(state, told, message, round_number, rng)
        if self.head and not client.privacy.on:
            head = self.regression_head(client) if client.regression else self.head_of(client)
            sent = head.speak(message.get("phi_bar"), state.sent)
            state = replace(state, sent=sent.to(client.device))
        phi = partial(self.phi, state, asked, rng.child("upload"))
        return self.replied(state, client, message, round_number, phi, info)

    def network_learns(self, client: Client, round_number: int) -> bool:
        """In the warm-up, in the last round, and in some between; in every round if others hear the network."""
        heard = mechanism_of(client.privacy).asks_outputs if client.privacy.on else not self.head
        return heard or round_number == 0 or (client.rounds - round_number) % self.network_every == 0

    def replanned(self, before: int, now: int) -> str:
        """Networks learn in the last round and in every so many before it: these must be the same ones."""
        if self.head and (now - before) % self.network_every:
            return f"methods.{self.name}.network_every = {self.network_every}: add a multiple of so many rounds"
        return ""

    def learned(
        self, state: FedBNNState, client: Client, message: Message, round_number: int, rng: Stream
    ) -> tuple[FedBNNState, dict[str, float]]:
        """The state after the network has learned from the consensus and the client's own records."""
        q, prior, info = state.q, self.alone_prior(client), {}
        target = self.target(message, client, partial(self.phi, state, client, rng.child("own")))
        rehearsal = None
        if target is not None:
            psi, info["prior_loss"] = self.tune_prior(q, target, client, rng)
            prior, q = psi.with_sd_at_least(self.prior_sd_floor), Gaussian(torch.cat([psi.mean, q.rho]))
            if self.rehearsal > 0:
                rehearsal = Rehearsal(client.taught(target), self.rehearsal)
        offset = None if client.regression else own_offset(client).float().to(client.device)
        passes = client.training.passes(round_number)
        q, info["loss"] = self.train(q, prior, client, passes, rng, rehearsal, offset)
        info |= {"kl": float(kl_divergence(q, prior)), "mean_sd": float(q.sd.mean())}
        return replace(state, theta=q.theta), info

    def target(self, message: Message, client: Client, own: Callable[[], Answer]) -> Tensor | None:
        consensus = message.get("phi_bar")
        if self.head and consensus is not None:  # the client's own opinion is in it already
            if client.regression:
                return consensus
            return target_of(consensus, consensus, 1.0, self.rule(client.privacy))
        return super().target(message, client, own)

    def phi(self, state: FedBNNState, client: Client, rng: Stream) -> Answer:
        """What speaks for the client on the alignment set: its head, or else its network."""
        if state.sent is not None and client.regression:
            mean, log_variance = state.sent.unbind(1)
            return Mixture(mean[None], log_variance.exp()[None])
        if state.sent is not None:
            probs = state.sent.softmax(1)
            return replace(Prediction.of(probs, entropy(probs)), logits=state.sent)
        return self.outputs(state.q, client, client.alignment, rng)

    def head_of(self, client: Client) -> Head:
        return Head.of(client, self.head_sd or (IMAGE_SD if _images(client) else TABLE_SD), self.trust, self.grip)

    def regression_head(self, client: Client) -> RegressionHead:
        return RegressionHead.of(client, self.head_sd or SD, self.trust, self.grip)

    def weights(self, client: Client) -> tuple[float, float]:
        """Of the head's logits, and of the network's; in regression of their Gaussians."""
        by_kind = REGRESSION_WEIGHTS if client.regression else IMAGE_WEIGHTS if _images(client) else TABLE_WEIGHTS
        given = (self.head_weight, self.network_weight)
        of_head, of_network = (kind if one == "auto" else one for one, kind in zip(given, by_kind, strict=True))
        if self.network_weight == "auto" and of_network < 1 and not client.regression:
            told = 1 / self.head_of(client).apart  # the less the alignment set tells of own records, the more
            of_network += (1 - of_network) * (1 - told)
        return of_head, of_network

    def with_head(self, state: FedBNNState, client: Client, message: Message) -> FedBNNState:
        """The state with the head that follows from this message."""
        if not self.head:
            return state
        if client.regression:
            return self._with_regression_head(state, client, message.get("phi_bar"))
        head, consensus = self.head_of(client), message.get("phi_bar")
        if consensus is None:
            records, weights = 0.0, head.fit(None)
        elif self.rule(client.privacy) == "mean_logits":
            records, weights = head.records, head.fit(consensus)
        else:
            records, weights = head.noisy_records, head.fit_to(consensus.clamp_min(0))
        return replace(state, head=weights, behind=torch.tensor([records], dtype=torch.float64))

    def _with_regression_head(self, state: FedBNNState, client: Client, consensus: Tensor | None) -> FedBNNState:
        head = self.regression_head(client)
        behind = [0.0 if consensus is None else head.records, head.noise_with(consensus)]
        return replace(state, head=head.fit(consensus), behind=torch.tensor(behind, dtype=torch.float64))

    def scored(
        self, state: FedBNNState, client: Client, message: Message, rng: Stream
    ) -> Mapping[Variant, FedBNNState]:
        """Both questions, to the network as it is and the head as the newest consensus makes it."""
        newest = self.with_head(state, client, message)
        if client.regression:  # where no class is rarer than another
            return {"personal": newest}
        return {"personal": newest, "general": newest}

    def trained_prior(self, variant: Variant, client: Client) -> Tensor:
        return uniform(client.classes)

    def asked_prior(self, variant: Variant, client: Client) -> Tensor | None:
        return client.own_shares if variant == "personal" else uniform(client.classes)

    def predict(self, state: FedBNNState, client: Client, x: Tensor, rng: Stream) -> Answer:
        if state.head is None or state.behind is None:
            return self.outputs(state.q, client, x, rng)
        if client.regression:
            return self._estimate(state, client, x, rng)
        head, repeated = self.head_of(client), -(-HEAD_DRAWS // self.mc_samples)
        count = repeated * self.mc_samples
        said = head.draws(state.head, float(state.behind), x, count, rng) + head.beyond(x, count, rng)
        of_head, of_network = self.weights(client)
        said = of_head * said
        if of_network > 0:
            answer = self.outputs(state.q, client, x, rng)
            assert isinstance(answer, Prediction)
            network = answer.draws.cpu().double()
            logs = network.clamp_min(_IMPOSSIBLE).log().repeat(repeated, 1, 1)
            said = said + of_network * logs
        return Prediction.from_draws(said.softmax(2).float().to(x.device))

    def _estimate(self, state: FedBNNState, client: Client, x: Tensor, rng: Stream) -> Mixture:
        """Draw by draw, head and network joined by precision; their weights count by their ratio."""
        assert state.head is not None
        assert state.behind is not None
        repeated = -(-HEAD_DRAWS // self.mc_samples)
        records, noise = state.behind.tolist()
        head = self.regression_head(client)
        said = head.posterior(state.head, records, noise, x, repeated * self.mc_samples, rng)
        of_head, of_network = self.weights(client)
        precision, mean = torch.full_like(said, of_head / noise), said * (of_head / noise)
        if of_network > 0:
            network = self.outputs(state.q, client, x, rng)
            assert isinstance(network, Mixture)
            sure = of_network / network.variances.cpu().double().repeat(repeated, 1)
            precision, mean = precision + sure, mean + sure * network.means.cpu().double().repeat(repeated, 1)
        joined = Mixture(mean / precision, (of_head + of_network) / precision)
        return Mixture(joined.means.float(), joined.variances.float()).to(x.device)


def _images(client: Client) -> bool:
    return client.alignment.dim() == 4 or bool(client.model.body)
