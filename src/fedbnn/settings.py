"""How settings are declared: a frozen pydantic dataclass whose fields carry their own documentation.

Every table of the configuration (data, partition, a method's hyper-parameters, ...) is a class made with
`@settings`, and every field is `Field(default, description="...", ge=..., ...)`. The description is written
once: it becomes the comment in `fedbnn config`, the help text and the docs.
"""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

__all__ = ["STRICT", "dataclass"]
