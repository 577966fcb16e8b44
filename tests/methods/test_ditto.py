"""Ditto: what is shared is FedAvg whatever lambda is, and personal models lie between it and training alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.evaluation import headline
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.methods import Ditto, FedAvg, Local
from fedbnn.methods.point import Point
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal

RNG = Stream((0, "ditto"))
SITES = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))


@pytest.mark.parametrize("strength", [0.0, 0.1, 100.0])
def test_what_is_shared_is_fedavg_bit_for_bit(strength: float) -> None:
    servers = []
    for method in (Ditto(strength=strength, weight_decay=0.1), FedAvg(weight_decay=0.1)):
        federation = Federation(method, SITES, seed=2, participation=0.7)
        federation.run(3)
        servers.append(federation.server.tensors()["weights"])
    assert torch.equal(*servers)


def test_without_a_pull_personal_models_are_trained_alone_bit_for_bit() -> None:
    """From the server's first weights, where Local begins at each client's own."""
    ditto, local = Ditto(strength=0.0, learning_rate=1e-3), Local(learning_rate=1e-3)
    for site in SITES:
        message = first_message(ditto, SITES)
        personal, alone = ditto.client_init(site.client), Point(message.arrays["weights"])
        for number in range(3):
            update = ditto.client_update(personal, site.client, message, number, RNG.child(number))
            personal, message = update.state, Message({"weights": update.message.arrays["weights"] * 1.1})
            alone = local.client_update(alone, site.client, Message(), number, RNG.child(number)).state
        assert torch.equal(personal.weights, alone.weights)


def test_the_stronger_the_pull_the_nearer_personal_models_stay() -> None:
    apart = []
    for strength in (0.0, 1.0, 10.0, 100.0):
        turns = Federation(Ditto(strength=strength, learning_rate=2e-3), SITES).run(2)[-1].turns
        apart.append(sum(turn.info["apart"] for turn in turns.values()))
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.5 * apart[0]  # Adam's steps have a length of their own


def test_personal_models_are_better_than_either_extreme_on_their_own_classes() -> None:
    """What the method is for: clients of few classes each. Better than one model for all and at least as good as
    training alone.
    """
    sites = small_sites(4, models=("mlp",))

    def own_nll(method: Any) -> float:
        last = Federation(method, sites).run(4)[-1]
        return sum(headline(found).scores["nll"] for found in last.scores.values())

    ditto = own_nll(Ditto(strength=0.1, learning_rate=2e-3))
    assert ditto < own_nll(FedAvg(learning_rate=2e-3))
    assert ditto < own_nll(Local(learning_rate=2e-3)) + 0.05


def test_a_pull_that_pushes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"methods\.ditto\.strength = -1: Input should be greater than or equal to 0"):
        load_config(None, ["method=ditto", "methods.ditto.strength=-1"])
