"""What the shell offers when tab is pressed: methods, presets, keys of `--set`, programs to log to.

Functions import what they need only then: completion starts the program at every press.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOGS = ("tensorboard", "mlflow")  # the keys of runs.loggers.LOGGERS, which a test compares


def config_files(incomplete: str) -> list[str]:
    """Presets by name, TOML files by path."""
    from fedbnn.runs.config import presets

    folder = Path(incomplete).parent if "/" in incomplete else Path()
    files = [str(path) for path in sorted(folder.glob("*.toml"))] if folder.is_dir() else []
    return _starting([*presets(), *files], incomplete)


def methods(incomplete: str) -> list[str]:
    """Of a list with commas, the last one."""
    from fedbnn.methods.registry import summaries

    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    return [f"{before}{comma}{name}" for name in _starting(summaries(), last) if name not in named]


def settings(incomplete: str) -> list[str]:
    """Dotted keys with an equals sign; after it, what a choice allows."""
    from fedbnn.runs.config import Config

    key, equals, value = incomplete.partition("=")
    keys = dict(_keys(Config()))
    if not equals:
        return [f"{name}=" for name in _starting(keys, incomplete)]
    if key == "method":
        return [f"method={name}" for name in methods(value)]
    return [f"{key}={choice}" for choice in _starting(keys.get(key, ()), value)]


def logs(incomplete: str) -> list[str]:
    return _starting(LOGS, incomplete)


def _starting(names: Any, incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _keys(value: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every dotted key of settings with its choices, if it has any."""
    from typing import Literal, get_args, get_origin

    from fedbnn.base.settings import fields_of

    for name, field in fields_of(type(value)).items():
        inner = getattr(value, name)
        if fields_of(type(inner)):
            yield from _keys(inner, f"{prefix}{name}.")
        elif get_origin(field.annotation) is Literal:
            yield f"{prefix}{name}", tuple(str(one) for one in get_args(field.annotation))
        else:
            yield f"{prefix}{name}", ("true", "false") if field.annotation is bool else ()
