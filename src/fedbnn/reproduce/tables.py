"""Tables of a study, from its JSON: every scored model its own row, the paper's number below, the best marked."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbnn.report.figures import Spread
from fedbnn.report.privacy import rounded_up
from fedbnn.report.variants import NAMES
from fedbnn.reproduce.blocks import Grid, Line, Number
from fedbnn.reproduce.scores import KINDS, Score

NOT_RUN = "not run"
PAPER = "the paper"
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "heart": "Heart disease", "digits": "Digits"}

Json = Mapping[str, Any]


def grids(study: Json) -> list[Grid]:
    """A table a score; one table with all scores where there is one column only."""
    columns, scores = study["columns"], study["scores"]
    if len(columns) == 1:
        places = [(0, score) for score in scores]
        return [_grid(study, column_title(columns[0]), [KINDS[s].heading for s in scores], places)]
    heads = [column_title(column) for column in columns]
    return [_grid(study, KINDS[s].heading, heads, [(at, s) for at in range(len(columns))]) for s in scores]


def column_title(column: Json) -> str:
    return str(column["title"] or f"{DATA.get(column['data'], column['data'])} {column['size']}".strip())


def value(run: Json, variant: str, score: str) -> float | None:
    """A score of one of a run's models; what is only known of the whole run belongs to its headline."""
    found = run["variants"].get(variant, {}).get(score)
    if found is None and variant == run["scored"]:
        found = run.get(score)
    return None if found is None else float(found)


def _grid(study: Json, caption: str, heads: list[str], places: Sequence[tuple[int, str]]) -> Grid:
    rows = list(dict.fromkeys(entry["row"] for entry in study["entries"]))
    by_place = {(entry["row"], entry["column"]): entry for entry in study["entries"]}
    drafts: list[tuple[str, str, list[tuple[Json, list[float]]], bool]] = []
    for row in rows:
        entries = [by_place[row, at] for at, _ in places]
        for at, variant in enumerate(_variants(entries) or [""]):
            cells = [
                (entry, [v for run in entry["runs"] if (v := value(run, variant, score)) is not None])
                for entry, (_, score) in zip(entries, places, strict=True)
            ]
            drafts.append((row, variant, cells, at == 0))
    best = [_best([draft[2][at][1] for draft in drafts], KINDS[score]) for at, (_, score) in enumerate(places)]
    lines: list[Line] = []
    for number, (row, variant, cells, first) in enumerate(drafts):
        title = study["row_titles"][row]
        own = [
            Number(cell_text(entry, values, KINDS[score]), best=bool(values) and best[at] == _rounded(values))
            for at, ((entry, values), (_, score)) in enumerate(zip(cells, places, strict=True))
        ]
        lines.append(Line(_label(title, variant), own, first=first))
        last = number + 1 == len(drafts) or drafts[number + 1][0] != row
        if last and study["published"] and any("published" in entry for entry, _ in cells):
            theirs = [_paper(entry, score) for (entry, _), (_, score) in zip(cells, places, strict=True)]
            if any(cell.text for cell in theirs):
                lines.append(Line(PAPER, theirs, paper=True, first=False))
    return Grid(caption, "", heads, lines)


def _variants(entries: Sequence[Json]) -> list[str]:
    """The models that any run scored, headline first."""
    return list(
        dict.fromkeys(v for entry in entries for run in entry["runs"] for v in (run["scored"], *run["variants"]))
    )


def _label(title: str, variant: str) -> str:
    return title if variant in ("", "personal") else f"{title}, {NAMES.get(variant, variant)}"


def cell_text(entry: Json, values: Sequence[float], score: Score) -> str:
    """A score of one entry; how many seeds are done, where that is not all of them."""
    if not entry["runs"]:
        return NOT_RUN
    text = score.show(values)
    planned = len(entry["seeds"])
    return text if len(entry["runs"]) == planned else f"{text} ({len(entry['runs'])} of {planned} seeds)"


def _paper(entry: Json, score: str) -> Number:
    if score != "own_class_accuracy" or "published" not in entry:
        return Number("")
    found = entry["published"]
    return Number(f"{found['mean']:.1f} ± {found['spread']:.1f}")


def _rounded(values: Sequence[float]) -> float:
    return round(Spread.of(values).mean, 3)


def _best(column: Sequence[Sequence[float]], score: Score) -> float | None:
    """The best mean as it is shown, so that rows which look equal are marked alike; None until every row has run."""
    if len(column) < 2 or not all(column):
        return None
    means = [_rounded(values) for values in column]
    return max(means) if score.higher else min(means)


def seeds_note(study: Json) -> str:
    """Over how many seeds the numbers are means."""
    counts = sorted({len(entry["seeds"]) for entry in study["entries"]})
    if counts == [1]:
        return "One seed."
    several = " or ".join(str(count) for count in counts)
    if study["kind"] == "reliability":
        return f"Predictions of {several} seeds, pooled."
    return f"Mean ± standard deviation over {several} seeds; a number without ± is of one seed."


def privacy_note(study: Json) -> str:
    """Which rows are private, and how."""
    if any("epsilon" in line["setting"] for line in study.get("lines", [])):
        return "What a run spends on privacy stands on the axis; level lines guarantee nothing."
    spent: dict[str, Json] = {}
    for entry in study["entries"]:
        for run in entry["runs"]:
            before = spent.get(entry["row"])
            if run.get("epsilon_spent") is not None and (not before or run["epsilon_spent"] > before["epsilon_spent"]):
                spent[entry["row"]] = run
    parts = [
        f"{study['row_titles'][row]}: ε = {rounded_up(run['epsilon_spent'], 2):.2f} at δ = {run['delta']:g} for one "
        f"{run['privacy_unit']}"
        for row, run in spent.items()
    ]
    return f"Spent on privacy: {'; '.join(parts)}. All other rows guarantee nothing." if parts else ""


def missing_note(study: Json) -> str:
    """How much of the plan is not done yet."""
    planned = sum(len(entry["seeds"]) for entry in study["entries"])
    done = sum(len(entry["runs"]) for entry in study["entries"])
    return "" if done == planned else f"{done} of {planned} runs are finished."
