"""Tables in the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from fedbnn.base.wording import printable
from fedbnn.report import headline
from fedbnn.report.load import Group
from fedbnn.report.privacy import NONE, terms
from fedbnn.report.table import Cell, Row, Table
from fedbnn.report.variants import named


@dataclass(frozen=True)
class Printed:
    """A table as rich prints it; without headings where all are empty.

    Where it is too wide for the terminal, columns move together, then deviations go below the means and headings are
    shorter: rich alone would cut off digits to make it fit.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=10_000)
        for gap in (2, 1):
            wide = self._rich(gap, narrow=False)
            if Measurement.get(console, unlimited, wide).maximum <= options.max_width:
                yield wide
                return
        yield self._rich(1, narrow=True)

    def _rich(self, gap: int, *, narrow: bool) -> RichTable:
        columns = self.table.columns
        table = RichTable(
            caption=escape(printable(self.table.caption)),
            caption_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, gap, 0, 0),
            show_header=any(column.title for column in columns),
        )
        for at, column in enumerate(columns):
            title = column.brief.replace(" ", "\n") or column.title
            if narrow:
                title = title.replace("-class\naccuracy", "-\nclass\nacc.")
            side: JustifyMethod = "left" if column.words else "right"
            table.add_column(escape(printable(title)), justify=side, style="" if at else "bold", overflow="fold")
        for row in self.table.rows:
            table.add_row(*(Text(printable(_text(one, row, narrow)), "bold" if one.best else "") for one in row.cells))
        return table


def _text(cell: Cell, row: Row, narrow: bool) -> str:
    if cell.model and row.kind == "more":
        return f"  {cell.model}"
    if cell.model == "personal":
        return cell.text
    return f"{cell.text}{cell.sign}\n±{cell.deviation}" if narrow and cell.deviation else str(cell)


def comparison(groups: tuple[Group, ...]) -> Printed:
    """One row a method and scored model; its caption says what was run and what the numbers are."""
    table = headline.comparison(groups, short=True)
    first, seeds = groups[0].results[0], max(len(group.runs) for group in groups)
    parts = [
        f"{first.dataset}, {first.clients} clients, {first.rounds} rounds",
        f"scored on {first.split} records",
    ]
    if unscored := max(len(result.per_client.unscored) for group in groups for result in group.results):
        parts.append(f"{unscored} of the clients unscored for want of such records")
    if any(named(group.variants) for group in groups):
        parts.append("the model scored is the client's own where none is named")
    parts.append("bytes per client and round")
    if any(cell.best for row in table.rows for cell in row.cells):
        parts.append("the best in bold")
    if seeds > 1:
        parts.append(f"mean ± sd over {seeds} seeds")
    guarantees = [(group.method, group.guarantee) for group in groups]
    if words := terms(guarantees):
        parts.append(words + (" (the weakest of the seeds)" if seeds > 1 else ""))
        if any(guarantee is None for _, guarantee in guarantees):
            parts.append(f"{NONE}: no guarantee")
    return Printed(replace(table, caption="; ".join(parts)))


def listing(entries: Mapping[str, RenderableType]) -> RichTable:
    """Names, each with what is said of it."""
    table = RichTable(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in entries.items():
        table.add_row(name, words)
    return table
