"""Inputs that once broke a reader, each by what it was; what drew them is in `targets`."""

import io
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import fedbnn
from fedbnn.data import huggingface_source, safe_pickle
from fedbnn.data.cifar_source import LAYOUTS, CifarFiles
from fedbnn.data.heart_source import HOSPITALS, HeartFiles
from fedbnn.data.images import read_image
from fedbnn.data.npz_source import load_npz
from fedbnn.deployment.state import SiteState
from fedbnn.federation.message import Message, Numbers, check
from fedbnn.reproduce.plan import load as load_plan
from fedbnn.reproduce.write import known_runs, write_page
from fedbnn.runs.collection import compare_runs
from fedbnn.runs.config import as_of_today, load_config
from fedbnn.runs.folder import RunFolder
from fedbnn.runs.standing import as_json, standing
from tests.data.original_files import heart_line, python2_pickle
from tests.fuzz import corpus
from tests.fuzz.memory import little_memory
from tests.fuzz.targets.data import RECORDS, everything
from tests.fuzz.targets.kept import forge
from tests.fuzz.targets.runs import ROOT
from tests.fuzz.targets.target import outcome
from tests.runs.run_sample import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    fedbnn.run(tiny("rounds=1", "method=fedavg"), folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# Run folders


@pytest.mark.parametrize("text", ["[]", "1", "null", '"a"', "{}"])
def test_a_configuration_that_is_none(run: Path, text: str) -> None:
    stored, manifest = (json.loads((run / name).read_text()) for name in ("config.json", "partition.json"))
    other = Path(shutil.copytree(run, run.parent / "other"))
    (run / "config.json").write_text(text)
    words = outcome(lambda: RunFolder.check(run, stored, manifest, resume=True, today=as_of_today))
    assert "holds a run with another configuration" in words
    assert compare_runs([run, other]).runs[0].state == "unreadable"


@pytest.mark.parametrize("text", ["[]", "1", "null"])
def test_a_partition_that_is_none(run: Path, text: str) -> None:
    (run / "partition.json").write_text(text)
    assert "the data are not those of the run" in outcome(lambda: fedbnn.load(run).clients)


@pytest.mark.parametrize("per_client", [1, [], None, {"name": 1}, {"name": ["a", "b"], "nll": [1.0]}])
def test_scores_that_are_none(run: Path, per_client: Any) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "per_client": per_client}))
    assert "per_client" in outcome(fedbnn.load(run).scores)
    (run / "result.json").write_text("[]")
    assert "must hold a JSON object" in outcome(fedbnn.load(run).scores)


DAMAGED = [b"\xff\xfe", b"[]", b"1", b'{"client": 1}', b'{"round": null}', b'{"round": "1"}', b"[" * 100_000]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:20]))
def test_a_damaged_line_of_metrics_is_told_unless_it_is_the_last(run: Path, line: bytes) -> None:
    folder = RunFolder(run)
    good = folder.metrics_file.read_bytes()
    folder.metrics_file.write_bytes(good + line)
    folder.forget_after(1)
    assert folder.metrics_file.read_bytes() == good
    folder.metrics_file.write_bytes(line + b"\n" + good)
    assert "metrics.jsonl: line 1 is damaged" in outcome(lambda: folder.forget_after(1))
    folder.forget_after(-1)  # nothing of it is needed
    assert folder.metrics() == []


SERVER_STATES = {
    "empty": b"",
    "text": b"hello",
    "no tensors": (2).to_bytes(8, "little") + b"{}",
    "a header that is too long": (2**62).to_bytes(8, "little") + b"{}",
    "times that are none": b'{"__metadata__":{"refused":"[]"}}',
    "times that are not JSON": b'{"__metadata__":{"refused":"{"}}',
    "deep": b'{"__metadata__":{"refused":"' + b"[" * 100_000 + b'"}}',
}


@pytest.mark.parametrize("name", SERVER_STATES)
def test_a_state_of_the_server_that_is_none(run: Path, name: str) -> None:
    data = SERVER_STATES[name]
    data = len(data).to_bytes(8, "little") + data if data.startswith(b"{") else data
    forge(run / "checkpoint" / "round-00001", "server.safetensors", data)
    assert outcome(lambda: fedbnn.load(run).predict(0, np.zeros((1, 1, 8, 8), np.float32)))


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "notes.jsonl", "failure.json"])
def test_a_device_or_a_pipe_in_the_place_of_a_file(run: Path, name: str) -> None:
    """As an archive may bring them: what has no end is not read."""
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("/dev/zero")
    with little_memory(2**29):
        assert json.loads(as_json([standing(run)]))
    (run / name).unlink()
    os.mkfifo(run / name)
    assert json.loads(as_json([standing(run)]))
    if name == "result.json":
        assert "it is not a file" in outcome(fedbnn.load(run).scores)


def test_settings_without_end() -> None:
    with little_memory(2**29):
        assert "/dev/zero: cannot be read as TOML: it has more than" in outcome(lambda: load_config(Path("/dev/zero")))


# A site's own notes, and results of studies


def test_a_damaged_line_of_a_sites_metrics_stays_and_is_in_nobodys_way(tmp_path: Path) -> None:
    state = SiteState(tmp_path, "key")
    state.path.mkdir(parents=True)
    file = state.path / "metrics.jsonl"
    for line in (*DAMAGED, b"{}"):
        file.write_bytes(line + b"\n" + b'{"round": 1, "kind": "update", "seconds": 1.0}\n')
        state.record(1, "update", {"seconds": 2.0})
        assert file.read_bytes() == line + b"\n" + b'{"round": 1, "kind": "update", "seconds": 2.0}\n'


def studies() -> list[Any]:
    good = json.loads((ROOT / "results" / "cpu" / "pretrained.json").read_text())
    entry = good["entries"][0]
    return [
        {**good, "entries": 1},
        {**good, "entries": [{}]},
        {**good, "entries": [{**entry, "row": {}}]},
        {**good, "entries": [{**entry, "runs": [{}]}]},
        {**good, "kind": "none"},
        {**good, "columns": [None]},
        {key: value for key, value in good.items() if key != "row_titles"},
    ]


@pytest.mark.parametrize("number", range(len(studies())))
def test_a_study_that_is_none(tmp_path: Path, number: int) -> None:
    plan = load_plan(ROOT / "experiments" / "cpu")
    (tmp_path / "pretrained.json").write_text(json.dumps(studies()[number]))
    assert "pretrained.json: no study that this version can read" in outcome(lambda: write_page(tmp_path, plan))
    outcome(lambda: known_runs(tmp_path, plan, "pretrained"))
    (tmp_path / "pretrained.json").write_text("[]")
    write_page(tmp_path, plan)  # as if there were none


def test_a_study_with_titles_of_any_kind(tmp_path: Path) -> None:
    plan = load_plan(ROOT / "experiments" / "cpu")
    good = json.loads((ROOT / "results" / "cpu" / "pretrained.json").read_text())
    (tmp_path / "pretrained.json").write_text(json.dumps({**good, "title": 3, "reading": "\ud800"}))
    write_page(tmp_path, plan)
    assert "## 3\n\n\ufffd" in (tmp_path / "README.md").read_text("utf-8")


# Records


@pytest.mark.parametrize("names", [b"x", 3, [3], [b"\xff"]])
def test_names_of_classes_that_are_none(tmp_path: Path, names: Any) -> None:
    files = CifarFiles(tmp_path, LAYOUTS["cifar10"][1], "data set 'cifar10'")
    (tmp_path / "batches.meta").write_bytes(python2_pickle({b"label_names": names}))
    assert "names of classes" in outcome(files.names)
    (tmp_path / "batches.meta.txt").write_bytes(b"cat\n\xff\n")
    binary = CifarFiles(tmp_path, LAYOUTS["cifar10"][0], "data set 'cifar10'")
    assert "names of classes" in outcome(binary.names)


@pytest.mark.parametrize("cell", ["1e308", "-1e308", "nan", "inf"])
def test_measurements_that_no_patient_has(tmp_path: Path, cell: str) -> None:
    line = heart_line(np.random.default_rng(0), True)
    for name in HOSPITALS.values():
        (tmp_path / name).write_text(f"{line}\n{cell},{line.partition(',')[2]}\n")
    words = outcome(lambda: HeartFiles(tmp_path, "data set 'heart'").read("train"))
    assert f"line 2: age = {cell}; a number below 1e+38 is needed" in words


def test_no_program_is_started_to_read_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has others read PostScript, whatever the ending of its file says."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    stream = io.BytesIO()
    Image.new("RGB", (3, 3)).save(stream, "EPS")
    assert "a.png cannot be read" in outcome(lambda: read_image(io.BytesIO(stream.getvalue()), "a.png", "data.path"))


def test_a_shape_with_a_zero_in_it_is_not_multiplied_out(tmp_path: Path) -> None:
    path = tmp_path / "records.npz"
    header = corpus.npy_header(corpus.described(shape=f"(0, {2**62}, {2**62})"))
    path.write_bytes(corpus.archive({f"{name}.npy": header for name in RECORDS}))
    assert "x_train cannot be read (it claims shape" in outcome(lambda: load_npz(str(path)))
    np.savez(path, empty=np.zeros((0, 28, 28), np.float32))
    everything(path)


def test_a_name_of_thousands_of_signs_is_not_repeated_as_a_whole() -> None:
    said = outcome(lambda: check(Message({"x" * 5000: torch.zeros(1)}), {"phi": Numbers((1,))}))
    assert len(said) < 500
    assert "agreed were ['phi']" in said


def test_a_pickle_that_keeps_something_under_a_large_number() -> None:
    """Python's loader makes room for all numbers up to it: gigabytes for a few bytes."""
    content = pickle.dumps({b"label_names": []}, protocol=2)
    assert safe_pickle.load(content) == {"label_names": []}
    large = content.replace(b"}q\x00", b"}r" + (50_000_000).to_bytes(4, "little"))
    assert large != content
    with little_memory(2**26), pytest.raises(safe_pickle.BadPickle, match="under the number 50000000"):
        safe_pickle.load(large)


def test_an_image_of_more_pixels_than_anybody_learns_from(tmp_path: Path) -> None:
    Image.new("1", (8192, 4096)).save(tmp_path / "large.png")
    with pytest.raises(fedbnn.UserError, match="has 8192 x 4096 pixels; at most 16777216"):
        read_image(tmp_path / "large.png", "large.png", "here")


def test_offsets_that_point_nowhere(tmp_path: Path) -> None:
    """Of texts in an .arrow file: whoever looks there ends the process."""
    table, file = pa.table({"label": [0, 1], "text": ["abc", "def"]}), tmp_path / "some.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    ends, nowhere = (np.array([0, 3, end], dtype="<i4").tobytes() for end in (6, 2_130_706_442))
    assert file.read_bytes().count(ends) == 1
    file.write_bytes(file.read_bytes().replace(ends, nowhere))
    with pytest.raises(fedbnn.UserError, match=r"(?i)offset"):
        huggingface_source._splits(file, "here")
