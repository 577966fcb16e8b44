"""Workers that are killed (SIGKILL), wherever they are: another one takes over, and nobody can tell by the results."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbnn.base.devices import CPU
from fedbnn.federation.engines import ClientFailure, WorkerPool
from fedbnn.federation.engines.lasting import LastingStates
from fedbnn.federation.engines.remote import MOST_DEATHS
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.method import State
from fedbnn.methods import FedBNN, Local
from tests.federation_sample import small_sites

STEP, DEAD = "FEDBNN_TEST_STEP", "FEDBNN_TEST_DEAD"
METHOD = FedBNN(prior_steps=2, mc_samples=2, head=False)


class Mortal(nn.Module):
    """Kills its process at the step that the environment names, once; at step -1 whenever it learns."""

    steps = 0

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.any()):  # no probe
            Mortal.steps += 1
            mark, step = Path(os.environ[DEAD]), int(os.environ[STEP])
            if step == -1 or (Mortal.steps == step and not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        out: Tensor = self.layer(x.flatten(1))
        return out


def mortal(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Mortal(classes)


@pytest.fixture(autouse=True)
def immortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(DEAD, str(tmp_path / "dead"))
    monkeypatch.setenv(STEP, "0")
    yield
    Mortal.steps = 0


def told(rounds: list[Round]) -> list[Any]:
    return [
        ({c: dict(t.info) for c, t in r.turns.items()}, {c: s["personal"].to_dict() for c, s in r.scores.items()})
        for r in rounds
    ]


def test_a_worker_that_is_killed_is_replaced_at_its_work_and_between_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the turn of its second client, of which the first has answered, and then while nobody asks: the same bits."""
    sites = small_sites(3, models=(f"{__name__}:mortal",))
    straight = Federation(METHOD, sites, seed=3, participation=0.6)
    expected = straight.run(2)
    monkeypatch.setenv(STEP, "9")
    with closing(WorkerPool(1)) as pool:
        federation = Federation(METHOD, sites, seed=3, participation=0.6, engine=pool)
        found = [federation.step()]
        assert "code -9" in caplog.text
        before = pool.process_ids
        os.kill(before[0], signal.SIGKILL)
        found += federation.run(2)
        assert pool.process_ids != before
        assert caplog.text.count("another one goes on in its place") == 2
        for one, folder in ((straight, tmp_path / "straight"), (federation, tmp_path / "killed")):
            folder.mkdir()
            one.save(folder)
    for file in sorted((tmp_path / "straight").iterdir()):
        assert file.read_bytes() == (tmp_path / "killed" / file.name).read_bytes(), file.name
    assert told(found) == told(expected)


def test_a_client_that_kills_its_worker_every_time_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sites = small_sites(2, models=("mlp", f"{__name__}:mortal"))
    monkeypatch.setenv(STEP, "-1")
    with closing(WorkerPool(1)) as pool:
        with pytest.raises(
            ClientFailure, match=rf"of client 1 \('client-1'\) failed: .* code -9 .* {MOST_DEATHS} times"
        ):
            Federation(Local(), sites, engine=pool).step()
        monkeypatch.setenv(STEP, "0")
        assert len(Federation(Local(), small_sites(2, models=("mlp",)), engine=pool).step().scores) == 2
    assert len(caplog.records) == MOST_DEATHS  # one of them when the pool was asked again


@dataclass(frozen=True)
class Number(State):
    value: Tensor


def number(value: float) -> Number:
    return Number(torch.tensor([value]))


def test_a_state_lasts_if_its_reply_arrived(tmp_path: Path) -> None:
    """Client 0 has taken turns in requests 2 and 3, client 1 in 3 and did not answer, client 2 begins."""
    states = LastingStates(Number, 1, tmp_path, CPU, request=1)
    for client in range(3):
        states[client] = number(10.0 * client)
    for request in (2, 3):
        states.settle()
        states.request = request
        for client in range(request - 1):
            states[client] = number(10.0 * client + request)
    after = LastingStates(Number, 1, tmp_path, CPU, request=3, answered=[0])
    assert [float(after[client].value) for client in range(3)] == [3.0, 10.0, 20.0]  # type: ignore[attr-defined]
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".safetensors"] * 3
    # Another dies before it reads a fourth request: all of the third has arrived.
    states = LastingStates(Number, 1, tmp_path, CPU, request=3)
    states[1] = number(13.0)
    after = LastingStates(Number, 1, tmp_path, CPU, request=4)
    assert [float(after[client].value) for client in range(3)] == [3.0, 13.0, 20.0]  # type: ignore[attr-defined]
