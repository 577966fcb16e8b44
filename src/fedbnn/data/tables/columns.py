"""What a user declares of a column: its kind, and what may stand in it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from fedbnn.base.settings import settings

Kind = Literal["number", "category", "boolean", "date", "id", "ignore"]

ALLOWED: Mapping[str, tuple[Kind, ...]] = {
    "unit": ("number",),
    "low": ("number", "date"),
    "high": ("number", "date"),
    "values": ("category", "boolean"),
    "format": ("date",),
    "optional": ("number", "boolean", "date"),
}
"""Which kinds a field is for."""


@settings
class ColumnSettings:
    """A column, as `[data.columns.NAME]` declares it. What is declared is public."""

    kind: Kind = Field(
        description="number; category (one of a few texts); boolean; date; id (no feature, told beside predictions); "
        "ignore",
    )
    unit: str = Field(default="", description="of a number, in words that all sites use")
    low: float | None = Field(
        default=None, description="the least value; what is below counts as it; of a date: a year"
    )
    high: float | None = Field(
        default=None, description="the greatest value; what is above counts as it; of a date: a year"
    )
    values: tuple[str, ...] = Field(
        default=(),
        description="of a category: all that have a feature of their own, others share one; of a boolean: the words "
        "for no and yes",
    )
    format: str = Field(
        default="", description="of a date, as in strptime (%d/%m/%Y); without it 2024-03-01 and 01.03.2024 are read"
    )
    optional: bool | None = Field(
        default=None,
        description="whether values may be missing: then a feature tells where; unset: as in the public records",
    )

    @model_validator(mode="after")
    def _fits_the_kind(self) -> "ColumnSettings":
        for field, kinds in ALLOWED.items():
            if getattr(self, field) not in ("", None, ()) and self.kind not in kinds:
                raise ValueError(f"{field} is for {' and '.join(kinds)} columns, this one is kind = '{self.kind}'")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if len(set(self.values)) < len(self.values) or any(value != value.strip() for value in self.values):
            raise ValueError("values must be different, without spaces around them")
        if self.kind == "boolean" and self.values and len(self.values) != 2:
            raise ValueError("values of a boolean are two: the word for no, then the one for yes")
        if self.kind == "date":
            for field, year in (("low", self.low), ("high", self.high)):
                if year is not None and not (1 <= year <= 9999 and float(year).is_integer()):
                    raise ValueError(f"{field} of a date is a year, a whole number from 1 to 9999")
        return self
