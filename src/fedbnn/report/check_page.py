"""The page of a data check: one self-contained file."""

from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically
from fedbnn.data.check import DataCheck
from fedbnn.report import check_tables
from fedbnn.report.charts import holdings
from fedbnn.report.page import environment


def render(check: DataCheck) -> str:
    """The whole page as HTML."""
    context = {
        "check": check,
        "clients": check_tables.clients(check),
        "columns": check_tables.columns(check),
        "legend": holdings.legend(check),
        "holdings": holdings.holdings(check),
        "gaps": holdings.gaps(check) if check.columns else "",
    }
    return environment("fedbnn.report").get_template("check.html.j2").render(context)


def check_out(out: Path) -> None:
    """Refuse, before any work, a file that `write_check` could not write."""
    if out.suffix != ".html":
        raise UserError(f"--out {out}: its name must end in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def write_check(check: DataCheck, out: Path) -> None:
    try:
        write_atomically(out, render(check))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from None
