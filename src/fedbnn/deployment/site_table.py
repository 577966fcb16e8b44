"""A site's own table under terms that describe its columns: found by name, checked, and encoded as agreed."""

import logging

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.tables.coding import Coding, Encoded
from fedbnn.data.tables.raw import RawTable, TableReader
from fedbnn.deployment.site_file import RecordsSettings

log = logging.getLogger(__name__)

MOSTLY = 0.5


def own_names(settings: RecordsSettings, coding: Coding) -> dict[str, str]:
    """What the columns of the terms are called in the site's file: the same, unless it lists its own."""
    features = [column.name for column in coding.columns if column.kind != "id"]
    if not settings.columns:
        return {name: name for name in features}
    if len(settings.columns) != len(features):
        raise UserError(
            f"data.columns names {len(settings.columns)} columns, but the terms have {len(features)}: "
            f"{listing(features)}; name as many in this order, or none"
        )
    return dict(zip(features, settings.columns, strict=True))


def read_columns(table: RawTable, settings: RecordsSettings, coding: Coding, origin: str) -> Encoded:
    """The inputs of a site's table; a column that is not there, or in another unit, is refused."""
    units = {column.name: column.unit for column in coding.columns}
    for name, unit in settings.units.items():
        if name not in units:
            raise UserError(f"data.units.{name}: is not a column of the terms{did_you_mean(name, units)}")
        if unit != units[name]:
            raise UserError(
                f"data.units.{name} = {unit!r}, but agreed was {units[name]!r}: convert the column and change this"
            )
    called = own_names(settings, coding)
    for name, own in called.items():
        if own not in table.columns:
            agreed = "" if own == name else f" (data.columns has it for {name!r} of the terms)"
            raise UserError(
                f"{origin} has no column {own!r}{agreed}, which the terms have; its columns are: "
                f"{listing(table.columns)}{did_you_mean(own, table.columns)}"
            )
    return coding.encode(table, called)


def reader_of(settings: RecordsSettings, coding: Coding) -> TableReader:
    """Reads the site's tables; values of the terms are values, whatever they are called there."""
    called = own_names(settings, coding)
    kept = {called[name]: values for name, values in coding.kept.items() if name in called}
    return TableReader(settings.layout, kept)


def report_oddities(encoded: Encoded, origin: str, promised: bool) -> None:
    """What is wrong with values, for the site's own eyes.

    A column that mostly holds something else than agreed is a mistake; under a promise the site goes on all the same,
    since one that does not start would tell of its records.
    """
    for text in encoded.counts():
        log.warning("%s: %s", origin, text)
    if promised:
        return
    for name, problems in encoded.problems.items():
        for problem, where in problems.items():
            if where.mean() > MOSTLY:
                raise UserError(
                    f"{origin}: most values of column {name!r} are {problem}; is it the column that was agreed on, and "
                    "are its values written as data.decimal and the terms say?"
                )
