"""Sections as Markdown."""

from collections.abc import Sequence

from fedbnn.reproduce.blocks import Figure, Grid, Line, Number, Section


def section(found: Section, level: int = 2) -> str:
    parts = [f"{'#' * level} {found.title}"]
    if found.reading:
        parts.append(found.reading)
    for block in found.blocks:
        parts.append(_grid(block) if isinstance(block, Grid) else _figure(block))
    parts += [note for note in found.notes if note]
    return "\n\n".join(parts) + "\n"


def page(title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    listed = "\n".join(f"- {sentence}" for sentence in about)
    return "\n".join([f"# {title}\n", f"{listed}\n", *(section(one) for one in sections)])


def _grid(grid: Grid) -> str:
    head = [f"| {grid.corner} | {' | '.join(grid.heads)} |", "|---|" + "---|" * len(grid.heads)]
    lines = [
        f"| {_label(line)} | {' | '.join(_number(cell, line.paper) for cell in line.cells)} |" for line in grid.lines
    ]
    caption = [f"**{grid.caption}**", ""] if grid.caption else []
    return "\n".join([*caption, *head, *lines])


def _label(line: Line) -> str:
    return f"*{line.label}*" if line.paper else line.label


def _number(cell: Number, paper: bool) -> str:
    if paper:
        return f"*{cell.text}*" if cell.text else ""
    return f"**{cell.text}**" if cell.best else cell.text


def _figure(figure: Figure) -> str:
    return f"![{figure.caption}]({figure.name}.svg)"
