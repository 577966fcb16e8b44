"""Start-up: what is listed needs no torch, every name is where the package says, the shell completes what is there."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

import fedbnn
from fedbnn.cli import completion
from fedbnn.cli.app import COMMANDS, app
from fedbnn.cli.lazy import summary
from fedbnn.methods import METHODS
from fedbnn.runs.config import load_config, presets
from fedbnn.runs.loggers import LOGGERS

HEAVY = ("torch", "numpy", "scipy", "sklearn", "pydantic", "fedbnn.runs", "fedbnn.federation")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import json, sys\nfrom fedbnn.cli.app import main\n"
        f"try:\n    main({arguments!r})\nfinally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(ended.stderr)
    assert "fedbnn.cli.app" in loaded
    assert [name for name in HEAVY if name in loaded] == []
    assert ended.stdout


def test_the_list_of_commands_says_what_they_say_of_themselves() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    assert list(group.commands) == list(COMMANDS)
    for name, command in group.commands.items():
        assert command.name == name
        first = (command.help or "").split("\n\n")[0].split()
        assert first
        assert summary(COMMANDS[name]).split("\n\n")[0].split() == first


def test_every_public_name_is_where_the_package_says() -> None:
    """The imports that a type checker sees are those that are made."""
    tree = ast.parse(Path(str(fedbnn.__file__)).read_text(encoding="utf-8"))
    [checked] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {one.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for one in node.names}
    assert seen == fedbnn._MODULE_OF
    assert sorted(seen) == sorted(fedbnn.__all__)
    for name, module in seen.items():
        assert getattr(fedbnn, name) is getattr(importlib.import_module(str(module)), name)
    assert set(fedbnn.__all__) <= set(dir(fedbnn))
    with pytest.raises(AttributeError, match="module 'fedbnn' has no attribute 'nothing'"):
        _ = fedbnn.nothing


def test_windows_is_told_in_one_line() -> None:
    script = "import sys; sys.platform = 'win32'; import fedbnn"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    told = ended.stderr.splitlines()[-1]
    assert told == "ImportError: fedbnn runs on Linux and macOS, not on Windows itself: install it in WSL 2"


def test_completions_are_what_there_is() -> None:
    assert completion.config_files("digits") == [name for name in presets() if name.startswith("digits")]
    assert set(completion.methods("")) >= set(METHODS)
    assert completion.methods("fedavg,fedbnn") == ["fedavg,fedbnn", "fedavg,fedbnn_paper"]
    assert "fedavg,fedavg" not in completion.methods("fedavg,")
    assert completion.settings("methods.fedbnn.gam") == ["methods.fedbnn.gamma="]
    assert completion.settings("evaluation.split=v") == ["evaluation.split=validation"]
    assert completion.settings("engine.debug=") == ["engine.debug=true", "engine.debug=false"]
    assert completion.settings("method=fedprox") == ["method=fedprox"]
    assert completion.settings("nothing=") == []
    assert tuple(LOGGERS) == completion.LOGS
    for key in completion.settings(""):
        if not key.startswith("models") and not key.endswith("_options="):  # those are tables themselves
            with pytest.raises(fedbnn.UserError) as error:  # the key is known: it is the value that is wrong
                load_config(None, [f"{key}{{x = 1}}"])
            assert f"unknown key {key[:-1]!r}" not in str(error.value)


def test_the_shell_is_told(tmp_path: Path) -> None:
    """As bash asks: the words so far, and which one is completed."""
    words = "fedbnn run --set evaluation.split="
    environment = {"_FEDBNN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    script = "import sys; from fedbnn.cli.app import main; sys.argv = ['fedbnn']; main()"
    asked = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert asked.stdout.split() == ["evaluation.split=test", "evaluation.split=validation"]
