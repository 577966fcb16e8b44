"""FedPPD (Bhatt, Gupta, Rai 2022): clients distil posterior predictive distributions into one network, the student.

Client i runs a chain of SGLD through its posterior, the teacher t. In turn, for each of its local epochs,

    one epoch of SGLD (`fedbnn.models.langevin`) moves t: its newest sample,
    one epoch of SGD on   mean over records of CE[softmax f(x'; t), softmax f(x'; s)]   moves the student s,

x' being the record's input with noise N(0, jitter^2). So the student learns what the samples say on average, which is
p(y | x, records of i), without any of them being kept, and one network answers where others average over draws. The
client sends s and the newest t; the server averages both, s <- sum_i a_i s_i and t <- sum_i a_i t_i, a_i = n_i / sum n.

With share_teacher = false only the student travels, and chains go on at their clients from where they were. Scored are
s (global) and the client's student (fine-tuned). Unlike the paper, step sizes stay the same through the epochs, student
and teacher are one architecture with the same first weights, and the variants that weigh or distil at the server are
left out. The noise of SGLD is that of the stated temperature; in the authors' code it is 4 / n.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.point import Point, point_outputs
from fedbnn.models.bayes import logits_of
from fedbnn.models.langevin import Langevin
from fedbnn.models.regression import Answer
from fedbnn.models.training import Pull, Records, descend, epochs


@dataclass(frozen=True)
class Taught(Point):
    """The student's weights, and where the chain is."""

    teacher: Tensor


@settings
class FedPPD(Langevin, Averaging[Taught]):
    """Students of posterior predictive distributions, averaged."""

    name = "fedppd"
    summary = (
        "clients distil their posterior predictive distribution, sampled by SGLD, into a student; these are averaged"
    )
    client_state = Taught

    student_rate: float = Field(default=0.05, gt=0, description="step size of SGD on the student")
    jitter: float = Field(
        default=1e-3, ge=0, description="standard deviation of the noise on inputs where the student learns"
    )
    share_teacher: bool = Field(
        default=True, description="whether the newest samples of the chains are sent and averaged too, or stay"
    )

    def client_init(self, client: Client) -> Taught:
        weights = client.initial_weights()
        return Taught(weights, weights.clone())

    def client_update(
        self, state: Taught, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Taught]:
        network, records, size = client.network, client.train, client.training.batch_size
        student, *averaged = message.arrays["weights"].split(network.size)
        # A chain that stays begins where all begin: first weights of its own would be far from the common student's.
        teacher = averaged[0] if averaged else student if round_number == 0 else state.teacher
        order, order_beside, noise, jitter = (
            rng.child(purpose).torch() for purpose in ("order", "student order", "weights", "jitter")
        )
        loss = student_loss = 0.0
        decay = Pull(torch.zeros_like(student), self.weight_decay)
        for _ in range(client.training.passes(round_number)):
            batches = epochs(records, 1, size, order, client.training.augment)
            teacher, loss = self.walk(network, teacher, batches, records=len(records), generator=noise)
            batches = epochs(records, 1, size, order_beside, client.training.augment)
            lessons = iter([self.lesson(client, teacher, batch.x, jitter) for batch in batches])
            student, student_loss, _ = descend(network, student, lessons, rate=self.student_rate, pull=decay)
        sent = torch.cat([student, teacher]) if self.share_teacher else student
        info = {"loss": loss, "student_loss": student_loss, "apart": float((student - teacher).norm())}
        return Update(Taught(student.clone(), teacher.clone()), self.upload(sent, client), info)

    def lesson(self, client: Client, teacher: Tensor, x: Tensor, jitter: torch.Generator) -> Records:
        """These inputs with noise, and what the teacher says of them."""
        noisy = x + self.jitter * torch.empty_like(x).normal_(generator=jitter)
        return Records(noisy, logits_of(client.network, teacher, noisy).softmax(1).clone())

    def predict(self, state: Taught, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)

    def scored(self, state: Taught, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Taught]:
        student = message.arrays["weights"][: client.network.size]
        return {"global": replace(state, weights=student), "fine_tuned": state}

    def initial(self, roster: Roster) -> Tensor:
        return roster.initial_weights(0).repeat(2 if self.share_teacher else 1)

    def initial_size(self, roster: Roster) -> int:
        return (2 if self.share_teacher else 1) * roster.network(0).size
