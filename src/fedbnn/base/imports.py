"""The user's own code by its name, 'package.module:name': the one place where such a name becomes running code."""

import importlib
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean


def imported(reference: str, what: str) -> Any:
    """The object that 'package.module:name' names; `what` begins the line that says why there is none.

    Modules of the current folder are found too: a console script, unlike `python -m`, does not look there by itself.
    It comes last in the search, so that no file there stands in for an installed module.
    """
    module, _, name = reference.partition(":")
    try:
        if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        return attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # a module of the user's may fail in any way while it is imported
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{what} cannot be imported: {kind}{reason}") from error


def factory_of(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What makes a module: a known one by its name, or the user's own from 'package.module:factory'.

    `kind` is what it is called in errors: a model, a body.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise UserError(
            f"unknown {kind} '{name}'{did_you_mean(name, known)} (there are {', '.join(known)}, or your own as "
            "'package.module:factory')"
        )
    factory = imported(name, f"{kind} '{name}'")
    if not callable(factory):
        raise UserError(f"{kind} '{name}' is a {type(factory).__name__}, not a function that makes a module")
    found: Callable[..., Any] = factory
    return found
