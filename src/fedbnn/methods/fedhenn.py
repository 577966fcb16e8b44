"""FedHeNN (Makhija, Han, Ho, Ghosh 2022): networks of any architecture whose representations tell points apart alike.

A network's representation of a record is what its last linear layer sees. Of `points` points of the alignment set AD it
has a kernel, whatever its dimensions: K_i = Z_i Z_i^T. The distance of two kernels is 1 - CKA (Kornblith et al. 2019),

    CKA(K, L) = <HKH, HLH> / (||HKH|| ||HLH||),    H = I - 1 1^T / n,

which does not change if a representation is rotated, moved or scaled. Client i minimises

    f_i(w_i) + strength (1 - CKA(K_i(w_i), K_bar)),    K_bar = mean over clients j of HK_jH / ||HK_jH||,

and sends its own HK_iH / ||HK_iH||; K_bar is of those who replied in the round before. No labels, weights or outputs
are exchanged. Scored is the personal model. With strength = 0 it is local training.

Unlike the paper, AD stays the same in all rounds, a step looks at a minibatch of it (the kernel's rows and columns of
these points), kernels are scaled before they are averaged so that none outweighs the others, the strength does not
change with the rounds, and clients use Adam.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Method, State, Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.representation import check_representation, representations_of, represented
from fedbnn.models.training import Records, fit_point, steps

_LEAST = 1e-12  # instead of the norm of a kernel that does not tell any points apart


@dataclass(frozen=True)
class Kernel(State):
    """The mean of the clients' kernels, points x points; None before there is any."""

    kernel: Tensor | None = None


def centred(kernel: Tensor) -> Tensor:
    """HKH."""
    return kernel - kernel.mean(0, keepdim=True) - kernel.mean(1, keepdim=True) + kernel.mean()


def cka(one: Tensor, other: Tensor) -> Tensor:
    """Centred kernel alignment of two kernels over the same points; zero where one tells no points apart."""
    a, b = centred(one), centred(other)
    aligned: Tensor = (a * b).sum() / (a.norm() * b.norm()).clamp_min(_LEAST)
    return aligned


def kernel_of(z: Tensor) -> Tensor:
    """HKH / ||HKH|| of representations, one row a point."""
    kernel = centred(z @ z.T)
    scaled: Tensor = kernel / kernel.norm().clamp_min(_LEAST)
    return scaled


@settings
class FedHeNN(PointModel, PointTraining, Method[Point, Kernel]):
    """Networks of any architecture, held to representations that are alike."""

    name = "fedhenn"
    summary = "networks of any architecture whose representations of the alignment set are held alike"
    server_state = Kernel
    regression = True

    strength: float = Field(default=1.0, ge=0, description="eta, strength of the pull towards the clients' mean kernel")
    points: int = Field(
        default=200,
        ge=2,
        description="most alignment points, from the first, whose kernel is exchanged: it is their number squared",
    )
    align_batch: int = Field(default=64, ge=2, description="of these, how many a step of local training looks at")

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        check_representation(client.network, client.train.x, client.model.name)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        passes, kernel, network = client.training.passes(round_number), message.get("kernel"), client.network
        public = client.alignment[: self.points]
        if kernel is None:
            weights, loss = self.train(state.weights, client, passes, rng)
        else:
            known = kernel
            numbered = Records(public, torch.arange(len(public), device=public.device))
            count = passes * -(-len(client.train) // client.training.batch_size)
            beside = steps(numbered, count, self.align_batch, rng.child("align").torch(), client.training.augment)

            def penalised(batch: Records) -> Tensor:
                other = next(beside)
                z, _ = represented(network, other.x)
                apart = 1 - cka(z @ z.T, known[other.y][:, other.y])
                return batch.loss(network(batch.x)) + self.strength * apart

            weights, loss = fit_point(
                network,
                state.weights,
                local_batches(client, passes, rng),
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                loss_of=penalised,
            )
        mine = kernel_of(representations_of(network, weights, public))
        info = {"loss": loss} if kernel is None else {"loss": loss, "cka": float(cka(mine, kernel))}
        return Update(Point(weights), Message({"kernel": mine}), info)

    def server_init(self, roster: Roster) -> Kernel:
        if len(roster.alignment) < 2:
            raise UserError(
                f"method '{self.name}' compares points of the alignment set: data.alignment must be at least 2"
            )
        return Kernel()

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        size = min(self.points, len(roster.alignment))
        return {"kernel": Numbers((size, size), -1.0, 1.0)}

    def server_update(self, state: Kernel, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Kernel:
        if not replies:
            return state
        return Kernel(torch.stack([reply.arrays["kernel"] for reply in replies.values()]).mean(0))

    def broadcast(self, state: Kernel, client: int) -> Message:
        return Message() if state.kernel is None else Message({"kernel": state.kernel})
