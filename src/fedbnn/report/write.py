"""The page on disk."""

import os
import tempfile
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.report.load import load
from fedbnn.report.page import render

FILE_NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Writes `folder`/report.html about the run or comparison in `folder`, and returns its path.

    The file appears whole or not at all: it is written beside its place and moved there.

    Raises:
        UserError: a file is missing or broken, or the page cannot be written.
    """
    folder = Path(folder)
    page = render(load(folder)).encode("utf-8")
    target = folder / FILE_NAME
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{FILE_NAME}.", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(page)
            temporary.chmod(0o644)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; make the folder writable") from None
    return target
