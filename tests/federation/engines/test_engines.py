"""The same bits from every engine, and clear words when a client or a worker fails."""

import dataclasses
import itertools
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import ClientFailure, Engine, InProcess, WorkerPool, frames
from fedbnn.federation.engines.pool import balanced, cost
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.method import Method
from fedbnn.methods import DPFedAvg, FedBNN, FedMD, Local
from fedbnn.models.architectures import ModelSettings
from fedbnn.privacy import Ledger, PrivacySettings
from fedbnn.privacy.account import ledgers_in
from tests.federation_sample import models_for, small_sites, with_client


@pytest.fixture
def pools(one_worker: Engine, two_workers: Engine) -> dict[str, Engine]:
    return {"in process": InProcess(), "one worker": one_worker, "two workers": two_workers}


def dropout(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model that draws from torch's global generator while it trains, and prints."""
    print("a model of the user's that talks")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))


class Failing(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("the model does not like being trained")
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


class Diverging(nn.Module):
    """Finite on zeros, as when it is probed; NaN on real records."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.flatten(1))
        return out + (float("nan") if bool(x.any()) else 0.0)


def diverging(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Diverging(classes)


def failing(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Failing(classes)


def scores_of(record: Round) -> dict[int, dict[str, Any]]:
    return {c: {variant: e.to_dict() for variant, e in found.items()} for c, found in record.scores.items()}


def outcome(method: Method[Any, Any], engine: Engine, tmp_path: Path, **sample: Any) -> dict[str, Any]:
    """Everything that can be seen of a run: replies, scores, predictions, and all states on disk."""
    sites = small_sites(**{"models": models_for(method), **sample})
    federation = Federation(method, sites, seed=3, participation=0.6, engine=engine)
    rounds = federation.run(2)
    tmp_path.mkdir()
    federation.save(tmp_path)
    files = {file.name: load_file(file) for file in sorted(tmp_path.iterdir())}
    prediction = federation.predict(1, sites[1].evaluation.x[:9])
    return {
        "states": {f"{name}.{key}": value for name, file in files.items() for key, value in file.items()},
        "infos": [{c: dict(t.info) for c, t in r.turns.items()} for r in rounds],
        "bytes": [{c: (t.bytes_up, t.bytes_down) for c, t in r.turns.items()} for r in rounds],
        "scores": [scores_of(r) for r in rounds],
        "prediction": torch.cat([prediction.probs, prediction.logits], 1),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["states"].keys() == other["states"].keys()
    for name, tensor in one["states"].items():
        assert torch.equal(tensor, other["states"][name]), name
    assert torch.equal(one["prediction"], other["prediction"])
    for key in ("infos", "bytes", "scores"):
        assert one[key] == other[key]


def test_every_engine_gives_the_same_bits(pools: dict[str, Engine], tmp_path: Path) -> None:
    """Of every method, `fedbnn.testing` checks it for two workers."""
    method = FedBNN(prior_steps=3, mc_samples=2)
    reference, *others = (outcome(method, engine, tmp_path / name) for name, engine in pools.items())
    for other in others:
        assert_same(reference, other)


def test_every_engine_varies_images_alike(pools: dict[str, Engine], tmp_path: Path) -> None:
    method = FedBNN(prior_steps=3, mc_samples=2)
    reference, *others = (
        outcome(method, engine, tmp_path / name, augment="flip_shift") for name, engine in pools.items()
    )
    assert any(name.endswith(".sent") for name in reference["states"])
    for other in others:
        assert_same(reference, other)


@pytest.mark.parametrize("level", ["record", "user"])
def test_noise_of_the_system_is_never_the_same_twice(level: Any, pools: dict[str, Engine], tmp_path: Path) -> None:
    method = DPFedAvg(level=level, steps=1, noise="system")
    names = ("in process", "in process", "two workers")
    runs = [
        outcome(method, pools[name], tmp_path / str(number), ledgers=tmp_path / f"ledgers {number}")
        for number, name in enumerate(names)
    ]
    for one, other in itertools.combinations(runs, 2):
        mine, theirs = (found["states"]["server.safetensors.weights"] for found in (one, other))
        assert (mine != theirs).float().mean() > 0.99


PRIVATE = [
    (FedBNN(prior_steps=2, mc_samples=2), PrivacySettings("dp_teacher", releases=2, dimensions=12)),
    (FedMD(digest_steps=2), PrivacySettings("dp_moments", releases=2, dimensions=12, noise="discrete")),
    (FedBNN(prior_steps=2, mc_samples=2), PrivacySettings("output_perturbation", force=True)),
]
private = pytest.mark.parametrize(("method", "privacy"), PRIVATE, ids=[one.mechanism for _, one in PRIVATE])


@private
def test_every_engine_sends_the_same_bits_from_the_same_ledgers(
    method: Method[Any, Any], privacy: PrivacySettings, pools: dict[str, Engine], tmp_path: Path
) -> None:
    """Noise is drawn once, by whoever asks first; the others find it in the ledgers, also in processes of their own."""
    sample = {"models": ("mlp",), "rounds": 2, "privacy": privacy, "ledgers": tmp_path / "ledgers"}
    order = ["two workers", "in process", "one worker"]
    reference, *others = (outcome(method, pools[name], tmp_path / name, **sample) for name in order)
    charged = {path: len(Ledger.read(path).entries) for path in ledgers_in(tmp_path / "ledgers")}
    assert len(charged) == 4
    assert max(charged.values()) == (3 if privacy.mechanism == "output_perturbation" else 2)
    for other in others:
        assert_same(reference, other)
    elsewhere = outcome(method, InProcess(), tmp_path / "else", **sample | {"ledgers": tmp_path / "other ledgers"})
    mine, theirs = (found["states"]["server.safetensors.phi_bar"] for found in (reference, elsewhere))
    assert (mine != theirs).any(1).float().mean() > 0.5


@private
def test_a_private_federation_goes_on_from_what_was_saved_with_the_same_bits(
    method: Method[Any, Any], privacy: PrivacySettings, pools: dict[str, Engine], tmp_path: Path
) -> None:
    sites = small_sites(3, models=("mlp",), rounds=3, privacy=privacy, ledgers=tmp_path / "ledgers")
    straight = Federation(method, sites, seed=1, participation=0.5)
    straight.run(3)
    spent = [site.client.gate.guarantee().epsilon for site in sites]
    (tmp_path / "saved").mkdir()
    first = Federation(method, sites, seed=1, participation=0.5)
    first.run(1)
    first.save(tmp_path / "saved")
    second = Federation(method, sites, seed=1, participation=0.5, engine=pools["two workers"])
    second.load(tmp_path / "saved", 1)
    second.run(3)
    mine, theirs = second.server.tensors(), straight.server.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert [site.client.gate.guarantee().epsilon for site in sites] == spent
    assert max(spent) <= 3


def test_a_spent_budget_is_one_clear_line_from_a_worker_too(pools: dict[str, Engine], tmp_path: Path) -> None:
    method, privacy = FedMD(digest_steps=1), PrivacySettings("dp_teacher", dimensions=12)
    for budget, engine in ((privacy, InProcess()), (dataclasses.replace(privacy, epsilon=3.1), pools["two workers"])):
        sites = small_sites(2, models=("mlp",), privacy=budget, ledgers=tmp_path)
        federation = Federation(method, sites, engine=engine)
        if engine is not pools["two workers"]:
            federation.step(evaluate=False)
            continue
        with pytest.raises(UserError, match=r"epsilon 3\.000 is spent on this data") as caught:
            federation.step(evaluate=False)
        assert "\n" not in str(caught.value)


def test_a_users_model_with_dropout_is_deterministic_too(pools: dict[str, Engine], tmp_path: Path) -> None:
    sample = {"models": (f"{__name__}:dropout",)}
    reference, *others = (outcome(FedBNN(prior_steps=2), e, tmp_path / n, **sample) for n, e in pools.items())
    for other in others:
        assert_same(reference, other)


def test_a_pool_goes_on_from_what_was_saved_with_the_same_bits(pools: dict[str, Engine], tmp_path: Path) -> None:
    """Of every method, `fedbnn.testing` checks it in one process."""
    method, sites = FedBNN(prior_steps=3, mc_samples=2), small_sites(3)
    straight = Federation(method, sites, seed=1, participation=0.5)
    expected = straight.run(3)[-1]
    first, second = (
        Federation(method, sites, seed=1, participation=0.5, engine=pools[name])
        for name in ("one worker", "two workers")
    )
    first.run(1)
    first.save(tmp_path)
    second.load(tmp_path, 1)
    found = second.run(3)[-1]
    assert {c: dict(t.info) for c, t in found.turns.items()} == {c: dict(t.info) for c, t in expected.turns.items()}
    assert scores_of(found) == scores_of(expected)
    mine, theirs = second.server.tensors(), straight.server.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("name", ["in process", "two workers"])
def test_a_failing_client_is_named_with_its_traceback(name: str, pools: dict[str, Engine]) -> None:
    sites = small_sites(3, models=("mlp",))
    broken = dataclasses.replace(sites[1].client, model=ModelSettings(f"{__name__}:failing"))
    sites[1] = dataclasses.replace(sites[1], client=broken)
    engine = InProcess() if name == "in process" else WorkerPool(2)
    with closing(engine):
        federation = Federation(Local(), sites, engine=engine)
        with pytest.raises(ClientFailure, match=r"client 1 \('client-1'\) failed") as caught:
            federation.run(1)
    assert "the model does not like being trained" in str(caught.value)
    assert "Traceback" in str(caught.value)
    assert "forward" in str(caught.value)


@pytest.mark.parametrize("name", ["in process", "two workers"])
def test_a_model_that_diverges_is_named_in_one_line_when_it_is_scored(name: str, pools: dict[str, Engine]) -> None:
    sites = small_sites(2, models=("mlp", f"{__name__}:diverging"))
    with pytest.raises(
        UserError, match=r"client 1 \('client-1'\): after round 0 its personal model .*diverged"
    ) as caught:
        Federation(Local(), sites, engine=pools[name]).run(1)
    assert "\n" not in str(caught.value)


def test_a_pool_serves_on_after_a_refusal(two_workers: Engine) -> None:
    """What other workers were still saying is not taken for answers to the next request."""
    sites = small_sites()
    homeless = PrivacySettings(mechanism="dp_teacher")  # no place for its ledger
    refused = [with_client(sites[0], privacy=homeless), *sites[1:]]
    with pytest.raises(UserError):
        Federation(FedMD(digest_steps=1), refused, engine=two_workers).step()
    after = Federation(FedMD(digest_steps=1), sites, engine=two_workers).step()
    expected = Federation(FedMD(digest_steps=1), sites).step()
    assert [after.scores[client]["personal"].scores for client in range(4)] == [
        expected.scores[client]["personal"].scores for client in range(4)
    ]


def test_a_worker_whose_engine_is_gone_ends_without_a_word() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "fedbnn.federation.engines.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stderr is not None
    worker.stdout.close()
    frames.write(worker.stdin, {"request": "nothing in particular"})
    assert worker.wait(timeout=60) == 0
    assert worker.stderr.read() == b""
    worker.stdin.close()
    worker.stderr.close()


def test_closing_ends_all_worker_processes() -> None:
    pool = WorkerPool(2)
    pool.close()
    assert all(worker.process.poll() is not None for worker in pool._workers)


def test_work_is_spread_evenly_and_completely() -> None:
    costs = {0: 5.0, 1: 4.0, 2: 3.0, 3: 3.0, 4: 1.0}
    shares = balanced(costs, 2)
    assert sorted(client for share in shares for client in share) == list(costs)
    assert {sum(costs[c] for c in share) for share in shares} == {8.0}


def test_a_larger_model_costs_more() -> None:
    small, large = (small_sites(1, models=(name,))[0] for name in ("mlp", "cnn3"))
    assert cost(small) < cost(large)
