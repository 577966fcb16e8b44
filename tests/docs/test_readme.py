"""The README is short, its example runs, and its numbers and links are those of the repository."""

import re
from collections.abc import Iterator

import pytest

from fedbnn import __version__
from tests.docs.pages import NAMES, ROOT, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE1 = (ROOT / "results" / "cpu" / "table1.md").read_text("utf-8")
FIELD = (ROOT / "results" / "cpu" / "field.md").read_text("utf-8")


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip(" *") for cell in line.strip("|").split("|")]


def scores(measure: str, page: str = TABLE1) -> dict[str, dict[str, str]]:
    """One of the tables of a page of results: by row and column."""
    _, _, after = page.partition(f"**{measure}")
    heads, _, *body = rows(re.sub(r" \(\d of \d seeds\)", "", after.partition("\n**")[0]))
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in body if row[0] != "the paper"}


def test_it_is_one_page() -> None:
    assert len(README.split()) <= 700


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """With a client of each architecture, among two worker processes, as it says."""
    [example] = [block.text for block in blocks("README.md") if block.language == "python"]
    for long, short in (("rounds=3", "rounds=1"), ("clients=20", "clients=3"), ("alignment=400", "alignment=40")):
        assert long in example
        example = example.replace(long, short)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("tensor(") == 3


def test_the_headline_is_table_1() -> None:
    """Every number of the README's table stands in Table 1, for the model of the method that it names."""
    own, everything, ece = scores("own-class"), scores("all-class"), scores("ECE")
    heads, _, *body = rows(README)
    assert heads[0] == "CIFAR-10"
    assert len(body) == 5
    for label, *cells in body:
        name = {"every client alone": "Local"}.get(label, label)
        best = name if name in own else f"{name}, global, own prior"
        broad = {"FedBNN": "FedBNN, general", "FOLA": "FOLA, global", "FedAvg": "FedAvg, global"}.get(name, name)
        found = [table[row]["CIFAR-10 small"] for table, row in ((own, best), (everything, broad), (ece, best))]
        assert [re.sub(r"\*| \(.*\)", "", cell) for cell in cells] == found, label


def test_the_page_of_results_is_table_1() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    heads, _, *body = rows(page.partition("## What this lead rests on")[0])
    found = scores("own-class")
    assert len(body) == 7
    for label, *cells in body:
        row = found.get(label) or found[f"{label}, fine-tuned"]
        assert cells == [row[head] for head in heads[1:]], label


def test_the_page_of_results_compares_on_the_same_features() -> None:
    """Its rows are those of the field's table: FedBNN on images, the others' global models on features."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    _, _, *body = rows(page.partition("## What this lead rests on")[2])
    assert len(body) == 6
    for label, *cells in body:
        ours = label.startswith("FedBNN")
        column = f"CIFAR-10, {'images' if ours else 'features'}"
        own = "FedBNN" if ours else f"{label}, global, own prior"
        broad = "FedBNN, general" if ours else f"{label}, global"
        asked = (("own-class", own), ("all-class", broad), ("NLL", own), ("ECE", own))
        found = [scores(measure, FIELD)[row][column] for measure, row in asked]
        assert [cell.removesuffix(" (general)") for cell in cells] == found, label


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert "Privacy Preserving Bayesian Federated Learning in Heterogeneous Settings" in citation
    assert re.findall(r"family-names: (\w+)", citation) == ["Makhija", "Ghosh", "Ho"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Links within docs are checked by the strict build of the site."""
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_no_page_is_forgotten() -> None:
    """Every hand-written page is in the navigation of the site."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in NAMES:
        if name.startswith("docs/"):
            assert f" {name.removeprefix('docs/')}\n" in listed, name
