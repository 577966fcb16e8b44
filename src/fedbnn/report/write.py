"""The page on disk."""

from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically
from fedbnn.report.load import load
from fedbnn.report.page import render

FILE_NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Writes `folder`/report.html about the run or comparison in `folder`, and returns its path.

    Raises:
        UserError: a file is missing or broken, or the page cannot be written.
    """
    target = Path(folder) / FILE_NAME
    page = render(load(target.parent))
    try:
        write_atomically(target, page)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; make the folder writable") from None
    return target
