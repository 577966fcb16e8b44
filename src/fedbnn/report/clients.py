"""The table with one row a client."""

from fedbnn.federation.evaluation import ALL_SCORES, MEASURES
from fedbnn.report.figures import MISSING, UNITS, UNSCORED, cell, duration, size
from fedbnn.report.schema import AnyResult, Result
from fedbnn.report.table import Cell, Column, Table, row


def clients(result: AnyResult) -> Table:
    of = result.per_client
    unscored = set(of.unscored)
    told = [name for name in ALL_SCORES if name in type(of).model_fields]
    words = [Column("Client", words=True), Column("Model", words=True), Column("Weights"), Column("Records")]
    scores = [Column(MEASURES[name].heading) for name in told]
    costs = [Column("Sent a round"), Column("Received a round"), Column("Time")]
    rows = [
        row(
            of.name[i],
            of.model[i],
            f"{of.weights[i]:,}",
            f"{of.records[i]:,}",
            *([_classes(result.per_client.classes[i], result.class_names)] if isinstance(result, Result) else []),
            *(_score(getattr(of, name)[i], name, i in unscored) for name in told),
            cell(of.bytes_up[i], size),
            cell(of.bytes_down[i], size),
            cell(of.seconds[i], duration),
        )
        for i in range(len(of.name))
    ]
    held = [Column("Classes", words=True, style="value")] if isinstance(result, Result) else []
    return Table([*words, *held, *scores, *costs], rows)


def _score(value: float, name: str, unscored: bool) -> Cell:
    return Cell(UNSCORED) if unscored else cell(value, UNITS[MEASURES[name].unit])


def _classes(held: list[int], names: list[str]) -> str:
    if len(names) > 1 and set(held) == set(range(len(names))):
        return f"all {len(names)}"
    return ", ".join(names[c] if 0 <= c < len(names) else str(c) for c in held) or MISSING
