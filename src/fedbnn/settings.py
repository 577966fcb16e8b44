"""How settings are declared: a frozen pydantic dataclass whose fields carry their own documentation.

Every table of the configuration (data, partition, a method's hyper-parameters, ...) is a class made with
`@settings`, and every field is `Field(default, description="...", ge=..., ...)`. The description is written
once: it becomes the comment in `fedbnn config`, the help text and the docs.
"""

import difflib
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from fedbnn.errors import UserError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
T = TypeVar("T")


def with_default(cls: Any, name: str, default: Any) -> Any:
    """The field of a base class with another default: its rule and description stay written once."""
    field = copy(cls.__pydantic_fields__[name])
    field.default = default
    return field


def parsed(kind: type[T], text: str | bytes, said: str = "") -> T:
    """Settings from JSON; the first mistake becomes one line that names the field, the value and the rule.

    `said` is how the line begins: the file they come from.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise UserError(f"{said}: {_explain(error, kind)}" if said else _explain(error, kind)) from None


def _explain(error: ValidationError, kind: Any) -> str:
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    # A name that was mistyped is also missing: what was typed tells more.
    first = min(error.errors(), key=lambda one: one["type"] not in unknown)
    location = first["loc"]
    dotted = ".".join(str(part) for part in location)
    if first["type"] in unknown:
        known = _fields_at(kind, location[:-1])
        return f"unknown key {dotted!r}{nearest(str(location[-1]), known)} (known here: {', '.join(known)})"
    if first["type"] in ("missing", "missing_argument"):
        return f"{dotted} is missing"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # a rule over several fields names them
        return ": ".join(filter(None, (dotted, str(first["ctx"]["error"]))))
    return f"{dotted} = {first['input']!r}: {first['msg']}" if dotted else first["msg"]


def _fields_at(kind: Any, location: Sequence[str | int]) -> list[str]:
    """Names of the fields of the table at this place of the settings."""
    for part in location:
        kind = get_args(kind)[0] if isinstance(part, int) else fields_of(kind)[part].annotation
    return list(fields_of(kind))


def fields_of(kind: Any) -> dict[str, FieldInfo]:
    """The fields of a settings class, in order of declaration; of `X | None` and of a tuple of X, those of X."""
    if get_origin(kind) is not None:
        kind = get_args(kind)[0]
    fields: dict[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    return fields


def nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


__all__ = ["STRICT", "dataclass", "fields_of", "nearest", "parsed", "with_default"]
