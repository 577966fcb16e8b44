"""The tables of a data check, for the terminal and for its page."""

from fedbnn.data.check import DataCheck
from fedbnn.report.figures import MISSING
from fedbnn.report.table import Table, row, table

MOST_CLASSES = 8


def clients(check: DataCheck) -> Table:
    """One row a client: how much of what it holds."""
    names = list(check.clients[0].classes)
    shown = names[:MOST_CLASSES] if len(names) > MOST_CLASSES + 1 else names
    rows = []
    for one in check.clients:
        counts = [str(one.classes[name]) for name in shown]
        if len(shown) < len(names):
            counts.append(str(sum(one.classes[name] for name in names[len(shown) :])))
        gaps = str(sum(one.missing.values())) if check.columns else MISSING
        own = MISSING if one.tested is None else str(one.tested)
        rows.append(row(one.name, str(one.records), own, *counts, gaps, str(one.duplicates), str(one.public)))
    others = [f"{len(names) - len(shown)} others"] if len(shown) < len(names) else []
    titles = ["client", "records", "for testing", *shown, *others, "missing values", "duplicates", "also public"]
    counted = "; records of each class" if names else ""
    caption = f"{check.source}: {check.features} features, {check.alignment} public records{counted}"
    return table(titles, rows, caption)


def columns(check: DataCheck) -> Table:
    """One row a column of a table."""
    rows = [
        row(one.name, one.kind, one.looks, str(one.missing), f"{100 * one.different:.0f}%") for one in check.columns
    ]
    return table(["column", "read as", "may tell who it is", "missing", "different"], rows, words=3)
