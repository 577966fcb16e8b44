"""New records for a model to speak of: inputs, their ids, and what is wrong with their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedbnn.data.dataset import Floats
from fedbnn.data.tables.coding import Coding
from fedbnn.deployment.site_file import RecordsSettings
from fedbnn.deployment.site_table import read_columns, reader_of


@dataclass(frozen=True, eq=False)
class NewRecords:
    """Inputs as loaded, before they are scaled.

    Attributes:
        ids: columns of ids by name, as texts.
        flags: what is wrong with each record, in words, mostly nothing; none where nobody has said what is right.

    """

    x: Floats
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    flags: Sequence[str] = ()


def read_new(source: Path, settings: RecordsSettings, coding: Coding, origin: str) -> NewRecords:
    """The records of a .csv or .parquet file, laid out as the site's own."""
    table = reader_of(settings, coding).read(source, origin, source.suffix.removeprefix("."))
    encoded = read_columns(table, settings, coding, origin)
    ids = {name: [cell or "" for cell in table.columns[name]] for name in coding.ids if name in table.columns}
    return NewRecords(encoded.x, ids, encoded.flags())
