"""The tables the command line prints."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "own_class_accuracy": ("own-class\naccuracy", lambda v: f"{v:.1%}"),
    "all_class_accuracy": ("all-class\naccuracy", lambda v: f"{v:.1%}"),
    "nll": ("NLL", lambda v: f"{v:.3f}"),
    "ece": ("ECE", lambda v: f"{v:.3f}"),
    "mce": ("MCE", lambda v: f"{v:.3f}"),
    "bytes_up_per_client_round": ("bytes\nup", lambda v: f"{v:,.0f}"),
    "bytes_down_per_client_round": ("bytes\ndown", lambda v: f"{v:,.0f}"),
    "seconds": ("seconds", lambda v: f"{v:.1f}"),
}


def comparison(results: Sequence[Mapping[str, Any]]) -> Table:
    """One row a method; over several seeds, mean ± standard deviation."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
    seeds = max(len(rows) for rows in by_method.values())
    first = results[0]
    parts = [
        f"{first['dataset']}, {first['clients']} clients, {first['rounds']} rounds",
        f"scored on {first['split']} records",
        "bytes per client and round",
        *([f"mean ± sd over {seeds} seeds"] if seeds > 1 else []),
    ]
    table = Table(caption="; ".join(parts), caption_justify="left", box=None, pad_edge=False)
    table.add_column("method", style="bold", no_wrap=True)
    for title, _ in COLUMNS.values():
        table.add_column(title, justify="right")
    for method, rows in by_method.items():
        table.add_row(method, *(_cell([row[key] for row in rows], show) for key, (_, show) in COLUMNS.items()))
    return table


def _cell(values: list[float], show: Callable[[float], str]) -> str:
    text = show(statistics.mean(values))
    return text if len(set(values)) == 1 else f"{text} ± {show(statistics.stdev(values)).rstrip('%')}"


def listing(kind: str, entries: Mapping[str, str]) -> Table:
    """Names with one line each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(kind, style="bold", no_wrap=True)
    table.add_column("summary")
    for name, text in entries.items():
        table.add_row(name, text)
    return table
