"""FedPPD: what its student learns, where it rests, and what of it travels."""

import dataclasses

import pytest
import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FedPPD
from fedbnn.methods.averaging import Global
from fedbnn.methods.feddf import divergence
from fedbnn.models.bayes import logits_of
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import first_message, small_sites

RNG = Stream((0, "fedppd"))
SITES = small_sites(3, models=("mlp",))


def client_with(epochs: int) -> Client:
    return dataclasses.replace(SITES[0].client, training=TrainingSettings(local_epochs=epochs, batch_size=4))


def test_the_student_says_what_the_samples_say_on_average() -> None:
    """It is nearer to the mean of all samples' answers than any of the samples is."""
    client = client_with(150)
    method = FedPPD(rate=0.2, temperature=0.03, student_rate=0.05, jitter=0.0)
    samples: list[Tensor] = []

    class Watched(FedPPD):
        name = "watched"

        def lesson(self, client: Client, teacher: Tensor, x: Tensor, jitter: torch.Generator):  # type: ignore[no-untyped-def]
            if not samples or not torch.equal(samples[-1], teacher):
                samples.append(teacher.clone())
            return super().lesson(client, teacher, x, jitter)

    watched = Watched(**{name: getattr(method, name) for name in ("rate", "temperature", "student_rate", "jitter")})
    state = watched.client_update(watched.client_init(client), client, first_message(method, SITES), 1, RNG).state
    assert len(samples) == 150
    answers = [logits_of(client.network, one, client.train.x).softmax(1).clone() for one in samples[50:]]
    mean = torch.stack(answers).mean(0).clamp_min(1e-30).log()
    student = divergence(mean, logits_of(client.network, state.weights, client.train.x))
    apart = [divergence(mean, one.clamp_min(1e-30).log()) for one in answers]
    assert student < min(apart)
    assert student < 0.2 * sum(apart) / len(apart)


def test_a_student_that_agrees_with_its_teacher_stays() -> None:
    """The gradient of CE[softmax t, softmax s] is zero at s = t; noise on the inputs does not change that."""
    client = client_with(3)
    method = FedPPD(rate=1e-12, temperature=0.0, weight_decay=0.0, student_rate=1.0, jitter=0.5)
    message = first_message(method, SITES)
    start = message.arrays["weights"][: client.network.size]
    state = method.client_update(method.client_init(client), client, message, 1, RNG).state
    assert float((state.weights - start).norm() / start.norm()) < 1e-4
    moved = Message({"weights": torch.cat([start, 1.5 * start])})
    state = method.client_update(method.client_init(client), client, moved, 1, RNG).state
    assert float((state.weights - start).norm() / start.norm()) > 1e-2


def test_the_server_averages_students_and_samples_by_records() -> None:
    method, roster = FedPPD(), roster_of(SITES)
    size, counts = roster.network(0).size, (1.0, 2.0, 5.0)
    normal = torch.Generator().manual_seed(0)
    sent = torch.randn(3, 2 * size, generator=normal)
    replies = {i: Message({"weights": one, "records": torch.tensor([counts[i]])}) for i, one in enumerate(sent)}
    state = method.server_update(method.server_init(roster), replies, roster, RNG)
    torch.testing.assert_close(state.weights, torch.tensor(counts) @ sent / 8)
    client = SITES[0].client
    scored = method.scored(method.client_init(client), client, method.broadcast(state, 0), RNG)
    assert torch.equal(scored["global"].weights, state.weights[:size])


@pytest.mark.parametrize("share", [True, False])
def test_a_chain_goes_on_at_its_client_or_from_the_servers(share: bool) -> None:
    client, method = client_with(2), FedPPD(share_teacher=share)
    start = first_message(method, SITES)
    first = method.client_update(method.client_init(client), client, start, 0, RNG)
    size = client.network.size
    assert len(first.message.arrays["weights"]) == (2 * size if share else size)
    heard = method.broadcast(Global(start.arrays["weights"]), 0)  # as if the reply had been lost
    again = method.client_update(first.state, client, heard, 1, RNG)
    anew = method.client_update(method.client_init(client), client, heard, 1, RNG)
    assert torch.equal(again.state.teacher, anew.state.teacher) == share
