"""A disk that fills up, or can no longer be written: one line, nothing half-written, and the run goes on afterwards."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import fedbnn
from fedbnn.base import tensors
from fedbnn.base.errors import UserError
from fedbnn.base.files import append
from tests.runs.run_sample import timeless, tiny

CONFIG = tiny("method=fedavg", "rounds=1")
FULL = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


class Failing:
    """The same call, which fails from its `last` time on; a write leaves half of its bytes."""

    def __init__(self, call: Callable[..., Any], error: Exception, last: int = -1) -> None:
        self.call, self.error, self.last, self.count = call, error, last, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.count += 1
        if self.call is os.open and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
            self.count -= 1  # reading goes on
        elif 0 <= self.last < self.count:
            if self.call is REAL_WRITE:
                self.call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise self.error
        return self.call(*arguments, **named)


REAL_WRITE, REAL_OPEN = os.write, os.open
WAYS: dict[str, tuple[Any, str, Callable[..., Any], Exception]] = {
    "full": (os, "write", REAL_WRITE, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "full for tensors": (tensors, "save_file", tensors.save_file, FULL),
    "read-only": (os, "open", REAL_OPEN, OSError(errno.EROFS, os.strerror(errno.EROFS))),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_told_in_a_line_and_the_run_goes_on(way: str, tmp_path: Path) -> None:
    module, name, call, error = WAYS[way]
    with pytest.MonkeyPatch.context() as patch:
        counting = Failing(call, error)
        patch.setattr(module, name, counting)
        expected = timeless(fedbnn.run(CONFIG, tmp_path / "straight"))
    for last in sorted({0, 1, counting.count // 2, counting.count - 2}):
        out = tmp_path / str(last)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, Failing(call, error, last))
            with pytest.raises(UserError, match=r"No space left on device|Read-only file system") as caught:
                fedbnn.run(CONFIG, out)
        assert "\n" not in str(caught.value)
        assert "report.html" in str(caught.value) or not (out / "result.json").exists()
        assert not [path for path in out.rglob("*") if path.name.endswith((".new", ".tmp"))]
        assert timeless(fedbnn.run(CONFIG, out, resume=True)) == expected


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines"
    append(file, "one\n")
    monkeypatch.setattr(os, "write", Failing(REAL_WRITE, OSError(errno.ENOSPC, "full"), 0))
    with pytest.raises(OSError, match="full"):
        append(file, "another\n")
    monkeypatch.undo()
    append(file, "two\n")
    assert file.read_text() == "one\ntwo\n"
