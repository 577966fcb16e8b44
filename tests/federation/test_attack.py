"""Attackers lie as they say, everybody else is untouched, and nobody scores a liar."""

from itertools import pairwise
from typing import Any

import pytest
import torch

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.deployment.terms import Terms
from fedbnn.federation.attack import Attacked, AttackSettings
from fedbnn.federation.engines import InProcess, Reply
from fedbnn.federation.faults import SILENT
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.methods import FedAvg, FedBNN, FedMD
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared
from tests.federation_sample import described, models_for, small_sites
from tests.runs.run_sample import TINY

KINDS = ("random", "sign_flip", "label_flip", "one_class", "inside", "backdoor")
METHODS: tuple[Method[Any, Any], ...] = (
    FedBNN(prior_steps=1, mc_samples=2, network_every=5),
    FedMD(digest_steps=1),
    FedAvg(),
)


def replies_of(method: Method[Any, Any], attack: AttackSettings) -> tuple[dict[int, Reply], frozenset[int], Message]:
    """What everybody sends in the warm-up, who lies, and what was received."""
    engine = Attacked(InProcess(), attack)
    federation = Federation(method, small_sites(5, models=models_for(method)), engine=engine)
    message = method.broadcast(federation.server, 0)
    return dict(engine.update(0, dict.fromkeys(range(5), message))), engine.liars, message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS, ids=described)
def test_honest_replies_are_untouched_and_lies_are_let_in(method: Method[Any, Any], kind: Any) -> None:
    honest, _, _ = replies_of(method, AttackSettings())
    found, liars, _ = replies_of(method, AttackSettings(kind=kind, share=0.4, planted=0.2))
    assert len(liars) == 2
    federation = Federation(method, small_sites(5, models=models_for(method)))
    for client, reply in found.items():
        same = all(torch.equal(reply.message.arrays[n], a) for n, a in honest[client].message.arrays.items())
        assert same == (client not in liars)
        assert not federation._server.refusal(client, reply.message)


def test_more_attackers_are_the_same_ones_and_others() -> None:
    shares = [AttackSettings(kind="random", share=share).attackers(20, seed=3) for share in (0.1, 0.2, 0.3, 0.4)]
    assert [len(one) for one in shares] == [2, 4, 6, 8]
    assert all(set(fewer) < set(more) for fewer, more in pairwise(shares))
    assert shares[1] != AttackSettings(kind="random", share=0.2).attackers(20, seed=4)
    assert AttackSettings(share=0.3).attackers(20, seed=3) == []


def test_colluders_say_one_class_everywhere() -> None:
    found, liars, _ = replies_of(METHODS[0], AttackSettings(kind="one_class", share=0.4, target=7))
    honest = torch.stack([reply.message.arrays["phi"] for client, reply in found.items() if client not in liars])
    for client in liars:
        phi = found[client].message.arrays["phi"]
        assert bool((phi.argmax(1) == 7).all())
        assert float(phi.max()) == float(honest.abs().max())
    found, liars, _ = replies_of(FedMD(digest_steps=1), AttackSettings(kind="one_class", share=0.4, target=7))
    for client in liars:
        assert bool((found[client].message.arrays["phi"][:, 7] == 1).all())


def test_flipped_weights_go_the_other_way() -> None:
    honest, _, received = replies_of(FedAvg(), AttackSettings())
    found, liars, _ = replies_of(FedAvg(), AttackSettings(kind="sign_flip", share=0.4, strength=2.0))
    start = received.arrays["weights"]
    for client in liars:
        moved = found[client].message.arrays["weights"] - start
        torch.testing.assert_close(moved, -2 * (honest[client].message.arrays["weights"] - start))


def test_absent_attackers_send_nothing_and_nobody_is_set_aside_for_that() -> None:
    engine = Attacked(InProcess(), AttackSettings(kind="absent", share=0.4))
    federation = Federation(FedAvg(), small_sites(5, models=("mlp",)), engine=engine, patience=1)
    for record in federation.run(2):
        silent = {client for client, turn in record.turns.items() if turn.rejected == SILENT}
        assert silent == engine.liars
        assert set(record.scores) == set(range(5)) - engine.liars
        assert not record.set_aside


def test_a_run_scores_honest_clients_alone_and_names_the_others(tmp_path: Any) -> None:
    changes = ["method=fedavg", "partition.clients=4", "rounds=1", "attack.kind=random", "attack.share=0.25"]
    result = fedbnn.run(load_config(None, [*TINY, *changes]), tmp_path / "run")
    names = result["per_client"]["name"]
    assert result["clients"] == 4
    assert len(names) == 3
    assert len(result["attackers"]) == 1
    assert not set(result["attackers"]) & set(names)
    assert f"An attack was simulated: {result['attackers'][0]} lied." in (tmp_path / "run/report.html").read_text(
        "utf-8"
    )
    own = result["per_client"]["own_class_accuracy"]
    assert result["own_class_accuracy"] == pytest.approx(sum(own) / 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["attack.target=10"], "attack.target = 10: there are classes 0 to 9"),
        (["attack.share=0.9"], "attack.share = 0.9: of 2 clients nobody honest is left"),
        (
            ["attack.kind=backdoor", "attack.patch=8"],
            "attack.patch = 8: pictures are 8 pixels a side",
        ),
        (["attack.kind=inside", "method=dp_fedavg"], "attack.kind = 'inside' is not simulated under privacy"),
    ],
)
def test_an_attack_that_makes_no_sense_is_told_before_any_work(tmp_path: Any, changes: list[str], words: str) -> None:
    config = load_config(None, [*TINY, "attack.kind=random", "attack.share=0.5", *changes])
    with pytest.raises(UserError, match=words):
        fedbnn.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nobody_agrees_to_be_lied_to() -> None:
    """Neither on Flower's simulation nor in a deployment."""
    config = load_config(None, [*TINY, "method=fedavg", "attack.kind=random", "attack.share=0.5"])
    with pytest.raises(UserError, match=r"attack.kind = 'random': lies are simulated on the local engine only"):
        Terms.of(config, Prepared.of(config, ["fedavg"]).data, "trial")


def test_only_pictures_can_carry_a_mark() -> None:
    with pytest.raises(UserError, match=r"attack.kind = 'backdoor' marks pictures"):
        AttackSettings(kind="backdoor").check(clients=4, classes=2, side=0)


def test_in_regression_there_is_nothing_to_lie_about():
    with pytest.raises(UserError, match=r"attack.kind = 'random': lies are about classes"):
        AttackSettings(kind="random", share=0.5).check(clients=4, classes=0)
