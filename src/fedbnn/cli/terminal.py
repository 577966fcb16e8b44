"""What all commands share: where they print, and the options that several of them have."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedbnn.base.errors import UserError

out_console = Console(emoji=False)
error_console = Console(stderr=True, emoji=False)

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG]", help="A TOML file or a preset; without it the built-in digits federation."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one field, e.g. --set methods.fedbnn.gamma=0.5; repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def counting(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal; call what it gives with the number done so far."""
    columns = (TextColumn(f"[bold]{escape(title)}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=error_console, disable=not error_console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def complain(problem: object) -> None:
    """One line for the user, in red."""
    error_console.print(f"error: {escape(str(problem))}", style="red", highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for the user, as it is: to be copied, not broken or coloured."""
    out_console.print(text, highlight=False, markup=False, soft_wrap=True)


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
