"""What all commands share: where they print, and the options that several of them have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedbnn.base.errors import UserError
from fedbnn.base.wording import printable
from fedbnn.cli import completion

if TYPE_CHECKING:
    from fedbnn.audit.configuration import Standing

out_console = Console(emoji=False)
error_console = Console(stderr=True, emoji=False)

ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A TOML file or a preset; without it the built-in digits federation.",
        autocompletion=completion.config_files,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one field, e.g. --set methods.fedbnn.gamma=0.5; repeatable.",
        autocompletion=completion.settings,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def proving(title: str, trials: int) -> Iterator[Callable[[Standing], None]]:
    """A bar on standard error, where that is a terminal: what is proved by now, of what is claimed, and time left."""
    columns = (
        TextColumn(f"[bold]{escape(title)}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=error_console, disable=not error_console.is_terminal) as bar:
        task = bar.add_task(title, total=trials, status="")

        def say(now: Standing) -> None:
            left = timedelta(seconds=round(now.left))
            status = f"proved {now.mu_lower:.3f} of {now.mu:.3f}, {left} left"
            bar.update(task, completed=now.trials, total=now.expected, status=status)

        yield say


def complain(problem: object) -> None:
    """One line for the user, in red."""
    error_console.print(f"error: {escape(printable(str(problem)))}", style="red", highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for the user, as it is: to be copied, not broken or coloured."""
    out_console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def echo_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def split(text: str) -> list[str]:
    """The parts of an option that takes several, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def split_seeds(text: str) -> list[int]:
    for part in split(text):
        if not part.isdecimal():
            raise UserError(f"--seeds: '{part}' is not a whole number from 0 up")
    return [int(part) for part in split(text)]
