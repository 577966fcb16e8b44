"""How settings are declared: a frozen pydantic dataclass whose fields carry their own documentation.

Every table of the configuration (data, partition, a method's hyper-parameters, ...) is a class made with
`@settings`, and every field is `Field(default, description="...", ge=..., ...)`. The description is written
once: it becomes the comment in `fedbnn config`, the help text and the docs.
"""

from copy import copy
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def with_default(cls: Any, name: str, default: Any) -> Any:
    """The field of a base class with another default: its rule and description stay written once."""
    field = copy(cls.__pydantic_fields__[name])
    field.default = default
    return field


__all__ = ["STRICT", "dataclass", "with_default"]
