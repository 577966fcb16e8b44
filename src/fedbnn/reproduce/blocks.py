"""What a page is made of, before it is Markdown or HTML."""

from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Number:
    """A cell of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Line:
    """A row of a table: ours, or, in italics, the paper's."""

    label: str
    cells: list[Number]
    paper: bool = False
    first: bool = True  # the first of a method's rows, not a further model of it


@dataclass(frozen=True)
class Grid:
    """A table: a caption, headings, and rows."""

    caption: str
    corner: str
    heads: list[str]
    lines: list[Line]


@dataclass(frozen=True)
class Figure:
    """A chart that is also a file of this name."""

    name: str
    caption: str
    chart: Markup


@dataclass(frozen=True)
class Section:
    """A study."""

    anchor: str
    title: str
    reading: str
    blocks: list[Grid | Figure]
    notes: list[str] = field(default_factory=list)
