"""How a file of text is laid out: its encoding, what divides its cells, its decimal sign, what stands for nothing.

What "auto" finds comes from the header row alone, but for the encoding: UTF-8, or else Latin-1, whose umlauts are those
of Windows too.
"""

import re
from typing import Literal

from pydantic import Field

from fedbnn.base.settings import settings

DELIMITERS = (",", ";", "\t", "|")
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "None", "?", "-", ".")

Delimiter = Literal["auto", ",", ";", "\t", "|"]
Decimal = Literal[".", ","]
Encoding = Literal["auto", "utf-8", "latin-1", "cp1252"]


@settings
class Layout:
    """Of a CSV file; of Parquet, only `missing` means anything."""

    delimiter: Delimiter = Field(
        default="auto", description="What divides the cells of a CSV file; auto: what the header row has most of."
    )
    decimal: Decimal = Field(default=".", description="The decimal sign of numbers in a CSV file.")
    encoding: Encoding = Field(default="auto", description="Of a CSV file; auto: UTF-8 or else Latin-1.")
    missing: tuple[str, ...] = Field(
        default=MISSING,
        description="Texts that stand for a missing value, as an empty cell does, but where a column declares them as "
        "values of its own.",
    )


def decoded(content: bytes, encoding: str) -> str:
    """The text of a file; UnicodeDecodeError where it is not of this encoding."""
    if encoding != "auto":
        return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def delimiter_of(text: str) -> str:
    """What the header row has most of, outside quotes; of two alike, the first of DELIMITERS."""
    header = re.split(r"[\r\n]", text.lstrip("\r\n"), maxsplit=1)[0]
    bare = "".join(header.split('"')[::2])
    return max(DELIMITERS, key=bare.count)
