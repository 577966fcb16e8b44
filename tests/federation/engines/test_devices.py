"""Clients on another device than the CPU: everything of theirs is there, and everything that comes back is here."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedbnn.base.devices import CPU, find_device
from fedbnn.base.errors import UserError
from fedbnn.federation.engines import ClientFailure, Engine, InProcess, Site, WorkerPool, by_index
from fedbnn.federation.engines.host import ClientHost, Placed
from fedbnn.federation.evaluation import DETECTION
from fedbnn.federation.loop import Federation
from fedbnn.federation.method import Method
from fedbnn.methods import FedBNN, FedMD, Local
from fedbnn.models.network import FlatNetwork
from fedbnn.privacy import PrivacySettings
from fedbnn.runs.config import EngineSettings
from fedbnn.runs.experiment import make_engine
from tests.federation_sample import SMALL_METHODS, described, first_message, models_for, small_sites
from tests.other_device import OTHER, OtherTensor, WrongDevice, other_device

every_method = pytest.mark.parametrize("method", SMALL_METHODS, ids=described)


def in_process(device: torch.device) -> InProcess:
    engine = InProcess()
    engine._device = device  # as if PyTorch had it
    return engine


def played(method: Method[Any, Any], sites: list[Site], engine: Engine, folder: Path) -> dict[str, Any]:
    """Everything that can be seen of a run that is stopped and goes on."""
    folder.mkdir()
    first = Federation(method, sites, seed=3, participation=0.6, engine=engine)
    rounds = first.run(1)
    first.save(folder)
    second = Federation(method, sites, seed=3, participation=0.6, engine=engine)
    second.load(folder, 1)
    rounds += second.run(2)
    second.save(folder)
    prediction = second.predict(1, sites[1].evaluation.x[:9])
    asked = second.evaluate(foreign=True)
    found: dict[str, Any] = {
        f"{file.name}.{name}": tensor for file in sorted(folder.iterdir()) for name, tensor in load_file(file).items()
    }
    found |= {name: getattr(prediction, name) for name in ("probs", "logits", "aleatoric")}
    found["foreign"] = {client: {name: e.to_dict() for name, e in of.items()} for client, of in asked.items()}
    found["infos"] = [{client: dict(turn.info) for client, turn in one.turns.items()} for one in rounds]
    found["scores"] = [
        {client: {name: e.to_dict() for name, e in of.items()} for client, of in one.scores.items()} for one in rounds
    ]
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert type(other[name]) is torch.Tensor  # not one of the other device's
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


@every_method
def test_every_method_runs_on_another_device_with_the_same_result(method: Method[Any, Any], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((7, 1, 8, 8)).astype(np.float32)
    sites = small_sites(3, models=models_for(method), augment="flip_shift", foreign=noise)
    expected = played(method, sites, in_process(CPU), tmp_path / "cpu")
    assert all(set(DETECTION) <= of["scores"].keys() for found in expected["foreign"].values() for of in found.values())
    with other_device() as device:
        found = played(method, sites, in_process(device), tmp_path / "other")
    assert_same(expected, found)


@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments", "output_perturbation"])
@pytest.mark.parametrize("method", [FedBNN(prior_steps=2, mc_samples=2), FedMD(digest_steps=2)], ids=lambda m: m.name)
def test_private_releases_do_not_depend_on_the_device(
    method: Method[Any, Any],
    mechanism: Literal["dp_teacher", "dp_moments", "output_perturbation"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def run(device: torch.device) -> dict[str, Any]:
        privacy = PrivacySettings(mechanism=mechanism, dimensions=12, force=True)
        folder = tmp_path / device.type
        sites = small_sites(2, models=("mlp",), rounds=2, privacy=privacy, ledgers=folder / "ledgers")
        folder.mkdir()
        # The only way to have the same noise twice; not before all is imported, which draws for names of its own.
        monkeypatch.setattr(os, "urandom", np.random.default_rng(0).bytes)
        return played(method, sites, in_process(device), folder / "run")

    expected = run(CPU)
    with other_device() as device:
        assert_same(expected, run(device))


@every_method
def test_states_stay_on_the_device_and_replies_come_back(method: Method[Any, Any]) -> None:
    sites = small_sites(1, models=models_for(method))
    message = first_message(method, sites)
    with other_device() as device:
        host = ClientHost(method, by_index(sites), 0, device)
        reply = host.update(0, 0, message)
        prediction = host.predict(0, sites[0].evaluation.x[:3], 0, message, None)
        states = list(host.states[0].tensors().values())
    assert states
    assert all((type(one) is OtherTensor) == (one.dtype != torch.float64) for one in states)
    returned = [*reply.message.arrays.values(), prediction.probs, prediction.logits, prediction.aleatoric]
    assert all(type(one) is torch.Tensor for one in returned)


def test_what_clients_share_is_on_the_device_once() -> None:
    with other_device() as device:
        sites = small_sites(2, foreign=np.zeros((3, 1, 8, 8), dtype=np.float32))
        one, other = Placed(by_index(sites), device).values()
    assert one.foreign is other.foreign
    assert type(one.foreign) is OtherTensor
    assert type(one.client.train.x) is type(one.client.train.y) is OtherTensor
    assert one.client.alignment is other.client.alignment
    assert one.evaluation.x is other.evaluation.x
    assert type(one.evaluation.x) is OtherTensor
    assert one.client.device == OTHER


def test_images_and_kernels_keep_their_layout_on_the_device() -> None:
    with other_device() as device:
        [site] = Placed(by_index(small_sites(1, models=("cnn2",))), device).values()
        network = site.client.network
        assert site.client.train.x.is_contiguous(memory_format=torch.channels_last)
        for parameter in network.module.parameters():
            if parameter.dim() == 4:
                assert parameter.is_contiguous(memory_format=torch.channels_last)
        found = site.client.initial_weights().cpu()
    assert torch.equal(found, small_sites(1, models=("cnn2",))[0].client.initial_weights())


def test_what_a_model_does_not_train_is_moved_too() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.register_buffer("offset", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x) * self.frozen + self.offset
            return out

    expected = FlatNetwork(Own, 5)(torch.ones(4, 3))
    with other_device() as device:
        found = FlatNetwork(Own, 5, device)(torch.ones(4, 3, device=device)).detach().cpu()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda there: there + torch.zeros(2),
        lambda there: there.normal_(generator=torch.Generator()),
        lambda there: torch.randperm(2, generator=torch.Generator(OTHER).manual_seed(7)),
        lambda there: there.double(),
        lambda there: there.index_select(0, torch.zeros(1, dtype=torch.int64)),
        lambda there: torch.mul(there, there, out=torch.zeros(2)),
    ],
)
def test_the_device_of_these_tests_is_strict(mistake: Callable[[torch.Tensor], Any]) -> None:
    with other_device() as device:
        there = torch.zeros(2).to(device)
        with pytest.raises(WrongDevice):
            mistake(there)


def test_the_device_of_these_tests_is_not_seen_by_numpy() -> None:
    with other_device() as device:
        there = torch.arange(3.0).to(device)
        with pytest.raises((TypeError, RuntimeError)):
            there.numpy()
        assert type(there + 1) is OtherTensor
        assert torch.equal((there * torch.tensor(2.0)).cpu(), torch.tensor([0.0, 2.0, 4.0]))


def test_workers_compute_on_the_device_of_the_pool() -> None:
    """A real meta device holds no numbers, so the first that are wanted show that the worker was told of it."""
    with closing(WorkerPool(1)) as pool:
        pool._device = torch.device("meta")
        with pytest.raises(ClientFailure, match=r"(?i)meta"):  # of the first state, which is to be written
            Federation(Local(), small_sites(1, models=("mlp",)), engine=pool)


class Machine:
    """Which devices PyTorch says it sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cuda: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "name", "expected"),
    [
        (0, False, "cpu", "cpu"),
        (0, False, "auto", "cpu"),
        (0, True, "auto", "mps"),
        (1, True, "auto", "cuda"),
        (1, False, "cuda", "cuda"),
        (2, False, "cuda:1", "cuda:1"),
        (0, True, "mps", "mps"),
    ],
)
def test_devices_by_name(monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, name: str, expected: str) -> None:
    Machine(monkeypatch, cuda, mps)
    assert find_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("cuda", "name", "problem"),
    [
        (0, "cuda", r"engine\.device = 'cuda': PyTorch sees no CUDA device here"),
        (0, "mps", r"engine\.device = 'mps': PyTorch sees no MPS device here"),
        (2, "cuda:2", r"engine\.device = 'cuda:2': PyTorch sees only cuda:0, cuda:1 here"),
        (2, "gpu", r"engine\.device = 'gpu': must be auto, cpu, cuda, cuda:N"),
        (2, "cuda:", r"must be auto"),
        (2, "cuda:-1", r"must be auto"),
        (2, "CPU", r"must be auto"),
        (2, "", r"must be auto"),
    ],
)
@pytest.mark.parametrize("where", [find_device, InProcess, lambda name: WorkerPool(1, name)])
def test_a_device_that_is_not_here_is_refused(
    monkeypatch: pytest.MonkeyPatch, where: Callable[[str], Any], cuda: int, name: str, problem: str
) -> None:
    Machine(monkeypatch, cuda)
    with pytest.raises(UserError, match=problem) as caught:
        where(name)
    assert "\n" not in str(caught.value)


def test_a_gpu_gets_one_worker_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, cuda=1)
    for settings, count in ((EngineSettings(device="cuda"), 1), (EngineSettings(device="cuda", workers=2), 2)):
        with closing(make_engine(settings)) as engine:
            assert isinstance(engine, WorkerPool)
            assert len(engine._workers) == count
            assert engine._device == torch.device("cuda")


def _is_here(name: str) -> bool:
    return torch.cuda.is_available() if name == "cuda" else torch.backends.mps.is_available()


every_gpu = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not _is_here(name), reason=f"no {name} device"))
        for name in ("cuda", "mps")
    ],
)


@every_gpu
@every_method
def test_every_method_runs_and_repeats_itself_on_a_gpu(method: Method[Any, Any], name: str, tmp_path: Path) -> None:
    sites = small_sites(3, models=models_for(method))
    with closing(WorkerPool(1, name)) as pool:
        one, other = (
            played(method, sites, engine, tmp_path / str(number))
            for number, engine in enumerate((InProcess(name), pool))
        )
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.device == CPU
            assert value.isfinite().all()
            torch.testing.assert_close(value, other[key])


@every_gpu
@every_method
def test_clients_begin_the_same_on_a_gpu(method: Method[Any, Any], name: str) -> None:
    sites = small_sites(2, models=models_for(method))
    here, there = (ClientHost(method, by_index(sites), 0, find_device(device)).states for device in ("cpu", name))
    for client, state in here.items():
        for key, tensor in state.tensors().items():
            assert there[client].tensors()[key].device.type == name
            assert torch.equal(tensor, there[client].tensors()[key].cpu())
