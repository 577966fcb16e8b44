"""beta-PredBayes (Hasan, Zhang, Guo, Chen, Poupart 2024): predictive distributions joined between product and mixture.

Client i samples its posterior once, by SGLD (`fedbnn.models.langevin`) from the student it is sent, and sends S samples
w_i1..w_iS. The server joins what they say of a point, and distils that into one student per architecture:

    p_i(y | x) = 1/S sum_s softmax f(x; w_is)
    product(y | x) ~ prod_i p_i(y | x),      mixture(y | x) = 1/N sum_i p_i(y | x)
    target(y | x) ~ product(y | x)^beta mixture(y | x)^(1 - beta)
    student = argmin KL[target || softmax f] over AD, from the mean of its clients' samples, by records

The product is the Bayesian committee machine under a uniform prior over classes: exact where what clients know is
independent, and too sure of itself otherwise. The mixture (beta = 0) is too little sure. The paper learns beta by the
likelihood of labelled records at its server, which ours does not have: its alignment set AD stands for the paper's
public records without their labels. So beta is a setting, 0.5 as what the authors' code starts from, and is chosen like
all settings by scores on clients' own validation records (`fedbnn tune`), of which the server sees nothing.

In the paper there is one round. Here that is the warm-up with its distillation; every further round is the same once
more, its chains beginning at the student. The paper's chains are cyclical SGHMC; our S samples are evenly spaced over
the last steps of one chain of SGLD. Students are kept as in FedDF, and so may have different architectures. Scored are
the student (global) and a client's own samples together (fine-tuned).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method, State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import count
from fedbnn.methods.feddf import Distilling, Students
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.bayes import logits_of
from fedbnn.models.langevin import Langevin
from fedbnn.models.regression import Answer

_IMPOSSIBLE = 1e-30  # the probability whose logarithm stands for a class that no sample thinks possible


@dataclass(frozen=True)
class Samples(State):
    """Of a client's posterior, samples x weights."""

    samples: Tensor


def interpolated(probs: Tensor, beta: float) -> Tensor:
    """Logs of product^beta mixture^(1 - beta), normalised; of probabilities clients x points x classes."""
    product = probs.clamp_min(_IMPOSSIBLE).log().sum(0).log_softmax(1)
    mixture = probs.mean(0).clamp_min(_IMPOSSIBLE).log()
    return (beta * product + (1 - beta) * mixture).log_softmax(1)


@settings
class BetaPredBayes(Langevin, Distilling, Method[Samples, Students]):
    """Distillation of what clients' posterior samples say together."""

    name = "beta_predbayes"
    summary = "the server joins clients' predictive distributions between product and mixture, and distils that"
    client_state = Samples

    beta: float = Field(
        default=0.5, ge=0, le=1, description="power of the product of predictive distributions; the rest: the mixture"
    )
    samples: int = Field(default=6, ge=1, description="S, posterior samples that a client sends in a round")
    burn_in: float = Field(default=0.5, ge=0, lt=1, description="share of a round's steps before the first sample")

    def client_init(self, client: Client) -> Samples:
        return Samples(client.initial_weights()[None])

    def client_update(
        self, state: Samples, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Samples]:
        start, passes = message.arrays["weights"], client.training.passes(round_number)
        total = passes * -(-len(client.train) // client.training.batch_size)
        first = int(self.burn_in * total)
        # Where steps are fewer than samples some are taken twice.
        taken = [first - (first - total) * s // self.samples for s in range(1, self.samples + 1)]
        found, steps = {0: start}, iter(range(1, total + 1))

        def collect(weights: Tensor) -> None:
            if (step := next(steps)) in taken:
                found[step] = weights.clone()

        _, loss = self.walk(
            client.network,
            start,
            local_batches(client, passes, rng),
            records=len(client.train),
            generator=rng.child("weights").torch(),
            visit=collect,
        )
        samples = torch.stack([found[step] for step in taken])
        info = {"loss": loss, "spread": float(samples.std(0, correction=0).norm())}
        return Update(Samples(samples), Message({"samples": samples, "records": count(client)}), info)

    def predict(self, state: Samples, client: Client, x: Tensor, rng: Stream) -> Answer:
        return client.says(iter(state.samples), x)

    def scored(self, state: Samples, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Samples]:
        return {"global": Samples(message.arrays["weights"][None]), "fine_tuned": state}

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"samples": Numbers((self.samples, roster.network(client).size)), "records": records_form()}

    def server_update(self, state: Students, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Students:
        means = {i: Message({**r.arrays, "weights": r.arrays["samples"].mean(0)}) for i, r in replies.items()}
        return super().server_update(state, means, roster, rng)

    def ensemble(self, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Tensor:
        """Log of the joined probabilities."""
        said = []
        for client, reply in replies.items():
            network, samples = roster.network(client), reply.arrays["samples"]
            each = [logits_of(network, weights, roster.alignment).double().softmax(1) for weights in samples]
            said.append(torch.stack(each).mean(0))
        return interpolated(torch.stack(said), self.beta).float()
