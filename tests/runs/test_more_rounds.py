"""A run that goes on to more rounds is, bit for bit, one that had as many from the start; or it says why not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedbnn
from fedbnn.runs.config import Config, load_config
from fedbnn.runs.experiment import Prepared
from fedbnn.runs.folder import RunFolder
from tests.runs.run_sample import Stops, timeless, tiny

SMALL = (
    "partition.clients=3",
    "training.warmup_epochs=1",
    "training.local_epochs=1",
    "data.alignment=20",
    "methods.fedbnn.prior_steps=2",
    "methods.fedbnn.mc_samples=2",
    "engine.debug=true",
    'models=[{name="mlp"}]',
)


def small(*more: str) -> Config:
    return load_config(None, [*SMALL, *more])


def told(folder: Path) -> tuple[Any, ...]:
    """All that a run folder says but how long it took."""
    lines = [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result, config = (timeless(json.loads((folder / name).read_text())) for name in ("result.json", "config.json"))
    last = folder / "checkpoint" / f"round-{config['rounds']:05d}"
    states = {file.name: file.read_bytes() for file in last.glob("*.safetensors")}
    assert states
    return lines, result, config, states


@pytest.mark.parametrize(
    "changes",
    [
        ("method=fedbnn", "methods.fedbnn.network_every=1", "evaluation.every=2", "participation=0.6"),
        ("method=fedbnn", "methods.fedbnn.network_every=2", "data.unseen_classes=1", "evaluation.foreign=unseen"),
        ("method=fedavg", "evaluation.every=3", "data.unseen_classes=1", "evaluation.foreign=unseen"),
    ],
    ids=["fedbnn", "network_every", "foreign"],
)
def test_more_rounds_are_the_same_bits(changes: tuple[str, ...], tmp_path: Path) -> None:
    config = small(*changes, "rounds=3")
    whole = replace(config, rounds=5)
    fedbnn.run(config, tmp_path / "more")
    fedbnn.run(whole, tmp_path / "more", resume=True)
    fedbnn.run(whole, tmp_path / "whole")
    assert told(tmp_path / "more") == told(tmp_path / "whole")


def test_a_stop_on_the_way_to_more_rounds_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out = tiny("rounds=1", "method=fedavg", "evaluation.every=2"), tmp_path / "more"
    fedbnn.run(config, out)
    before = told(out)

    def dies(path: Path, value: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the old result and the new plan
        patch.setattr("fedbnn.runs.folder.write_json", dies)
        with pytest.raises(KeyboardInterrupt):
            fedbnn.run(replace(config, rounds=3), out, resume=True)
    fedbnn.run(config, out, resume=True)
    assert told(out) == before
    with pytest.raises(KeyboardInterrupt):
        fedbnn.run(replace(config, rounds=3), out, resume=True, observer=Stops(2))
    fedbnn.run(replace(config, rounds=3), out, resume=True)
    fedbnn.run(replace(config, rounds=3), tmp_path / "whole")
    assert told(out) == told(tmp_path / "whole")


def test_a_comparison_goes_on_too(tmp_path: Path) -> None:
    config = tiny("rounds=1")
    fedbnn.compare(config, ["local", "fedavg"], tmp_path / "both")
    results = fedbnn.compare(replace(config, rounds=2), ["local", "fedavg"], tmp_path / "both", resume=True)
    assert [one["rounds"] for one in results] == [2, 2]
    again = fedbnn.compare(replace(config, rounds=2), ["local", "fedavg"], tmp_path / "whole")
    assert timeless(results) == timeless(again)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("method=fedbnn", "privacy.mechanism=dp_teacher"), "its privacy budget was divided among the rounds"),
        (("method=dp_fedavg", "methods.dp_fedavg.noise=seed"), "its noise is that of the planned rounds"),
        (("method=dp_fedavg",), "its privacy budget was divided among the rounds"),
        (("method=fedbnn", "methods.fedbnn.network_every=3"), "methods.fedbnn.network_every = 3: add a multiple"),
    ],
)
def test_where_the_plan_matters_one_line_says_why(changes: tuple[str, ...], words: str, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    config, out = small(*changes, "rounds=2"), tmp_path / "run"
    manifest = Prepared.of(config, [config.method]).manifest
    RunFolder.open(out, config.to_json(), manifest, resume=False)
    before = (out / "config.json").read_bytes()
    with pytest.raises(fedbnn.UserError) as error:
        fedbnn.run(replace(config, rounds=4), out, resume=True)
    assert f"cannot go on to more rounds (rounds was 2, is 4): {words}" in str(error.value)
    assert (out / "config.json").read_bytes() == before


def test_fewer_rounds_other_settings_and_no_resume_are_refused(tmp_path: Path) -> None:
    config, out = tiny("rounds=2"), tmp_path / "run"
    fedbnn.run(config, out)
    before = told(out)
    for other, resume, words in (
        (replace(config, rounds=1), True, "holds a run with another configuration (rounds was 2, is 1)"),
        (replace(config, rounds=3, seed=1), True, "holds a run with another configuration (seed was 0, is 1, rounds"),
        (
            replace(config, rounds=3),
            False,
            "(rounds was 2, is 3): add --resume to go on to more rounds or choose another --out",
        ),
    ):
        with pytest.raises(fedbnn.UserError) as error:
            fedbnn.run(other, out, resume=resume)
        assert words in str(error.value)
    assert told(out) == before
