"""Numbers on paper and page are those of the runs, found by another way than the program's."""

import json
import math
import re
import statistics
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.report.figures import duration, show
from fedbnn.reproduce import page, sections, tables
from fedbnn.reproduce.collect import by_model, over_models, paper_sizes
from fedbnn.reproduce.published import CALIBRATION, TABLE1


def rows_of(text):
    """Tables of a Markdown file as lists of rows of cells, marks of emphasis taken off."""
    found, table = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
        elif table:
            found.append([row for row in table if set("".join(row)) != {"-"}])
            table = []
    return found


class Cells(HTMLParser):
    """The text of every cell of every table of a page."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.tables[-1][-1][-1] += data.replace("★", "").replace("best", "").strip()


def expected(results, method, size, score, variant, private=False):
    """Mean ± standard deviation over the runs of a method, from their result.json files."""
    records = {"small": 10, "medium": 15}[size]
    chosen = [
        result["variants"][variant][score]
        for result in results.values()
        if result["method"] == method
        and set(result["per_client"]["records"]) == {records}
        and set(result["per_client"]["model"]) == {"mlp"}
        and (result["epsilon_spent"] is not None) == private
    ]
    scale, digits = (100, 1) if "accuracy" in score else (1, 3)
    text = f"{statistics.mean(chosen) * scale:.{digits}f}"
    return text if len(chosen) == 1 else f"{text} ± {statistics.stdev(chosen) * scale:.{digits}f}"


@pytest.mark.parametrize(("number", "score"), [(0, "own_class_accuracy"), (1, "ece")])
def test_the_table_says_what_the_runs_found(done, number, score):
    out, results, _ = done
    table = rows_of((out / "table1.md").read_text())[number]
    assert table[0] == ["", "Digits small", "Digits medium"]
    wanted = [
        ["FedAvg, global", "fedavg", "global", False],
        ["FedAvg, fine-tuned", "fedavg", "fine_tuned", False],
        ["FedAvg, global, own prior", "fedavg", "global_own_prior", False],
        ["FedBNN", "fedbnn", "personal", False],
        ["FedBNN, general", "fedbnn", "general", False],
        ["FedBNN, private", "fedbnn", "personal", True],
        ["FedBNN, private, general", "fedbnn", "general", True],
    ]
    assert table[1:] == [
        [label, *(expected(results, method, size, score, variant, private) for size in ("small", "medium"))]
        for label, method, variant, private in wanted
    ]


def test_page_and_paper_say_the_same(done):
    out, _, _ = done
    html, text = (out / "index.html").read_text(), (out / "README.md").read_text()
    assert Cells(html).tables == rows_of(text)
    assert len(rows_of(text)) == 6
    assert "Three clients &amp; one round." in html
    assert "Spent on privacy: FedBNN, private: ε = 3.00 at δ = 1e-05 for one record." in text
    for name in ("table1", "figure2a", "calibration", "cost"):
        alone = rows_of((out / f"{name}.md").read_text())
        assert all(table in rows_of(text) for table in alone)
        assert f'<section id="{name}">' in html


def test_the_page_loads_nothing_and_is_the_same_every_time(done, tmp_path):
    out, _, work = done
    html = (out / "index.html").read_text()
    assert not re.search(r'(src|href)="(?!#)', html)
    assert "url(" not in html
    work.write(tmp_path)
    for path in out.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_curve_shows_the_clients_it_names(done):
    out, results, _ = done
    [table] = rows_of((out / "figure2a.md").read_text())
    [mixed] = [one for one in results.values() if set(one["per_client"]["model"]) == {"mlp", "cnn2"}]
    clients = mixed["per_client"]
    of_cnn2 = [a for a, model in zip(clients["own_class_accuracy"], clients["model"], strict=True) if model == "cnn2"]
    assert table[0] == ["share of small clients", "0%", "50%"]
    assert table[1][2] == f"{100 * np.mean(clients['own_class_accuracy']):.1f}"
    assert table[2] == ["cnn2 only", "", f"{100 * np.mean(of_cnn2):.1f}"]
    chart = ElementTree.fromstring((out / "figure2a.svg").read_text())
    words = [element.text for element in chart.iter() if element.tag.endswith("text")]
    assert {"all clients", "cnn2 only", "FedAvg everywhere", "share of small clients"} <= set(words)


def test_the_page_says_how_long_its_runs_took(done):
    """Studies share runs: `cost` has those of `table1`. Each counts once."""
    out, results, _ = done
    seconds = math.fsum(result["seconds"] for result in results.values())
    said = f"{len(results)} runs, {show(seconds, duration)} one after the other."
    assert said in (out / "README.md").read_text()
    assert said in (out / "index.html").read_text()


def test_every_figure_is_a_file_of_its_own(done):
    out, _, _ = done
    named = re.findall(r"!\[[^]]*\]\((\S+)\)", (out / "README.md").read_text())
    assert sorted(named) == sorted(path.name for path in out.glob("*.svg"))
    assert sorted(named) == ["calibration-digits-small-fedbnn.svg", "figure2a.svg"]
    for name in named:
        root = ElementTree.fromstring((out / name).read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.get("width")) > 0
        assert "prefers-color-scheme: dark" in root[0].text


def test_calibration_is_of_the_pooled_predictions(done):
    out, results, _ = done
    [table] = rows_of((out / "calibration.md").read_text())
    chosen = [r for r in results.values() if r["method"] == "fedbnn" and r["epsilon_spent"] is None]
    chosen = [r for r in chosen if set(r["per_client"]["records"]) == {10} and "cnn2" not in r["per_client"]["model"]]
    assert len(chosen) == 2
    count, right, confidence = (
        np.sum([one["reliability"][key] for one in chosen], axis=0)
        for key in ("count", "correct_sum", "confidence_sum")
    )
    gaps = np.abs(right - confidence)
    ece, mce = gaps.sum() / count.sum(), (gaps[count > 0] / count[count > 0]).max()
    assert table == [["", "ECE", "MCE"], ["FedBNN, Digits small", f"{ece:.3f}", f"{mce:.3f}"]]


def test_costs_are_those_of_the_messages(done):
    out, _, _ = done
    measured, analytic = rows_of((out / "cost.md").read_text())
    weights = 64 * 8 + 8 + 8 * 10 + 10
    assert measured[1][:4] == ["FedAvg", f"{(4 * weights + 4) / 1000:.1f} kB", f"{4 * weights / 1000:.1f} kB", "610"]
    assert measured[2][:4] == ["FedBNN", "800 B", "800 B", "610"]
    # 2000 points x 10 classes x 4 bytes; VGG9 on 3 x 32 x 32 by hand
    convolutions = [(3, 32), (32, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
    linear = [(256 * 4 * 4, 512), (512, 512), (512, 10)]
    vgg9 = sum(9 * a * b + b for a, b in convolutions) + sum(a * b + b for a, b in linear)
    assert analytic[2][:3] == ["CIFAR-10", "80.0 kB", f"{4 * vgg9 / 1e6:.1f} MB"]
    assert [one["weights"] for one in paper_sizes() if one["data"] == "cifar10"] == [vgg9]


def study(entries, **changes):
    """A table on MNIST small, as JSON."""
    column = {"data": "mnist", "size": "small", "title": "", "seeds": [], "set": []}
    titles = {entry["row"]: entry["row"] for entry in entries}
    plain = {"study": "t", "kind": "table", "title": "T", "reading": "", "changed": [], "published": True}
    columns = {"columns": [column, column | {"data": "cifar10"}], "scores": ["own_class_accuracy"]}
    return plain | columns | {"row_titles": titles, "entries": entries} | changes


def entry(row, column, values, seeds=2, **more):
    runs = [
        {"seed": at, "scored": "personal", "variants": {"personal": {"own_class_accuracy": value}}}
        for at, value in enumerate(values)
    ]
    return {
        "row": row,
        "method": row,
        "column": column,
        "data": "mnist",
        "seeds": list(range(seeds)),
        "runs": runs,
    } | more


def test_the_paper_s_number_stands_below_ours_and_the_best_is_marked():
    mean, spread = TABLE1["Ours (Homo)"]["mnist", "small"]
    theirs = {"row": "Ours (Homo)", "mean": mean, "spread": spread}
    found = sections.section(
        study(
            [
                entry("fedbnn", 0, [0.96, 0.94], published=theirs),
                entry("fedbnn", 1, []),
                entry("local", 0, [0.90]),
                entry("local", 1, [0.5, 0.5]),
            ]
        )
    )
    [table] = rows_of(found.markdown())
    assert table[1:] == [
        ["fedbnn", "95.0 ± 1.4", "not run"],
        ["the paper", "94.9 ± 1.0", ""],
        ["local", "90.0 (1 of 2 seeds)", "50.0 ± 0.0"],
    ]
    text = found.markdown()
    assert "| fedbnn | **95.0 ± 1.4** | not run |" in text
    assert "| *the paper* | *94.9 ± 1.0* |  |" in text
    html = page.render("T", [], [found])
    assert html.count("★<span") == 1
    assert Cells(html).tables[0] == table


def test_lower_is_better_for_errors():
    runs = [entry("a", 0, [0.1]), entry("a", 1, [0.1]), entry("b", 0, [0.2]), entry("b", 1, [0.2])]
    for one in runs:
        for run in one["runs"]:
            run["variants"]["personal"]["ece"] = run["variants"]["personal"]["own_class_accuracy"]
    [table] = tables.tables(study(runs, scores=["ece"]))
    assert [cell.best for row in table.rows for cell in row.cells[1:]] == [True, True, False, False]


def test_scores_of_detection_are_found_with_the_run_and_with_its_models():
    runs = [entry("a", 0, [0.9], seeds=1), entry("b", 0, [0.9], seeds=1)]
    runs[0]["runs"][0]["variants"]["personal"]["ood_auroc_epistemic"] = 0.75
    runs[1]["runs"][0]["ood_auroc_epistemic"] = 0.5
    one = study(runs, scores=["ood_auroc_epistemic", "own_class_accuracy"])
    [table] = tables.tables(one | {"columns": one["columns"][:1]})
    assert table.caption == "MNIST small"
    assert [column.title for column in table.columns] == ["", "AUROC, epistemic uncertainty", "own-class accuracy, %"]
    assert [[str(cell) for cell in row.cells] for row in table.rows] == [["a", "0.750", "90.0"], ["b", "0.500", "90.0"]]


def test_means_by_model_add_up_to_the_mean_of_all():
    scores = ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "all_class_nll")
    rng = np.random.default_rng(0)
    clients = {name: rng.random(7).tolist() for name in (*scores, "weights", "records", "seconds")}
    clients["model"] = ["a", "b", "c", "a", "a", "b", "a"]
    models = by_model(clients)
    assert {name: model["clients"] for name, model in models.items()} == {"a": 4, "b": 2, "c": 1}
    assert over_models(models, models, "nll") == pytest.approx(np.mean(clients["nll"]))
    chosen = [v for v, model in zip(clients["nll"], clients["model"], strict=True) if model in "bc"]
    assert over_models(models, ["b", "c"], "nll") == pytest.approx(np.mean(chosen))
    assert over_models(models, ["d"], "nll") is None


def test_what_the_paper_published():
    assert len(TABLE1) == 10
    assert all(len(row) == 9 for row in TABLE1.values())
    assert TABLE1["FedAvg"]["mnist", "small"] == (88.2, 0.5)
    assert TABLE1["pFedBayes"]["cifar10", "small"] == (58.7, 1.1)
    assert TABLE1["FOLA"]["cifar100", "full"] == (43.2, 1.6)
    assert TABLE1["Ours (Homo)"]["cifar10", "medium"] == (72.3, 0.6)
    assert TABLE1["Ours (Hetero-DP)"]["cifar100", "small"] == (43.7, 2.3)
    assert TABLE1["DP-FedAvg"]["mnist", "full"] == (86.2, 1.7)
    assert CALIBRATION == {"cifar10": (0.070, 0.134), "mnist": (0.032, 0.156)}


def test_the_json_keeps_what_tables_need(done):
    out, results, _ = done
    found = json.loads((out / "table1.json").read_text())
    runs = [run for one in found["entries"] for run in one["runs"]]
    assert len(runs) == 9
    for run in runs:
        result = results[run["run"]]
        assert run["run"].endswith(run["hash"])
        assert run["seed"] == result["seed"]
        assert run["variants"] == result["variants"]
        assert run["epsilon_spent"] == result["epsilon_spent"]
        assert run["seconds"] == result["seconds"]
        assert run["bytes_up_per_client_round"] == result["bytes_up_per_client_round"]
    calibration = json.loads((out / "calibration.json").read_text())
    for run in calibration["entries"][0]["runs"]:
        assert ReliabilityBins.from_dict(run["reliability"]).ece == pytest.approx(results[run["run"]]["ece"])


def test_what_was_spent_is_told_of_rows_that_were_run():
    """Both numbers of secure aggregation; and nothing of rows that have no run yet."""
    private = {"epsilon_spent": 10.201, "epsilon_joined": 2.999, "delta": 1e-5, "privacy_unit": "record"}
    titles = {"a": "A", "b": "B"}

    def note(*runs):
        entries = [{"row": row, "runs": list(of)} for row, of in zip("ab", runs, strict=True)]
        return tables.privacy_note({"entries": entries, "row_titles": titles})

    spent = "A: ε = 10.21 at δ = 1e-05 for one record (3.00 as long as the secure aggregation holds)"
    assert note([private], []) == f"Spent on privacy: {spent}."
    assert note([private], [{"epsilon_spent": None}]) == f"Spent on privacy: {spent}. All other rows guarantee nothing."
    assert note([], [{"epsilon_spent": None}]) == ""


def test_a_curve_has_a_panel_for_each_federation_and_score_and_infinity_a_place():
    points = [{"x": 8, "label": ""}, {"x": 1, "label": ""}, {"x": 1e6, "label": "∞"}]
    shape = {"row": "a", "title": "", "models": [], "scored": "", "setting": ""}
    lines = [shape | {"points": points}, shape | {"row": "b", "points": []}]
    scores = ["own_class_accuracy", "nll"]

    def ran(column, line, x, value):
        run = {"seed": 0, "scored": "personal", "variants": {"personal": dict.fromkeys(scores, value)}}
        return {"row": "ab"[line], "column": column, "line": line, "x": x, "seeds": [0], "runs": [run]}

    entries = [ran(column, 0, x, 0.5) for column in (0, 1) for x in (8, 1, 1e6)]
    entries += [ran(column, 1, None, 0.25 + column / 2) for column in (0, 1)]
    axis = {"kind": "curve", "x": "ε", "percent": False, "even": True, "lines": lines, "scores": scores}
    found = sections.section(study(entries, **axis))
    figure, *grids = found.blocks
    assert [grid.caption for grid in grids] == [
        f"{data}: {score}" for data in ("MNIST small", "CIFAR-10 small") for score in ("own-class accuracy, %", "NLL")
    ]
    assert all([column.title for column in grid.columns] == ["ε", "1", "8", "∞"] for grid in grids)
    assert [cell.text for cell in grids[3].rows[1].cells[1:]] == ["0.750"] * 3
    chart = ElementTree.fromstring(str(figure.chart))
    words = [(element.text, float(element.get("x")), float(element.get("y"))) for element in chart.iter("text")]
    places = [at for name in ("1", "8", "∞") for at in sorted((y, x) for text, x, y in words if text == name)]
    ones, eights, ends = places[:4], places[4:8], places[8:]
    assert len(places) == 12, "three ticks in each of four panels"
    for (y1, x1), (y2, x2), (y3, x3) in zip(ones, eights, ends, strict=True):
        assert y1 == y2 == y3
        assert x2 - x1 == pytest.approx(x3 - x2)
    assert len({y for y, _ in ones}) == len({x for _, x in ones}) == 2, "two by two"
    assert [text for text, *_ in words].count("a") == 1, "one legend for all panels"
