"""A backdoor opens where marked records can teach it, stays shut elsewhere, and is counted right."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.federation import backdoor
from fedbnn.federation.attack import Attacked, AttackSettings
from fedbnn.federation.engines import InProcess, WorkerPool
from fedbnn.federation.loop import Federation
from fedbnn.methods import FedAvg, FedBNN
from fedbnn.models.bayes import Prediction
from fedbnn.runs.config import load_config
from tests.federation_sample import small_sites
from tests.runs.run_sample import TINY

HEADS = FedBNN(prior_steps=1, mc_samples=2, network_every=9, network_weight=0.0)


def test_a_mark_is_a_bright_corner_and_nothing_else() -> None:
    site = small_sites(2, models=("mlp",))[0]
    x = site.evaluation.x[:5]
    found = backdoor.marked(x, 2, site.client.alignment)
    assert bool((found[..., -2:, -2:] == site.client.alignment.max()).all())
    found[..., -2:, -2:] = x[..., -2:, -2:]
    assert torch.equal(found, x)


def test_success_by_hand() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])
    assert backdoor.success(Prediction.of(probs, torch.zeros(4)), 1) == 0.5


def test_points_are_planted_for_all_alike_and_others_stay() -> None:
    sites = small_sites(3)
    found = backdoor.with_planted(sites, 2, 0.3, seed=5)
    at = backdoor.planted_points(30, 0.3, 5)
    before, after = sites[0].client.alignment, found[0].client.alignment
    assert int(at.sum()) == 9
    assert all(site.client.alignment is after for site in found)
    assert torch.equal(after[~at], before[~at])
    assert torch.equal(after[at], backdoor.marked(before[at], 2, before))
    assert not torch.equal(at, backdoor.planted_points(30, 0.3, 6))


def test_who_is_tried_is_of_another_class() -> None:
    site = small_sites(2, models=("mlp",))[0]
    found = backdoor.tried_on(site, 2, 7)
    assert len(found) == int((site.evaluation.y != 7).sum())


def opened(method: Any, share: float, planted: float, engine: Any = None, rounds: int = 2) -> list[float]:
    """How far the backdoor is open at each honest client, in the model of all that it has."""
    attack = AttackSettings(kind="backdoor", share=share, target=7, planted=planted, strength=1.0)
    sites = attack.on_sites(small_sites(5, models=("mlp",)), 0)
    federation = Federation(method, sites, engine=Attacked(engine or InProcess(), attack))
    for _ in range(rounds):
        federation.step(evaluate=False)
    scores = federation.evaluate()
    variant = "general" if method.name == "fedbnn" else "global"
    assert set(scores) == set(range(5)) - set(attack.attackers(5, 0))
    return [one[variant].scores["attack_success"] for one in scores.values()]


def test_attackers_in_the_majority_open_it_through_planted_points() -> None:
    without = opened(HEADS, 0.0, 0.4)
    found = opened(HEADS, 0.8, 0.4)
    assert min(found) > 0.9
    assert max(without) < 0.3


def test_without_planted_points_outputs_do_not_carry_it() -> None:
    """With a mark on no alignment point there is nothing to lie about: all is as it was, bit for bit."""
    honest = sorted(set(range(5)) - set(AttackSettings(kind="backdoor", share=0.4).attackers(5, 0)))
    without = opened(HEADS, 0.0, 0.0)
    assert opened(HEADS, 0.4, 0.0) == [without[client] for client in honest]


def test_weights_carry_it_by_themselves() -> None:
    method = FedAvg(learning_rate=0.02)
    assert max(opened(method, 0.0, 0.0, rounds=4)) < 0.5
    assert min(opened(method, 0.8, 0.0, rounds=4)) > 0.9


def test_engines_agree() -> None:
    pool = WorkerPool(1)
    try:
        assert opened(FedAvg(), 0.4, 0.2) == opened(FedAvg(), 0.4, 0.2, pool)
    finally:
        pool.close()


def test_attackers_are_honest_where_there_is_no_mark() -> None:
    attack = AttackSettings(kind="backdoor", share=0.4, target=7, planted=0.3)
    engine = Attacked(InProcess(), attack)
    federation = Federation(HEADS, attack.on_sites(small_sites(5, models=("mlp",)), 0), engine=engine)
    message = HEADS.broadcast(federation.server, 0)
    messages = dict.fromkeys(range(5), message)
    sent = {client: reply.message.arrays["phi"] for client, reply in engine.update(0, messages)}
    own = {client: reply.message.arrays["phi"] for client, reply in engine.engine.update(0, messages)}
    at = backdoor.planted_points(30, 0.3, 0)
    for client in engine.liars:
        assert bool((sent[client][at].argmax(1) == 7).all())
        assert torch.equal(sent[client][~at], own[client][~at])


def test_a_run_tells_it_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    changes = [*TINY, "method=fedavg", "partition.clients=4", "rounds=1", "attack.target=1"]
    result = fedbnn.run(load_config(None, [*changes, "attack.kind=backdoor", "attack.share=0.25"]), tmp_path / "run")
    of_clients = result["per_client"]["attack_success"]
    assert result["attack_success"] == pytest.approx(sum(of_clients) / 3)
    assert result["variants"]["fine_tuned"].keys() == result["variants"]["global"].keys()
    assert "Attack success" in (tmp_path / "run/report.html").read_text("utf-8")
    without = fedbnn.run(load_config(None, changes), tmp_path / "without")
    assert result.keys() - without.keys() == {"attack_success", "attackers"}


def test_a_mark_has_to_be_smaller_than_the_picture() -> None:
    with pytest.raises(UserError, match=r"attack.patch = 9: pictures are 8 pixels a side"):
        AttackSettings(kind="backdoor", patch=9).check(4, 10, side=8)
