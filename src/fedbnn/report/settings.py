"""The configuration as a table: nested keys dotted, and for several runs what they share and where they differ."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedbnn.report.figures import MISSING
from fedbnn.report.load import Group, Run, Study
from fedbnn.report.table import Column, Table, row


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of dotted key and readable value, in the order of the file."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _readable(value)


def shared(study: Study) -> list[tuple[str, str]]:
    """The settings that have one value in all runs."""
    tables = _tables(study.runs)
    return [(key, value) for key, value in tables[0].items() if all(t.get(key) == value for t in tables)]


def differing(study: Study) -> list[tuple[str, list[str]]]:
    """The other settings, each with its values in every group."""
    same = {key for key, _ in shared(study)}
    keys = dict.fromkeys(key for table in _tables(study.runs) for key in table if key not in same)
    return [(key, [_values(group, key) for group in study.groups]) for key in keys]


def differing_table(study: Study) -> Table | None:
    """The same as a table, a column a method; nothing where all runs are alike."""
    methods = [Column(group.method, words=True, style="value") for group in study.groups]
    rows = [row(key, *values) for key, values in differing(study)]
    return Table([Column("Setting", words=True, style="key"), *methods], rows) if rows else None


def differing_in_words(study: Study) -> list[tuple[str, str]]:
    """The same in a line a setting, for more methods than a table has room for columns: "0.7 (fedbnn); 0.5 (feddf)".

    Methods without the setting are left out, and so is a setting that only repeats the methods' names.
    """
    methods = [group.method for group in study.groups]
    lines = []
    for key, values in differing(study):
        by_value: dict[str, list[str]] = {}
        for method, value in zip(methods, values, strict=True):
            by_value.setdefault(value, []).append(method)
        if values != methods:
            parts = [
                f"{value} (all)" if len(of) == len(methods) else f"{value} ({', '.join(of)})"
                for value, of in by_value.items()
                if value != MISSING
            ]
            lines.append((key, "; ".join(parts) or MISSING))
    return lines


def _values(group: Group, key: str) -> str:
    return ", ".join(dict.fromkeys(table.get(key, MISSING) for table in _tables(group.runs)))


def _tables(runs: tuple[Run, ...]) -> list[dict[str, str]]:
    return [dict(flat(run.config)) for run in runs]


def _readable(value: Any) -> str:
    match value:
        case None | {} | [] | "":
            return MISSING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case str():
            return value
        case list() if all(isinstance(item, str | int | float) for item in value):
            return ", ".join(_readable(item) for item in value)
        case _:
            return json.dumps(value, ensure_ascii=False)
