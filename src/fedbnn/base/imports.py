"""The user's own code by its name, 'package.module:name': the one place where such a name becomes running code."""

import importlib
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError


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
