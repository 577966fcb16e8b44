"""One table for all places: what stands in it is decided here, how it looks where it is shown.

Three renderings: `markdown` below, the macro `table.html.j2`, and `fedbnn.cli.tables` for the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["", "more", "paper"]
"""A row of its own, one more model of the method above, or what the paper has, in italics."""


@dataclass(frozen=True)
class Cell:
    """A text, or a number in its unit."""

    text: str  # for a mean over seeds, the mean
    deviation: str = ""  # standard deviation over seeds, if that is told
    sign: str = ""  # the unit of both
    best: bool = False  # of its column
    model: str = ""  # in a row's first cell, which of a method's models the row is of

    def __str__(self) -> str:
        number = f"{self.text} ± {self.deviation}{self.sign}" if self.deviation else f"{self.text}{self.sign}"
        return f"{number} {self.model}" if self.model else number


@dataclass(frozen=True)
class Column:
    """A heading, and how what stands below it is set."""

    title: str
    words: bool = False  # words to the left instead of numbers to the right
    meaning: str = ""  # of the title, in a few more words
    brief: str = ""  # the title where room is scarce, if that is another one
    style: str = ""  # CSS class of words


@dataclass(frozen=True)
class Row:
    """As many cells as there are columns; the first one names the row."""

    cells: list[Cell]
    kind: Kind = ""


@dataclass(frozen=True)
class Table:
    columns: list[Column]
    rows: list[Row]
    caption: str = ""


def row(*cells: Cell | str, kind: Kind = "") -> Row:
    return Row([cell if isinstance(cell, Cell) else Cell(cell) for cell in cells], kind)


def table(titles: Sequence[str], rows: Sequence[Row], caption: str = "", words: int = 1) -> Table:
    """So many columns of words, then columns of numbers."""
    return Table([Column(title, words=at < words) for at, title in enumerate(titles)], [*rows], caption)


def markdown(one: Table) -> str:
    """The table with its caption above it."""
    lines = [[column.title for column in one.columns], *([_marked(c, r.kind) for c in r.cells] for r in one.rows)]
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    caption = [f"**{one.caption}**", ""] if one.caption else []
    return "\n".join([*caption, head, "|" + "---|" * len(one.columns), *body])


def _marked(cell: Cell, kind: str) -> str:
    mark = "*" if kind == "paper" and cell.text else "**" if cell.best else ""
    return f"{mark}{cell}{mark}"
