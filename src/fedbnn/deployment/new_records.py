"""New records for a model to speak of: inputs, their ids, what is wrong with their values, and their labels, if any."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data import DataSettings
from fedbnn.data.csv_source import Table
from fedbnn.data.dataset import Floats
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import inputs_of
from fedbnn.data.tables.coding import Coding, Encoded
from fedbnn.data.tables.layout import Layout
from fedbnn.data.tables.raw import RawTable, TableReader
from fedbnn.deployment.alignment import ARRAY
from fedbnn.deployment.site_file import RecordsSettings
from fedbnn.deployment.site_table import read_columns, reader_of
from fedbnn.federation.inputs import Inputs

TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True, eq=False)
class NewRecords:
    """Inputs as loaded, before they are scaled.

    Attributes:
        ids: columns of ids by name, as texts.
        wrong: what is wrong with each record's values, in words, mostly nothing; none where nobody said what is right.
        targets: the cells of the target column, where there is one.
        decimal: the sign that numbers in them have.

    """

    x: Inputs
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: Sequence[str] = ()
    targets: Sequence[str | None] | None = None
    decimal: str = "."


@dataclass(frozen=True)
class CodedTables:
    """Reads tables whose columns a coding describes: a site's, laid out as its own, or those of a run folder."""

    coding: Coding
    reader: TableReader
    encode: Callable[[RawTable, str], Encoded]
    target: str = ""

    @classmethod
    def of_site(cls, settings: RecordsSettings, coding: Coding) -> "CodedTables":
        def encode(table: RawTable, origin: str) -> Encoded:
            return read_columns(table, settings, coding, origin)

        return cls(coding, reader_of(settings, coding), encode, settings.target)

    @classmethod
    def of_run(cls, settings: DataSettings, coding: Coding) -> "CodedTables":
        def encode(table: RawTable, origin: str) -> Encoded:
            wanted = [column.name for column in coding.columns if column.kind != "id"]
            if lacking := [name for name in wanted if name not in table.columns]:
                raise UserError(f"{origin} has no column {listing(lacking)}; its columns are: {listing(table.columns)}")
            return coding.encode(table)

        return cls(coding, TableReader(settings.layout, coding.kept), encode, settings.target)

    def file(self, source: Path, origin: str) -> NewRecords:
        kind = "parquet" if source.suffix == ".parquet" else "csv"
        return self._records(self.reader.read(source, origin, kind), origin)

    def frame(self, frame: Inputs, origin: str) -> NewRecords:
        """Of a pandas table."""
        columns = {str(name): frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}
        return self._records(self.reader.of_values(columns, origin), origin)

    def _records(self, table: RawTable, origin: str) -> NewRecords:
        encoded = self.encode(table, origin)
        ids = {name: [cell or "" for cell in table.columns[name]] for name in self.coding.ids if name in table.columns}
        return NewRecords(encoded.x, ids, encoded.flags(), table.columns.get(self.target), table.decimal)


def columns_of(data: DataSettings) -> list[str]:
    """The features of a .csv file of numbers, in the order in which models see them; none of other data."""
    if data.source != "csv" or not isinstance(data.path, str):
        return []
    header = Table.read(Path(data.path), f"data.path = {data.path!r}", data.delimiter, data.encoding).header
    return [name for name in header if name not in (data.target, data.client_column)]


def ordered(x: Inputs, columns: Sequence[str]) -> Inputs:
    """A pandas table's columns by name, where names are known; anything else as it is."""
    if not hasattr(x, "columns") or not columns:
        return x
    if missing := [name for name in columns if name not in x.columns]:
        raise UserError(f"x has no column {listing(missing)}; its columns are: {listing(map(str, x.columns))}")
    return x[list(columns)]


def read_inputs(source: Path, columns: Sequence[str], origin: str, layout: Layout) -> Floats:
    """The records of an .npz or .csv file of numbers as loaded, before they are scaled."""
    match source.suffix:
        case ".npz":
            file = NpzFile(source, origin)
            name = file.files[0] if len(file.files) == 1 else ARRAY
            return inputs_of(origin, name, file.array(name))
        case ".csv":
            table = Table.read(source, origin, layout.delimiter, layout.encoding)
            return table.numbers([table.column("feature", name) for name in columns or table.header])
    raise UserError(f"{origin}: its name must end in .npz or .csv")
