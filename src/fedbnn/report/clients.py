"""The table with one row a client."""

from fedbnn.federation.evaluation import MEASURES, SCORES
from fedbnn.report.figures import MISSING, UNITS, UNSCORED, cell, duration, size
from fedbnn.report.schema import PerClient, Result
from fedbnn.report.table import Cell, Column, Table, row

OF_CLIENT = [name for name in SCORES if name in PerClient.model_fields]


def clients(result: Result) -> Table:
    of = result.per_client
    unscored = set(of.unscored)
    words = [Column("Client", words=True), Column("Model", words=True), Column("Weights"), Column("Records")]
    scores = [Column(MEASURES[name].heading) for name in OF_CLIENT]
    costs = [Column("Sent a round"), Column("Received a round"), Column("Time")]
    rows = [
        row(
            of.name[i],
            of.model[i],
            f"{of.weights[i]:,}",
            f"{of.records[i]:,}",
            _classes(of.classes[i], result.class_names),
            *(_score(getattr(of, name)[i], name, i in unscored) for name in OF_CLIENT),
            cell(of.bytes_up[i], size),
            cell(of.bytes_down[i], size),
            cell(of.seconds[i], duration),
        )
        for i in range(len(of.name))
    ]
    return Table([*words, Column("Classes", words=True, style="value"), *scores, *costs], rows)


def _score(value: float, name: str, unscored: bool) -> Cell:
    return Cell(UNSCORED) if unscored else cell(value, UNITS[MEASURES[name].unit])


def _classes(held: list[int], names: list[str]) -> str:
    if len(names) > 1 and set(held) == set(range(len(names))):
        return f"all {len(names)}"
    return ", ".join(names[c] if 0 <= c < len(names) else str(c) for c in held) or MISSING
