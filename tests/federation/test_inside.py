"""Colluders that know the rule: they say the same, go as far as it takes, and know what the server knows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbnn.federation.attack import Attacked, AttackSettings
from fedbnn.federation.engines import InProcess
from fedbnn.federation.inside import SCALES, Inside
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.methods import FedAvg, FedBNN, FedMD
from tests.federation_sample import described, models_for, small_sites

ATTACK = AttackSettings(kind="inside", share=0.4)
METHODS: tuple[Method[Any, Any], ...] = (
    FedBNN(prior_steps=1, mc_samples=2, network_every=5, robust="uncertain"),
    FedMD(digest_steps=1, robust="median"),
    FedAvg(robust="krum", liars=0.4),
)


def federation(method: Method[Any, Any]) -> Federation:
    return Federation(method, small_sites(5, models=models_for(method)), engine=Attacked(InProcess(), ATTACK))


def tensors(held: Federation) -> dict[str, Tensor]:
    return held.server.tensors()


@pytest.mark.parametrize("method", METHODS, ids=described)
def test_they_know_what_the_server_does_also_after_a_stop(method: Method[Any, Any], tmp_path: Path) -> None:
    held = federation(method)
    for _ in range(2):
        assert not any(turn.rejected for turn in held.step(evaluate=False).turns.values())
    known = held.engine._inside._server.state.tensors()  # type: ignore[attr-defined]
    assert all(torch.equal(known[name], array) for name, array in tensors(held).items())
    held.save(tmp_path)
    held.step(evaluate=False)
    again = federation(method)
    again.load(tmp_path, 1)
    again.step(evaluate=False)
    assert all(torch.equal(tensors(again)[name], array) for name, array in tensors(held).items())


def test_against_a_mean_of_outputs_they_go_as_far_as_they_ever_try() -> None:
    """The lead of the likeliest class falls with every step, by as much as their share in the mean."""
    method = FedMD(digest_steps=1, consensus="mean_logits")
    sites = small_sites(5, models=("mlp",))
    x = torch.randn(3, 30, 10, generator=torch.Generator().manual_seed(0))
    honest = {client: Message({"phi": x[client]}) for client in range(3)}
    own = {client: Message({"phi": torch.zeros(30, 10)}) for client in (3, 4)}
    sent = Inside(method, roster_of(sites), 0).lies(0, honest, own, dict.fromkeys(own, Message()))
    assert torch.equal(sent[3].arrays["phi"], sent[4].arrays["phi"])
    apart = torch.linalg.vector_norm(sent[3].arrays["phi"] - x.mean(0))
    torch.testing.assert_close(apart, max(SCALES) * torch.linalg.vector_norm(x.std(0)))
    first = x.mean(0).argmax(1, keepdim=True)
    moved = (sent[3].arrays["phi"] - x.mean(0)).gather(1, first)
    assert bool((moved < 0).all())


def test_under_krum_they_stay_where_they_are_chosen() -> None:
    """No lie that is tried moves the weights further, and one so far out that it is not chosen moves them less."""
    method = FedAvg(robust="krum", liars=0.4)
    roster = roster_of(small_sites(5, models=("mlp",)))
    state = method.server_init(roster)
    x = state.weights + torch.randn(3, len(state.weights), generator=torch.Generator().manual_seed(0))
    own = {client: Message({"weights": state.weights, "records": torch.ones(1)}) for client in (3, 4)}

    def weights(lie: Tensor | None) -> Tensor:
        said = dict(enumerate(x)) | ({} if lie is None else {3: lie, 4: lie})
        replies = {client: Message({"weights": one, "records": torch.ones(1)}) for client, one in said.items()}
        return method.server_update(state, replies, roster, None).weights  # type: ignore[arg-type]

    honest = {client: Message({"weights": one, "records": torch.ones(1)}) for client, one in enumerate(x)}
    received = dict.fromkeys(own, Message({"weights": state.weights}))
    lie = Inside(method, roster, 0).lies(0, honest, own, received)[3].arrays["weights"]
    moved = float((weights(lie) - weights(None)).norm())
    assert moved > 0
    for scale in SCALES:
        assert moved >= float((weights(x.mean(0) - scale * x.std(0)) - weights(None)).norm()) - 1e-4


def test_among_too_few_honest_ones_they_send_what_they_would_have() -> None:
    sites = small_sites(3, models=("mlp",))
    own = {1: Message({"phi": torch.ones(30, 10)}), 2: Message({"phi": torch.ones(30, 10)})}
    honest = {0: Message({"phi": torch.zeros(30, 10)})}
    sent = Inside(FedMD(consensus="mean_logits"), roster_of(sites), 0).lies(0, honest, own, {})
    assert sent == own
