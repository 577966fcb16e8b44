"""What a page is made of, before it is Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fedbnn.report.table import Table, markdown


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
    blocks: list[Table | Figure]
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        return [block for block in self.blocks if isinstance(block, Table)]

    @property
    def figures(self) -> list[Figure]:
        return [block for block in self.blocks if isinstance(block, Figure)]

    def markdown(self, level: int = 2) -> str:
        blocks = [
            markdown(one) if isinstance(one, Table) else f"![{one.caption}]({one.name}.svg)" for one in self.blocks
        ]
        parts = [f"{'#' * level} {self.title}", self.reading, *blocks, *self.notes]
        return "\n\n".join(filter(None, parts)) + "\n"


def markdown_page(title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    listed = "\n".join(f"- {sentence}" for sentence in about)
    return "\n".join([f"# {title}\n", f"{listed}\n", *(section.markdown() for section in sections)])
