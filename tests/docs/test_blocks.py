"""Every block in README, CONTRIBUTING and docs is run or held against the real command line and configuration.

Python is executed. Of a shell block every `fedbnn` line is parsed by the real command line and its settings by the real
configuration; what is cheap is run. A block that a test cannot check must say why: `<!-- needs: data -->` above it.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import click
import pytest
import typer

from fedbnn.base.errors import UserError
from fedbnn.cli.app import app, main
from fedbnn.runs.config import Config, load_config, parse_config
from tests.docs.pages import NAMES, ROOT, Block, blocks

NEEDS = {"data", "hosts", "network"}
CHEAP = {"config", "methods", "models", "datasets", "presets", "privacy plan"}
PLAIN = {"cd", "export"}
OTHERS = {"text", "json", "ini", "nginx", ""}
README = {block.text for block in blocks("README.md") if block.language == "python"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def of(*languages: str) -> list[object]:
    """Pages with blocks in these languages."""
    return [name for name in NAMES if any(block.language in languages for block in blocks(name))]


def test_blocks_say_what_they_are() -> None:
    """A language that nobody checks, or a reason that nobody knows, would be a hole."""
    for name in NAMES:
        for block in blocks(name):
            assert block.language in {"python", "sh", "toml", *OTHERS}, (name, block)
            assert block.needs in {"", *NEEDS}, (name, block)
    marked = sum(bool(block.needs) for name in NAMES for block in blocks(name))
    written = sum((ROOT / name).read_text(encoding="utf-8").count("\n<!-- needs:") for name in NAMES)
    assert written == marked, "a marker that belongs to no block"


@pytest.mark.parametrize("name", of("python"))
def test_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after the other; the README's own is run by test_readme."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {"__name__": "page"}
    for block in blocks(name):
        if block.language != "python":
            continue
        if included := re.fullmatch(r'--8<-- "(.+)"\n', block.text):
            compile((ROOT / included[1]).read_text(encoding="utf-8"), included[1], "exec")
            continue
        code = compile(block.text, f"{name}, line 1 of a block", "exec")
        if block.text not in README and not block.needs:
            exec(code, known)


@pytest.mark.parametrize("name", of("toml"))
def test_toml(name: str) -> None:
    """A block of our own configuration is read as one."""
    ours = {field.name for field in fields(Config)}
    for block in blocks(name):
        if block.language == "toml":
            found = tomllib.loads(block.text)
            if found.keys() <= ours:
                parse_config(found)


@pytest.mark.parametrize("name", of("sh"))
def test_shell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(name):
        if block.language == "sh":
            monkeypatch.chdir(tmp_path)
            for words in commands(block.text):
                check(words, block, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        "fedbnn rnu",
        "fedbnn run --sed 3",
        "fedbnn run --set rouns=3",
        "fedbnn run --set rounds=0",
        "fedbnn compare --methods fedbnn,fedavgg",
        "fedbnn privacy plan --epsilon -1",
        "make tests",
        "pip install 'fedbnn[everything]'",
        "python examples/nowhere.py",
        "flwr run",
    ],
)
def test_a_mistake_is_seen(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [words] = commands(line)
    with pytest.raises((AssertionError, click.ClickException, UserError, KeyError)):
        check(words, Block("sh", line), monkeypatch)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block as lists of words; comments are gone, `;` and `&&` divide."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        for operator, words in groupby(lexer, key=lambda word: set(word) <= set(";&|")):
            if not operator:
                yield list(words)


def check(words: list[str], block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if this command cannot be what a reader can type."""
    program, *arguments = words
    match program:
        case "fedbnn":
            check_ours(arguments)
        case "make":
            assert set(arguments) <= TARGETS, words
        case "pip":
            named = re.findall(r"\[([\w,]+)\]", " ".join(arguments))
            assert {extra for one in named for extra in one.split(",")} <= EXTRAS.keys(), words
        case "python":
            assert (ROOT / arguments[0]).is_file(), words
        case "cd":
            monkeypatch.chdir(ROOT / arguments[0])
        case _:
            assert program in PLAIN or block.needs, f"cannot be checked, and does not say what it needs: {words}"


def check_ours(arguments: list[str]) -> None:
    target = arguments[arguments.index(">") + 1] if ">" in arguments else None
    arguments = arguments[: arguments.index(">")] if target else arguments
    command: click.Command = typer.main.get_command(app)
    rest, path = list(arguments), []
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    if rest == ["--install-completion"]:
        assert rest[0] in command.params[-2].opts
        return
    given = command.make_context(" ".join(path), rest).params
    config = Path(given.get("config") or "none.toml")
    load_config(config if config.is_file() or config.suffix != ".toml" else None, given.get("changes") or [])
    if path == ["compare"]:
        for method in (given["methods"] or "fedbnn").split(","):
            load_config(None, [f"method={method}"])
    if " ".join(path) in CHEAP:
        run(arguments, target)


def run(arguments: list[str], target: str | None) -> None:
    """As the shell would, with standard output into the target."""
    with pytest.MonkeyPatch.context() as patch:
        if target:
            patch.setattr(typer, "echo", lambda text, nl=True: Path(target).write_text(text))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    assert ended.value.code == 0, arguments
