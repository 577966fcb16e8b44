"""Downloads from a real server on this machine: right, wrong, cut short, absent; and what is said where it fails."""

import hashlib
import http.server
import json
import threading

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.cli import app as cli
from fedbnn.data import DataSettings, load_dataset
from fedbnn.data import download as downloads
from fedbnn.data.download import REMOTES, Remote
from fedbnn.data.known import KNOWN
from tests.data import original_files as original

TRAIN, TEST = original.grey(40), original.grey(20, seed=1)
COLOUR = (original.colour(50), original.colour(20, seed=1))


@pytest.fixture
def web(tmp_path):
    """A folder that a server shows, and its address."""
    shown = tmp_path / "web"
    shown.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(shown))

        def do_GET(self):
            if "cut" not in self.path:
                return super().do_GET()
            content = (shown / self.path.strip("/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            return None

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield shown, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache, and no other folder."""
    monkeypatch.delenv("FEDBNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedbnn"


def offer(web, monkeypatch, name, **changes):
    """Let this data set's files, which the web folder holds, be the ones to fetch; `changes` are to the first."""
    shown, address = web
    remotes = [
        Remote(f"{address}/{path.name}", path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(shown.iterdir())
    ]
    first = {"url": remotes[0].url, "size": remotes[0].size, "sha256": remotes[0].sha256} | changes
    monkeypatch.setitem(downloads.REMOTES, name, (Remote(**first), *remotes[1:]))
    return remotes


def load(name):
    return load_dataset(DataSettings(source=name))


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_are_fetched_once(web, cache, monkeypatch, name):
    original.write_idx(web[0], {"train": TRAIN, "test": TEST}, compressed=True)
    offer(web, monkeypatch, name)
    first = load(name)
    np.testing.assert_array_equal(first.x_train[:, 0], TRAIN[0].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(first.y_test, TEST[1])
    assert files_in(cache) == [f"{name}/{remote.name}" for remote in downloads.REMOTES[name]]
    for path in web[0].iterdir():
        path.unlink()
    assert load(name).fingerprint == first.fingerprint


def test_archives_are_unpacked(web, cache, monkeypatch):
    files = original.cifar10_binary(*COLOUR)
    original.write_archive(web[0] / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    offer(web, monkeypatch, "cifar10")
    data = load("cifar10")
    np.testing.assert_array_equal(data.x_train, COLOUR[0][0].astype(np.float32) / np.float32(255))
    assert files_in(cache) == sorted(f"cifar10/cifar-10-batches-bin/{name}" for name in files)


def test_hearts_are_fetched_beside_what_is_there(web, cache, monkeypatch):
    original.write_heart(web[0])
    offer(web, monkeypatch, "heart")
    (cache / "heart").mkdir(parents=True)
    (cache / "heart" / "processed.va.data").write_text("an older one")
    (cache / "heart" / "note.txt").write_text("mine")
    assert load("heart").classes == 2
    assert files_in(cache) == ["heart/note.txt", *(f"heart/{name}" for name in original.HEART_FILES)]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"sha256": "0" * 64}, "the checksum is wrong"),
        ({"size": 10**6}, "bytes came where 1000000 were expected"),
        ({"size": 10}, "more than 10 bytes came where 10 were expected"),
        ({"url": "ADDRESS/absent.gz"}, "HTTP Error 404"),
        ({"url": "ADDRESS/cut-t10k-images-idx3-ubyte.gz"}, "were expected"),
        ({"url": "http://127.0.0.1:1/x.gz"}, "Connection refused"),
    ],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(web, cache, monkeypatch, changes, fact):
    shown, address = web
    original.write_idx(shown, {"train": TRAIN, "test": TEST}, compressed=True)
    changes = {key: value.replace("ADDRESS", address) if key == "url" else value for key, value in changes.items()}
    if "cut" in str(changes):
        whole = (shown / "t10k-images-idx3-ubyte.gz").read_bytes()
        (shown / "cut-t10k-images-idx3-ubyte.gz").write_bytes(whole)
    offer(web, monkeypatch, "mnist", **changes)
    with pytest.raises(UserError) as caught:
        load("mnist")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.source = 'mnist': there are no files of it, and the download failed (http")
    assert fact in text
    assert "put mnist.npz (x_train, y_train, x_test, y_test) into a folder, or train-images-idx3-ubyte" in text
    assert "set FEDBNN_DATA to that folder" in text
    assert str(cache) in text
    assert files_in(cache) == []
    assert [path.name for path in cache.rglob("*")] == ["mnist"]


def test_a_failure_in_the_middle_keeps_earlier_files_out(web, cache, monkeypatch):
    original.write_idx(web[0], {"train": TRAIN, "test": TEST}, compressed=True)
    remotes = offer(web, monkeypatch, "mnist")
    broken = Remote(remotes[-1].url, remotes[-1].size, "0" * 64)
    monkeypatch.setitem(downloads.REMOTES, "mnist", (*remotes[:-1], broken))
    with pytest.raises(UserError, match="the checksum is wrong"):
        load("mnist")
    assert files_in(cache) == []


def test_a_cache_that_cannot_be_made(tmp_path, cache, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        load("mnist")


def test_every_known_data_set_can_be_fetched():
    assert REMOTES.keys() == KNOWN.keys()
    for remotes in REMOTES.values():
        for remote in remotes:
            assert remote.url.startswith(("https://", "http://"))
            assert len(bytes.fromhex(remote.sha256)) == 32
            assert remote.size > 0


# --- `fedbnn datasets`


def listed(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["datasets", *arguments])
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


def test_datasets_says_what_is_where(cache, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "data"
    original.write_idx(folder / "mnist", {"train": TRAIN, "test": TEST})
    original.write_heart(cache / "heart")
    np.savez(folder / "fashion_mnist_test.npz", x_test=TEST[0], y_test=TEST[1])
    (folder / "cifar100.npz").write_bytes(b"not an archive")
    monkeypatch.setenv("FEDBNN_DATA", str(folder))
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = listed(capsys, "--json")
    assert (code, err) == (0, "")
    entries = {entry["source"]: entry for entry in json.loads(out)}
    assert {name: entry["present"] for name, entry in entries.items()} == {
        "digits": True,
        "diabetes": True,
        "mnist": True,
        "fashion_mnist": False,
        "cifar10": False,
        "cifar100": False,
        "heart": True,
        "npz": False,
        "csv": False,
        "parquet": False,
        "huggingface": False,
        "folder": False,
    }
    assert entries["mnist"]["where"] == str(folder / "mnist")
    assert entries["fashion_mnist"]["where"] == f"test half only: {folder / 'fashion_mnist_test.npz'}"
    assert entries["cifar10"]["where"] == "download on first use, 170 MB"
    assert entries["cifar10"]["download_mb"] == pytest.approx(170.05)
    assert "is not an npz archive" in entries["cifar100"]["where"]
    assert entries["heart"]["where"] == str(cache / "heart")
    assert entries["csv"]["download_mb"] is None
    code, out, err = listed(capsys)
    assert (code, err) == (0, "")
    flat = "".join(out.split())
    for entry in entries.values():
        assert "".join(entry["where"].split()) in flat


def test_datasets_reads_no_records(cache, tmp_path, monkeypatch, capsys):
    """Files of the right names are enough to be listed: whether they are damaged shows when they are read."""
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (cache / "mnist").mkdir(parents=True, exist_ok=True)
        (cache / "mnist" / name).write_bytes(b"")
    (cache / "cifar-10-python.tar.gz").write_bytes(b"")
    entries = {entry["source"]: entry for entry in json.loads(listed(capsys, "--json")[1])}
    assert entries["cifar10"]["present"]
    assert not entries["mnist"]["present"]
    (cache / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"")
    entries = {entry["source"]: entry for entry in json.loads(listed(capsys, "--json")[1])}
    assert entries["mnist"]["present"]


def test_datasets_refuses_a_folder_that_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDBNN_DATA", str(tmp_path / "nowhere"))
    code, out, err = listed(capsys)
    assert (code, out) == (2, "")
    assert "is not a folder" in err
