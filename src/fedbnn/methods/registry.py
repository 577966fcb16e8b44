"""Methods by the name that a configuration gives them.

`fedavg`                    one of ours
`fedbabu`                   one that an installed package declares: `[project.entry-points."fedbnn.methods"]` with
                            fedbabu = "package.module:FedBABU"
`package.module:FedBABU`    any class that can be imported, also from a module in the current folder

A method from outside has the name that its class says: its settings stand in `[methods.fedbabu]`.
"""

import inspect
import re
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel

from fedbnn.base.errors import UserError
from fedbnn.base.imports import imported
from fedbnn.base.settings import fields_of, is_settings
from fedbnn.base.wording import did_you_mean
from fedbnn.federation.method import Method
from fedbnn.methods import METHODS

GROUP = "fedbnn.methods"
MethodClass = type[Method[Any, Any]]

_imported: dict[str, MethodClass] = {}


@cache
def installed() -> dict[str, str]:
    """Methods that installed packages declare: their names, and where their classes are. Imports none of them.

    Looked up once in a process, as it reads the metadata of every installed package.
    """
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name not in METHODS}


def check_name(name: str) -> None:
    """A UserError for a name that cannot lead to a method; imports nothing."""
    if ":" not in name and name not in METHODS and name not in installed():
        known = [*METHODS, *installed()]
        raise UserError(
            f"method = '{name}': unknown{did_you_mean(name, known)} (there are {', '.join(known)}, or your own as "
            "'package.module:Class')"
        )


def known_method(name: str) -> MethodClass | None:
    """The class if it is one of ours or was imported before; imports nothing."""
    return METHODS.get(name) or _imported.get(name)


def find_method(name: str) -> MethodClass:
    """The class of this name, imported if need be; a UserError if there is none or it cannot be used as a method."""
    if known := known_method(name):
        return known
    check_name(name)
    cls = imported(name if ":" in name else installed()[name], f"method = '{name}'")
    if reason := _unusable(cls) or (":" not in name and cls.name != name and f"its class is called '{cls.name}'"):
        raise UserError(f"method = '{name}' cannot be used: {reason}")
    _imported[name] = cls
    return _imported[name]


def summaries() -> dict[str, str]:
    """What each method does, in a line: ours, then those of installed packages."""
    found = {name: cls.summary for name, cls in METHODS.items()}
    for name in installed():
        try:
            found[name] = find_method(name).summary
        except UserError as error:
            found[name] = str(error)
    return found


def _unusable(cls: Any) -> str:
    """Why a class from outside is no method; empty if it is one."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        return "it is not a class that is derived from fedbnn.Method"
    if inspect.isabstract(cls):
        return f"it lacks {', '.join(sorted(cls.__abstractmethods__))}"
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", cls.name) or hasattr(BaseModel, cls.name):
        return f"its name = '{cls.name}' is not a plain word of letters, digits and _"
    if cls.name in METHODS:
        return f"its name = '{cls.name}' is that of a method of ours"
    if not is_settings(cls):
        return "declare its class with @settings (from fedbnn.base.settings import settings)"
    if needed := [name for name, field in fields_of(cls).items() if field.is_required()]:
        return f"its setting '{needed[0]}' has no default"
    return ""
