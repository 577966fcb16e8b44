"""What a confusion matrix says of each class, as a table."""

from collections.abc import Sequence

from fedbnn.federation.metrics import Confusion
from fedbnn.report.figures import cell, share
from fedbnn.report.table import Cell, Column, Row, Table


def class_table(matrix: Confusion, class_names: Sequence[str]) -> Table:
    columns = [
        Column("Class", words=True),
        Column("Records", meaning="of this class among those that were scored, over all clients"),
        Column("Recall", meaning="of these, the share that is found"),
        Column("Precision", meaning="of the records that are taken for this class, the share that is of it"),
        Column("F1", meaning="harmonic mean of both"),
    ]
    rows = [
        Row([Cell(name), Cell(f"{int(count):,}"), *(cell(float(one), share) for one in scores)])
        for name, count, *scores in zip(
            class_names, matrix.counts.sum(1), matrix.recall, matrix.precision, matrix.f1, strict=True
        )
    ]
    return Table(columns, rows)
