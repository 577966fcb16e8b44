"""What the site takes from the code is all of it, and what is written by hand names what there is."""

import importlib.util
import re
from types import ModuleType

import pytest

import fedbnn
from fedbnn.base.settings import fields_of
from fedbnn.methods import METHODS
from fedbnn.runs.config import Config, default_toml
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_page_has_every_setting(reference: ModuleType) -> None:
    """By table and field, with the default that `fedbnn config` prints."""
    page = dict(reference.pages())["reference/configuration.md"]
    parts = {part.splitlines()[0]: part for part in page.split("\n## ")[1:]}
    table, seen = "A run", set()
    for line in default_toml().splitlines():
        if heading := re.fullmatch(r"\[+([\w.]+)\]+", line):
            table = heading[1]
        elif (field := re.fullmatch(r"(\w+) = (.*)", line)) and (table, field[1]) not in seen:
            assert f"| `{field[1]}` | `{field[2]}` |" in parts[table], line
            seen.add((table, field[1]))  # of the list of models, the first
    assert len(seen) > 100


def test_a_settings_table_gives_range_and_choices(reference: ModuleType) -> None:
    table = reference.settings_table("partition")
    assert "| `alpha` | `0.5` | number > 0, ≤ 1e+06 |" in table
    assert "`classes`, `iid`, `dirichlet`, `quantity`, `natural`" in table
    for name, field in fields_of(type(Config().partition)).items():
        assert f"| `{name}` |" in table
        assert field.description in table


def test_every_method_has_a_page_and_a_row(reference: ModuleType) -> None:
    pages = dict(reference.pages())
    index = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \|", index, flags=re.MULTILINE) == list(METHODS)
    for name, cls in METHODS.items():
        page = pages[f"methods/{name}.md"]
        assert f"::: {cls.__module__}\n" in page
        assert all(f"| `{field}" in page for field in fields_of(cls))


def test_the_python_page_has_all_that_is_exported(reference: ModuleType) -> None:
    page = dict(reference.pages())["reference/python.md"]
    for name in fedbnn.__all__:
        assert f".{name}\n" in f"{page}\n" or f"[{name}](../methods/" in page, name


def test_every_command_is_told_with_its_options(reference: ModuleType) -> None:
    page = dict(reference.pages())["reference/commands.md"]
    for command in ("run", "compare", "report", "reproduce", "predict", "privacy plan", "flower init"):
        assert f" fedbnn {command}\n" in page
    for option in ("--resume", "--set KEY=VALUE", "--epsilon", "--nodes", "--noise-multiplier"):
        assert f"`{option}" in page


def test_links_between_files_become_links_between_pages(reference: ModuleType) -> None:
    class Known:
        src_uris = frozenset({"results.md", "results/cpu/table1.md", "methods/fedbnn.md", "CONTRIBUTING.md"})

    def link(here: str, target: str) -> str:
        return str(reference.site_link(here, target, Known))

    assert link("results.md", "../results/cpu/table1.md") == "results/cpu/table1.md"
    assert link("methods/index.md", "../results.md") == "../results.md"
    assert link("methods/index.md", "fedbnn.md") == "fedbnn.md"
    assert link("CONTRIBUTING.md", "docs/results.md") == "results.md"
    assert link("results.md", "../setup.cfg") == "../setup.cfg"


def test_the_rooms_are_those_that_import_linter_knows(reference: ModuleType) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert named == reference.layers()[::-1]
    package = ROOT / "src" / "fedbnn"
    modules = {path for path in package.rglob("*.py") if path.name != "__init__.py" and path.parent != package}
    assert reference.rooms().count(".py` |") == len(modules)


def test_no_module_is_without_a_line(reference: ModuleType) -> None:
    """The map of the rooms is made of them."""
    for path in (ROOT / "src" / "fedbnn").rglob("*.py"):
        assert reference.first_line(path), path
