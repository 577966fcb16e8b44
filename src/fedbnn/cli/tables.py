"""The tables the command line prints."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedbnn.data.presence import Presence
from fedbnn.report.figures import MISSING, Spread
from fedbnn.report.privacy import NONE, Guarantee, briefly, epsilon_text, terms, weakest
from fedbnn.report.variants import NAMES

Result = Mapping[str, Any]
Show = Callable[[float], str]


def _bytes(value: float) -> str:
    """Three digits and a letter, as narrow as a score: 108, 16.0k, 489k, 1.05M."""
    units = ((1.0, ""), (1e3, "k"), (1e6, "M"))
    worth, sign = next((unit for unit in units if value / unit[0] < 999.5), (1e9, "G"))
    scaled = value / worth
    decimals = 0 if not sign or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{decimals}f}{sign}"


SCORES: dict[str, tuple[str, Show]] = {
    "own_class_accuracy": ("own-class\naccuracy", lambda v: f"{v:.1%}"),
    "all_class_accuracy": ("all-class\naccuracy", lambda v: f"{v:.1%}"),
    "nll": ("NLL", lambda v: f"{v:.3f}"),
    "ece": ("ECE", lambda v: f"{v:.3f}"),
    "mce": ("MCE", lambda v: f"{v:.3f}"),
}
COSTS: dict[str, tuple[str, Show]] = {
    "bytes_up_per_client_round": ("bytes\nup", _bytes),
    "bytes_down_per_client_round": ("bytes\ndown", _bytes),
    "seconds": ("seconds", lambda v: f"{v:.1f}"),
}


@dataclass(frozen=True)
class Comparison:
    """One row a method and scored model; a method's costs and its ε stand in its first row.

    Over several seeds a cell is mean ± standard deviation. Where that is too wide for the terminal, the deviation
    goes below the mean and headings are shorter: rich alone would cut off digits to make the table fit.
    """

    by_method: Mapping[str, Sequence[Result]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(narrow=False)
        fits = Measurement.get(console, options.update(max_width=10_000), table).maximum <= options.max_width
        yield table if fits else self._table(narrow=True)

    def protection(self) -> list[str]:
        """What is protected and what is not, for under the table."""
        return briefly(self._guarantees())

    def _guarantees(self) -> list[tuple[str, Guarantee | None]]:
        return [(method, weakest([_guarantee(run) for run in runs])) for method, runs in self.by_method.items()]

    def _table(self, *, narrow: bool) -> Table:
        guarantees = self._guarantees()
        joint = "\n±" if narrow else " ± "
        private = any(guarantee is not None for _, guarantee in guarantees)
        # One space between columns: with two, scores, costs and ε would not fit into 80 columns.
        table = Table(caption=self._caption(), caption_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("method", style="bold", no_wrap=True)
        for title, _ in (*SCORES.values(), *COSTS.values(), *([("ε", None)] if private else [])):
            short = title.replace("-class\naccuracy", "-\nclass\nacc.") if narrow else title
            table.add_column(short, justify="right", overflow="fold")
        for (method, guarantee), runs in zip(guarantees, self.by_method.values(), strict=True):
            costs = [_cell([run.get(key) for run in runs], show, joint) for key, (_, show) in COSTS.items()]
            costs += [epsilon_text(guarantee)] if private else []
            for row, (variant, scores) in enumerate(_variants(runs).items()):
                cells = [_cell([one.get(key) for one in scores], show, joint) for key, (_, show) in SCORES.items()]
                table.add_row(_label(method, variant, row), *cells, *([""] * len(costs) if row else costs))
        return table

    def _caption(self) -> str:
        runs = [run for of in self.by_method.values() for run in of]
        first, seeds = runs[0], max(len(of) for of in self.by_method.values())
        parts = [
            f"{first['dataset']}, {first['clients']} clients, {first['rounds']} rounds",
            f"scored on {first['split']} records",
        ]
        if any(set(_variants([run])) != {"personal"} for run in runs):
            parts.append("the model scored is the client's own where none is named")
        parts.append("bytes per client and round")
        if seeds > 1:
            parts.append(f"mean ± sd over {seeds} seeds")
        guarantees = self._guarantees()
        if words := terms(guarantees):
            parts.append(words + (" (the weakest of the seeds)" if seeds > 1 else ""))
            if any(guarantee is None for _, guarantee in guarantees):
                parts.append(f"{NONE}: no guarantee")
        return "; ".join(parts)


def comparison(results: Sequence[Result]) -> Comparison:
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
    return Comparison(by_method)


def _variants(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """The scores of each model over the runs, the headline first; a result that names none has the personal one."""
    found: dict[str, list[Result]] = {}
    for run in runs:
        variants: Mapping[str, Result] = run.get("variants") or {}
        scored = run.get("scored") or next(iter(variants), "personal")
        for variant, scores in ({scored: run} | dict(variants)).items():
            found.setdefault(variant, []).append(scores)
    return found


def _label(method: str, variant: str, row: int) -> str:
    name = NAMES.get(variant, variant)
    if row:
        return f"  {name}"
    return method if variant == "personal" else f"{method} {name}"


def _guarantee(run: Result) -> Guarantee | None:
    if run.get("epsilon_spent") is None:
        return None
    return Guarantee(
        run["epsilon_spent"], run.get("delta", math.nan), run.get("privacy_unit", "record"), run.get("mechanism", "")
    )


def _cell(values: Sequence[float | None], show: Show, joint: str) -> str:
    over = Spread.of([math.nan if value is None else value for value in values])
    if not math.isfinite(over.mean):
        return MISSING
    text = show(over.mean)
    if not over.deviation > 1e-12 * abs(over.mean):
        return text
    return f"{text}{joint}{show(over.deviation).rstrip('%')}"


def listing(kind: str, entries: Mapping[str, str]) -> Table:
    """Names with one line each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(kind, style="bold", no_wrap=True)
    table.add_column("summary")
    for name, text in entries.items():
        table.add_row(name, text)
    return table


def datasets(found: Iterable[Presence]) -> Table:
    """The sources of data: what each is and, below it, where."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("source", style="bold", no_wrap=True)
    table.add_column("summary", overflow="fold")
    for one in found:
        table.add_row(one.source, Text.assemble(one.summary, "\n", (one.where, "green" if one.present else "dim")))
    return table
