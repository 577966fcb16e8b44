"""Commands that are imported only when they are used: `fedbnn --help` and completion need not wait for torch.

What a command does, for the list of commands, is read from its source: the first paragraph of its docstring, or the
help of its group.
"""

import ast
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperGroup


def lazy_group(places: Mapping[str, str]) -> type[TyperGroup]:
    """A group with commands by name, each at 'package.module:function', or 'package.module:app' if it is a group."""

    class Lazy(TyperGroup):
        def __init__(self, **given: Any) -> None:
            self._loaded: dict[str, click.Command] = {}
            super().__init__(**given)

        @property
        def commands(self) -> dict[str, click.Command]:
            """All of them, loaded: for whoever wants to know their options."""
            return {**{name: self._load(name) for name in places}, **self._given}

        @commands.setter
        def commands(self, given: Mapping[str, click.Command]) -> None:
            self._given = dict(given)

        def list_commands(self, ctx: click.Context) -> list[str]:
            return [*places, *self._given]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            """Enough to be listed."""
            if cmd_name in places and cmd_name not in self._loaded:
                return click.Command(cmd_name, help=summary(places[cmd_name]))
            return self._loaded.get(cmd_name) or self._given.get(cmd_name)

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            if args and args[0] in places:
                self._load(args[0])
            return super().resolve_command(ctx, args)

        def _load(self, name: str) -> click.Command:
            if name not in self._loaded:
                module, _, attribute = places[name].partition(":")
                self._loaded[name] = _command(name, getattr(import_module(module), attribute))
            return self._loaded[name]

    return Lazy


def _command(name: str, found: Any) -> click.Command:
    app = found
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(found)
    app._add_completion = False  # only the program as a whole can install completion
    command = typer.main.get_command(app)
    command.name = name
    return command


def summary(place: str) -> str:
    """What the function or group at this place says of itself, without importing it."""
    module, _, attribute = place.partition(":")
    spec = find_spec(module)
    assert spec
    assert spec.origin
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or ""
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) == attribute
        ):
            return next((str(ast.literal_eval(one.value)) for one in node.value.keywords if one.arg == "help"), "")
    raise LookupError(place)
