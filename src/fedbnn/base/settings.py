"""How settings are declared: a frozen pydantic dataclass whose fields carry their own documentation.

Every table of the configuration (data, partition, a method's hyper-parameters, ...) is a class made with
`@settings`, and every field is `Field(default, description="...", ge=..., ...)`. The description is written
once: it becomes the comment in `fedbnn config`, the help text and the docs.
"""

import json
import tomllib
from collections.abc import Sequence
from copy import copy
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic.fields import FieldInfo

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean

MOST = 2**24  # bytes of a file of settings; a device has no end
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(cls: type[T]) -> type[T]:
    """Declare a table of settings: frozen, of the declared types, within the declared ranges, without unknown keys.

    A mistake is a UserError, whether it stands in a file or in a call.
    """
    made: Any = dataclass(frozen=True, config=STRICT)(cls)
    validated = made.__init__
    order = [field.name for field in fields(made) if field.init and not field.kw_only]

    @wraps(validated)
    def init(self: Any, *values: Any, **named: Any) -> None:
        if len(values) <= len(order) and not named.keys() & set(order[: len(values)]):
            values, named = (), dict(zip(order, values, strict=False)) | named  # so that errors tell their names
        try:
            validated(self, *values, **named)
        except ValidationError as error:
            raise UserError(f"{type(self).__name__}: {explain(error, type(self))}") from None

    made.__init__ = init
    return cast(type[T], made)


def is_settings(cls: type) -> bool:
    """Whether this very class was declared with `settings`."""
    return is_pydantic_dataclass(cls) and getattr(cls, "__pydantic_config__", None) == STRICT


def with_default(cls: Any, name: str, default: Any) -> Any:
    """The field of a base class with another default: its rule and description stay written once."""
    field = copy(cls.__pydantic_fields__[name])
    field.default = default
    return field


def parsed(kind: type[T], text: str | bytes, origin: str = "") -> T:
    """Settings from JSON; the first mistake becomes one line that names the field, the value and the rule.

    `origin` is how the line begins: the file they come from.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, kind)}" if origin else explain(error, kind)) from None


def read_toml(kind: type[T], path: Path, missing: str = "") -> T:
    """Settings from a TOML file; mistakes begin with its name, and `missing` says what to do where there is none."""
    return parsed(kind, as_json(read_tables(path, missing), str(path)), str(path))


def read_tables(path: Path, missing: str = "") -> dict[str, Any]:
    """What a TOML file says, as nested tables."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            raise UserError(f"{path}: cannot be read as TOML: it has more than {MOST} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file{missing}") from None
    except RecursionError:
        raise UserError(f"{path}: cannot be read as TOML: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # of the file, of its encoding, of TOML, of a number of thousands of digits
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def as_json(tables: Any, origin: str) -> str:
    """Nested tables as `parsed` reads them; `origin` as there."""
    try:
        return json.dumps(tables)
    except TypeError as error:
        raise UserError(f"{origin}: dates and times are not used in any field ({error})") from None
    except RecursionError:
        raise UserError(f"{origin}: it is nested too deeply") from None
    except ValueError:
        raise UserError(f"{origin}: a number has thousands of digits") from None


def explain(error: ValidationError, kind: Any) -> str:
    """The first mistake in settings of this kind: the field, the value and the rule."""
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    # A name that was mistyped is also missing: what was typed tells more.
    first = min(error.errors(), key=lambda one: one["type"] not in unknown)
    location = first["loc"]
    dotted = ".".join(str(part) for part in _without_choices(kind, location))
    if first["type"] in unknown:
        known = _fields_at(kind, location[:-1])
        return f"unknown key {dotted!r}{did_you_mean(str(location[-1]), known)} (known here: {', '.join(known)})"
    if first["type"] in ("missing", "missing_argument"):
        return f"{dotted} is missing"
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # a rule over several fields names them
        return ": ".join(filter(None, (dotted, str(first["ctx"]["error"]))))
    rule = first["msg"].removeprefix("Value error, ")
    return f"{dotted} = {first['input']!r}: {rule}" if dotted else rule


def _fields_at(kind: Any, location: Sequence[str | int]) -> list[str]:
    """Names of the fields of the table at this place of the settings."""
    for part in location:
        kind = _kind_at(kind, part)
    return list(fields_of(kind))


def _kind_at(kind: Any, part: str | int) -> Any:
    if get_origin(kind) is dict:  # of names that the user chose
        return get_args(kind)[1]
    return get_args(kind)[0] if isinstance(part, int) else fields_of(kind)[part].annotation


def _without_choices(kind: Any, location: Sequence[str | int]) -> Sequence[str | int]:
    """The place without what follows a field of several types: that is which of them was tried, which no user asked."""
    for at, part in enumerate(location):
        if isinstance(kind, UnionType) and type(None) not in get_args(kind):
            return location[:at]
        try:
            kind = _kind_at(kind, part)
        except (KeyError, IndexError):  # inside of a value
            break
    return location


def fields_of(kind: Any) -> dict[str, FieldInfo]:
    """The fields of a settings class, in order of declaration; of `X | None` and of a tuple of X, those of X."""
    if get_origin(kind) is not None:
        kind = get_args(kind)[0]
    fields: dict[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    return fields
