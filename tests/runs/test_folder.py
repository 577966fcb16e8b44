import copy
import json
import os
import shutil

import pytest

from fedbnn.base.errors import UserError
from fedbnn.runs.folder import RunFolder, differences, read_json, write_atomically, write_json

CONFIG = {"method": "fedbnn", "rounds": 3, "data": {"source": "digits", "alignment": 20}}
MANIFEST = {"dataset": "digits", "fingerprint": "abc"}


def everything_in(path):
    """Every file below `path` with its bytes and its time of change."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None)
        for file in sorted(path.rglob("*"))
    }


def opened(path, *, config=CONFIG, manifest=MANIFEST, resume=False):
    return RunFolder.open(path, config, manifest, resume=resume)


def refused(path, **how):
    """The text of the refusal, which must leave everything as it was."""
    before = everything_in(path) if path.is_dir() else path.read_bytes()
    with pytest.raises(UserError) as caught:
        opened(path, **how)
    assert (everything_in(path) if path.is_dir() else path.read_bytes()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    return opened(tmp_path / "runs" / "deep" / "mine")


def test_a_new_folder(folder):
    assert read_json(folder.path / "config.json") == CONFIG
    assert read_json(folder.path / "partition.json") == MANIFEST
    assert not folder.finished
    assert folder.metrics() == []
    assert folder.latest_checkpoint() is None


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    assert read_json(opened(tmp_path / "empty").path / "config.json") == CONFIG


def test_the_same_run_with_resume(folder):
    folder.append([{"round": 0, "client": 0}])
    before = everything_in(folder.path)
    again = opened(folder.path, resume=True)
    assert everything_in(folder.path) == before
    assert again.metrics() == [{"round": 0, "client": 0}]


def test_resume_where_nothing_is_yet(tmp_path):
    assert opened(tmp_path / "new", resume=True).latest_checkpoint() is None


def test_the_same_run_without_resume(folder):
    assert "already holds this run (unfinished): add --resume" in refused(folder.path)
    write_json(folder.path / "result.json", {})
    assert folder.finished
    assert "already holds this run (finished): add --resume" in refused(folder.path)


@pytest.mark.parametrize("resume", [False, True])
def test_another_configuration(folder, resume):
    other = copy.deepcopy(CONFIG)
    other["data"]["alignment"] = 30
    text = refused(folder.path, config=other, resume=resume)
    assert "another configuration (data.alignment was 20, is 30)" in text


def test_a_key_that_was_not_there(folder):
    assert "seed was None, is 4" in refused(folder.path, config=CONFIG | {"seed": 4}, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_other_data(folder, resume):
    text = refused(folder.path, manifest=MANIFEST | {"fingerprint": "abd"}, resume=resume)
    assert "other data with the same configuration" in text


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else(tmp_path, resume):
    (tmp_path / "thesis.tex").write_text("do not touch")
    assert "is not empty and holds no run" in refused(tmp_path, resume=resume)


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_instead_of_a_folder(tmp_path, resume):
    file = tmp_path / "file"
    file.write_text("do not touch")
    assert "is a file" in refused(file, resume=resume)


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("do not touch")
    with pytest.raises(UserError):
        opened(tmp_path / "file" / "run")


def test_a_configuration_that_cannot_be_read(folder):
    (folder.path / "config.json").write_text('{"method": ')
    assert "config.json cannot be read" in refused(folder.path, resume=True)


def test_differences():
    before = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "e": 1, "f": 1}
    assert differences(before, before) == ""
    assert differences(before, {**before, "b": {"c": [1], "d": "x"}}) == "b.c was [1, 2], is [1]"
    assert differences(before, {**before, "b": 3}) == "b was {'c': [1, 2], 'd': 'x'}, is 3"
    assert differences(before, {}) == (
        "a was 1, is None, b was {'c': [1, 2], 'd': 'x'}, is None, e was 1, is None and 1 more"
    )


# Writing


def test_write_atomically(tmp_path):
    file = tmp_path / "a.json"
    write_atomically(file, "one")
    write_atomically(file, "two ü")
    assert file.read_text(encoding="utf-8") == "two ü"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch, broken):
    file = tmp_path / "a.json"
    write_atomically(file, "old")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    if broken == "replace":
        monkeypatch.setattr(type(file), "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    monkeypatch.undo()
    write_atomically(file, "new")
    assert file.read_text() == "new"


def test_what_is_not_json_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert read_json(file) == {"a": 1}


# Metrics


def lines(*rounds):
    return [{"round": number, "client": client} for number in rounds for client in range(2)]


def test_metrics_are_appended(folder):
    folder.append(lines(0))
    folder.append(lines(1, 2))
    assert folder.metrics() == lines(0, 1, 2)


def test_rounds_after_the_checkpoint_are_forgotten(folder):
    folder.append(lines(0, 1, 2))
    folder.forget_after(1)
    assert folder.metrics() == lines(0, 1)
    folder.forget_after(-1)
    assert folder.metrics() == []


@pytest.mark.parametrize("torn", ['{"round": 2, "cl', '{"round"', "{", '{"round": 2, "client": 0'])
def test_a_torn_last_line_is_forgotten(folder, torn):
    folder.append(lines(0, 1))
    with folder.metrics_file.open("a") as file:
        file.write(torn)
    folder.forget_after(5)
    assert folder.metrics() == lines(0, 1)
    folder.append(lines(2))
    assert folder.metrics() == lines(0, 1, 2)


def test_forgetting_where_there_is_nothing(folder):
    folder.forget_after(3)
    assert not folder.metrics_file.exists()


# Checkpoints


def content(number):
    def write(folder):
        (folder / "server.bin").write_bytes(bytes([number]) * 100)
        (folder / "client.bin").write_bytes(bytes([number + 100]) * 100)

    return write


def saved(folder):
    return sorted(path.name for path in folder.checkpoints.iterdir())


@pytest.fixture
def two(folder):
    for number in range(3):
        folder.save_checkpoint(number, 1.5 * number, content(number))
    return folder


def assert_is(checkpoint, number):
    assert checkpoint.round_number == number
    assert checkpoint.seconds == 1.5 * number
    assert (checkpoint.folder / "server.bin").read_bytes() == bytes([number]) * 100


def test_a_checkpoint_comes_back(folder):
    folder.save_checkpoint(7, 10.5, content(7))
    checkpoint = folder.latest_checkpoint()
    assert_is(checkpoint, 7)
    assert checkpoint.problems == ()


def test_only_two_are_kept(two):
    assert saved(two) == ["round-00001", "round-00002"]
    assert_is(two.latest_checkpoint(), 2)


def test_a_round_saved_again_is_replaced(two):
    two.save_checkpoint(2, 3.0, content(2))
    assert saved(two) == ["round-00001", "round-00002"]
    assert_is(two.latest_checkpoint(), 2)


def test_a_checkpoint_that_was_never_finished_is_ignored(two):
    def fails(folder):
        content(9)(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two.save_checkpoint(3, 4.5, fails)
    assert (two.checkpoints / ".new" / "server.bin").exists()
    checkpoint = two.latest_checkpoint()
    assert_is(checkpoint, 2)
    assert checkpoint.problems == ()
    (two.checkpoints / ".new" / "leftover.bin").write_bytes(b"x")
    two.save_checkpoint(3, 4.5, content(3))
    assert saved(two) == ["round-00002", "round-00003"]
    assert_is(two.latest_checkpoint(), 3)
    assert not (two.checkpoints / "round-00003" / "leftover.bin").exists()


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


DAMAGE = {
    "one byte flipped": (lambda f: flip(f / "server.bin"), "server.bin does not match its checksum"),
    "truncated": (lambda f: os.truncate(f / "client.bin", 99), "client.bin does not match its checksum"),
    "grown": (lambda f: (f / "client.bin").write_bytes(bytes(101)), "client.bin does not match its checksum"),
    "file deleted": (lambda f: (f / "client.bin").unlink(), "No such file"),
    "manifest deleted": (lambda f: (f / "manifest.json").unlink(), "No such file"),
    "manifest truncated": (lambda f: os.truncate(f / "manifest.json", 30), "Expecting|Unterminated|delimiter"),
    "manifest empty": (lambda f: (f / "manifest.json").write_text(""), "Expecting value"),
    "manifest of another kind": (lambda f: (f / "manifest.json").write_text("[]"), "list indices"),
    "manifest not text": (lambda f: (f / "manifest.json").write_bytes(b"\xff\xff"), "decode"),
    "all deleted": (lambda f: [file.unlink() for file in f.iterdir()], "No such file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_checkpoint_falls_back_to_the_one_before(two, damage):
    hurt, why = DAMAGE[damage]
    hurt(two.checkpoints / "round-00002")
    checkpoint = two.latest_checkpoint()
    assert_is(checkpoint, 1)
    [problem] = checkpoint.problems
    assert problem.startswith("checkpoint round-00002 is corrupt (")
    assert any(part in problem for part in why.split("|"))


@pytest.mark.parametrize(
    "wrong", [{"round": 3}, {"round": "2"}, {"round": None}, {"seconds": "x"}, {"sha256": []}, {"sha256": {}}]
)
def test_a_manifest_that_does_not_fit_falls_back_too(two, wrong):
    manifest = two.checkpoints / "round-00002" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | wrong))
    assert_is(two.latest_checkpoint(), 1)


def test_all_corrupt(two):
    for name in saved(two):
        flip(two.checkpoints / name / "server.bin")
    with pytest.raises(UserError, match=r"round-00002 is corrupt.*round-00001 is corrupt.*no good one is left: delete"):
        two.latest_checkpoint()


def test_a_corrupt_checkpoint_is_replaced_when_its_round_comes_again(two):
    flip(two.checkpoints / "round-00002" / "server.bin")
    two.save_checkpoint(2, 3.0, content(2))
    checkpoint = two.latest_checkpoint()
    assert_is(checkpoint, 2)
    assert checkpoint.problems == ()


def test_checkpoints_can_be_moved_with_their_run(two, tmp_path):
    shutil.move(two.path, tmp_path / "moved")
    assert_is(opened(tmp_path / "moved", resume=True).latest_checkpoint(), 2)


def test_two_processes_cannot_work_on_one_run(folder):
    again = RunFolder(folder.path)
    with folder.locked(), pytest.raises(UserError, match="is in use by another process"), again.locked():
        pytest.fail("the second lock was given")
    with again.locked():
        pass
