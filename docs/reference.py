"""What mkdocs makes from the code while it builds the site; none of it is committed.

- pages: every method, the commands, the configuration, the Python API, and the committed results
- tables in hand-written pages, where they say `<!-- settings: data -->` or `<!-- rooms -->`
- links: pages link to files of the repository, so they work there too; here they become links of the site
- pictures: SVG that is put into the page, so that it follows the scheme the reader chose
"""

import ast
import logging
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic.fields import FieldInfo

import fedbnn
from fedbnn.base.settings import fields_of
from fedbnn.cli.app import app
from fedbnn.methods import METHODS
from fedbnn.runs.config import Config, toml_value

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ("results/cpu/*.*", "experiments/results/*.*", "experiments/*/*.toml", "examples/*.py", "*.md")
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
log = logging.getLogger("mkdocs.plugins.reference")


# What mkdocs calls


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    [methods] = [entry["Methods"] for entry in config.nav or [] if "Methods" in entry]
    methods[1:] = [f"methods/{name}.md" for name in METHODS]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    for path in committed():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    here = page.file.src_uri
    for pattern, made in (
        (r"<!-- settings: (\S+) -->", lambda found: settings_table(found[1])),
        (r"<!-- rooms -->", lambda _: rooms()),
        (r"!\[([^]]*)\]\((pictures/\S+\.svg)\)", lambda found: picture(ROOT / "docs" / found[2])),
        (r"(?<=\]\()([^)\s#:]+)", lambda found: site_link(here, found[1], files)),
    ):
        markdown = re.sub(pattern, made, markdown)
    return markdown


def on_post_page(output: str, page: Page, **_: Any) -> str:
    for found in re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)"', output):
        log.warning(f"{page.file.src_uri} loads {found} from another host")
    return output


# Pages


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of every page that is made whole."""
    for name, cls in METHODS.items():
        yield f"methods/{name}.md", method_page(name, cls)
    yield "reference/commands.md", "\n\n".join(["# Commands", *command_text(typer.main.get_command(app), "fedbnn")])
    yield "reference/configuration.md", "\n\n".join(configuration())
    yield "reference/python.md", python_page()


def committed() -> list[str]:
    """Files of the repository that are part of the site; its own pages stand for `index.html` of the results."""
    found = sorted(path.relative_to(ROOT).as_posix() for pattern in COMMITTED for path in ROOT.glob(pattern))
    return [path for path in found if path != "README.md" and not path.endswith(".html")]


def method_page(name: str, cls: type[Any]) -> str:
    """The docstring of its module, its settings, and its class."""
    hidden = "    options: {show_root_heading: false, show_root_toc_entry: false, members: false}"
    return "\n\n".join(
        [
            f"# {cls.__name__}",
            f'`method = "{name}"`: {cls.summary}.',
            f"::: {cls.__module__}\n{hidden}",
            "## Settings",
            f"As `methods.{name}.FIELD` in a configuration or `--set`, and as arguments in Python.",
            table_of(cls()),
            "## In Python",
            f"::: {cls.__module__}.{cls.__qualname__}\n    options: {{members: false}}",
        ]
    )


def python_page() -> str:
    """What `import fedbnn` gives, by the room it lives in."""
    by_room: dict[str, list[str]] = {}
    for name in fedbnn.__all__:
        cls = getattr(fedbnn, name)
        if cls not in METHODS.values():
            text = f"::: {cls.__module__}.{name}"
            if fields_of(cls):  # what they mean is told better in a table than by their declarations
                text += f"\n    options: {{members: false}}\n\n{table_of(cls())}"
            by_room.setdefault(cls.__module__.split(".")[1], []).append(text)
    named = ", ".join(f"[{cls.__name__}](../methods/{name}.md)" for name, cls in METHODS.items())
    text = ["# Python", "What `import fedbnn` gives, by the room of the source it lives in.", f"Methods: {named}."]
    for room in (room for room in layers()[::-1] if room in by_room):
        text += [f"## {room}", *by_room[room]]
    return "\n\n".join(text)


def command_text(command: click.Command, path: str) -> Iterator[str]:
    """A command with its arguments and options, then those below it."""
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{'#' * (path.count(' ') + 2)} {path}"
    yield f"```text\n{path} {usage}\n```"
    yield (command.help or "").replace("\f", "")
    rows = [
        (f"`{_spelling(parameter)}`", _default(parameter), getattr(parameter, "help", None) or "")
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
    ]
    if rows:
        yield table(("argument or option", "default", "meaning"), rows)
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_text(inner, f"{path} {name}")


def _spelling(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("")))
    flag = getattr(parameter, "is_flag", False)
    kind = "" if flag else f" {parameter.make_metavar(click.Context(click.Command('')))}"
    return " / ".join([*parameter.opts, *parameter.secondary_opts]) + kind


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    return f"`{value}`" if isinstance(value, int | float | str) and not isinstance(value, bool) and value != "" else ""


# Settings


def configuration() -> Iterator[str]:
    yield "# Configuration"
    yield (
        "A configuration is a TOML file; `fedbnn config` prints the defaults with the same words as here. Every field "
        "can be changed on the command line, `--set data.alignment=500`. A mistake is told in one line."
    )
    yield "## A run\n\n" + table_of(Config())
    for name, value in tables_of(Config()).items():
        if name != "methods":
            meaning = (fields_of(Config)[name].description or "").capitalize()
            yield f"## {name}\n\n{meaning}.\n\n{table_of(value)}"
    for name, cls in METHODS.items():
        yield f"## methods.{name}\n\n[{cls.__name__}](../methods/{name}.md): {cls.summary}.\n\n{table_of(cls())}"


def settings_table(name: str) -> str:
    """The fields of a table of the configuration."""
    return table_of(tables_of(Config())[name])


def tables_of(value: Any) -> dict[str, Any]:
    """The fields of settings that are tables themselves; of a list of tables, its first."""
    named = {name: getattr(value, name) for name in fields_of(type(value))}
    first = {name: inner[0] if isinstance(inner, tuple) and inner else inner for name, inner in named.items()}
    return {name: inner for name, inner in first.items() if fields_of(type(inner))}


def table_of(value: Any, prefix: str = "") -> str:
    """The plain fields of settings: default, what is allowed, meaning."""
    return table(("field", "default", "allowed", "meaning"), list(field_rows(value, prefix)))


def field_rows(value: Any, prefix: str = "") -> Iterator[tuple[str, ...]]:
    tables = tables_of(value)
    for name, field in fields_of(type(value)).items():
        if name not in tables:
            yield f"`{prefix}{name}`", f"`{toml_value(getattr(value, name))}`", allowed(field), field.description or ""
        elif not isinstance(value, Config):
            yield from field_rows(tables[name], f"{prefix}{name}.")


def allowed(field: FieldInfo) -> str:
    """The rule of a field: its choices, its range, or its type."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    kinds = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table"}
    kind = kinds.get(get_origin(field.annotation) or field.annotation, "")
    rules = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in SIGNS.items()
        if hasattr(rule, name)
    ]
    return " ".join(filter(None, [kind, ", ".join(rules)]))


# Tables in pages


def layers() -> list[str]:
    """The rooms, highest first, as import-linter is told."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        [contract] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return list(contract["layers"])


def rooms() -> str:
    """Every module with the first line of its docstring, room by room, the lowest first."""
    text = []
    package = ROOT / "src" / "fedbnn"
    for room in layers()[::-1]:
        modules = sorted(path for path in (package / room).rglob("*.py") if path.name != "__init__.py")
        text.append(f"### {room}\n\n{first_line(package / room / '__init__.py')}")
        text.append(
            table(
                ("module", "holds"),
                [(f"`{path.relative_to(package / room).as_posix()}`", first_line(path)) for path in modules],
            )
        )
    return "\n\n".join(text)


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].replace("\n", " ")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# Links and pictures


def site_link(here: str, target: str, files: Files) -> str:
    """A link between files of the repository as a link between pages; what is not in the site stays as it is."""
    outside = here in committed()
    where = posixpath.normpath(posixpath.join(posixpath.dirname(here if outside else f"docs/{here}"), target))
    uri = where.removeprefix("docs/")
    return posixpath.relpath(uri, posixpath.dirname(here) or ".") if uri in files.src_uris else target


def picture(path: Path) -> str:
    return f'<div class="picture">{path.read_text(encoding="utf-8")}</div>'
