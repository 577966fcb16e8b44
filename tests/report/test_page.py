import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnn.federation.metrics import ReliabilityBins, UncertaintyHistogram
from fedbnn.report import write_report
from fedbnn.report.figures import MISSING
from tests.report.reader import Reader, chart, charts, of_class
from tests.report.samples import sample_config, sample_result, write_comparison, write_run

METHODS = ["fedbnn", "fedavg", "local"]
SEEDS = [0, 1]
RESULTS_TABLE = 0


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(write_run(tmp_path_factory.mktemp("run"), sample_result())).read_text("utf-8")


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(write_comparison(tmp_path_factory.mktemp("all"), METHODS, SEEDS)).read_text("utf-8")


def page_of(folder: Path, result: dict[str, Any], config: dict[str, Any] | None = None) -> str:
    return write_report(write_run(folder, result, config)).read_text("utf-8")


@pytest.mark.parametrize("name", ["run_page", "comparison_page"])
def test_page_is_well_formed_and_self_contained(name: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(name)
    reader = Reader(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not [a for a in reader.attributes if a[1] in {"src", "href", "xlink:href"} or a[1].startswith("on")]
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", page)
    assert "url(" not in page
    assert "@import" not in page
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes
    assert len(reader.ids) == len(set(reader.ids))


@pytest.mark.parametrize("name", ["run_page", "comparison_page"])
def test_every_chart_has_a_name_and_every_section_a_reading(name: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(name)
    for drawing in charts(page):
        assert len(drawing.get("aria-label", "")) > 20
        assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", drawing.get("viewBox", ""))
    for section in re.findall(r"<section.*?</section>", page, flags=re.DOTALL):
        if "<svg" in section:
            assert 'class="reading"' in section


def test_every_class_a_chart_uses_is_styled(run_page: str, comparison_page: str) -> None:
    for page in (run_page, comparison_page):
        style = page[page.index("<style>") : page.index("</style>")]
        used = {name for c in charts(page) for e in c.iter() for name in e.get("class", "").split()}
        assert used
        assert all(re.search(rf"\.{name}\b", style) for name in used)


@pytest.mark.parametrize("name", ["run_page", "comparison_page"])
def test_marks_stay_inside_their_drawing(name: str, request: pytest.FixtureRequest) -> None:
    for drawing in charts(request.getfixturevalue(name)):
        _, _, width, height = map(float, drawing.get("viewBox", "").split())
        for rect in drawing.iter("rect"):
            x, y, w, h = (float(rect.get(key, "nan")) for key in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width + 0.05
            assert 0 <= y <= y + h <= height + 0.05
        for path in drawing.iter("path"):
            points = [tuple(map(float, p.split())) for p in path.get("d", "").strip("MZ").split("L")]
            assert all(-5 <= x <= width + 5 and -5 <= y <= height + 5 for x, y in points)


def test_cards_show_the_numbers_of_the_run(run_page: str) -> None:
    result = sample_result()
    text = " ".join(Reader(run_page).text)
    assert "fedbnn on digits" in text
    for shown in (
        f"{result['own_class_accuracy']:.1%}",
        f"{result['all_class_accuracy']:.1%}",
        f"{result['nll']:.3f}",
        f"{result['all_class_nll']:.3f}",
        f"{result['brier']:.3f}",
        f"{result['ece']:.3f}",
        f"{result['mce']:.3f}",
        "16.0 kB",
        f"{result['seconds']:.1f} s",
        "20 clients",
        "12 rounds",
        "scored on the test split",
    ):
        assert shown in text


def test_client_table_holds_every_client(run_page: str) -> None:
    per = sample_result()["per_client"]
    heading, *rows = Reader(run_page).tables[-1]
    assert heading[0] == "Client"
    assert [row[0] for row in rows] == per["name"]
    assert [row[1] for row in rows] == per["model"]
    assert [int(row[2].replace(",", "")) for row in rows] == per["weights"]
    assert [row[4] for row in rows] == [", ".join(map(str, held)) for held in per["classes"]]
    accuracy = heading.index("Own-class accuracy")
    shown = [float(row[accuracy].rstrip("%")) / 100 for row in rows]
    np.testing.assert_allclose(shown, per["own_class_accuracy"], atol=5.1e-4)


def test_comparison_table_shows_mean_and_deviation_over_seeds(comparison_page: str) -> None:
    heading, *rows = Reader(comparison_page).tables[RESULTS_TABLE]
    assert heading == [
        "Method", "Own-class accuracy", "All-class accuracy", "NLL", "ECE", "MCE", "Sent", "Received", "Time",
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["fedbnn", "fedavg global", "fedavg fine-tuned", "local"]
    fields = ["own_class_accuracy", "all_class_accuracy", "nll", "ece", "mce"]
    models = [("fedbnn", "personal"), ("fedavg", "global"), ("fedavg", "fine_tuned"), ("local", "personal")]
    for row, (method, variant) in zip(rows, models, strict=True):
        results = [sample_result(method, seed)["variants"][variant] for seed in SEEDS]
        for text, field in zip(row[1:6], fields, strict=True):
            values = np.array([result[field] for result in results])
            scale, tolerance = (100, 0.0501) if "%" in text else (1, 0.000501)
            mean, deviation = map(float, re.findall(r"[\d.]+", text))
            assert mean == pytest.approx(values.mean() * scale, abs=tolerance)
            assert deviation == pytest.approx(values.std(ddof=1) * scale, abs=tolerance)
    assert "Means over clients and 2 seeds" in " ".join(Reader(comparison_page).text)


def test_best_of_each_column_is_marked_in_words(comparison_page: str) -> None:
    heading, *rows = Reader(comparison_page).tables[RESULTS_TABLE]
    fields = {"Own-class accuracy": max, "NLL": min, "ECE": min}
    keys = {"Own-class accuracy": "own_class_accuracy", "NLL": "nll", "ECE": "ece"}
    models = {
        "fedbnn": ("fedbnn", "personal"),
        "fedavg global": ("fedavg", "global"),
        "fedavg fine-tuned": ("fedavg", "fine_tuned"),
        "local": ("local", "personal"),
    }
    for name, choose in fields.items():
        means = {
            label: float(np.mean([sample_result(method, s)["variants"][variant][keys[name]] for s in SEEDS]))
            for label, (method, variant) in models.items()
        }
        column = heading.index(name)
        marked = [row[0] for row in rows if "best" in row[column]]
        assert marked == [choose(means, key=means.__getitem__)]
        assert all(("★" in row[column]) == ("best" in row[column]) for row in rows)


def test_costs_are_the_runs_and_stand_once(comparison_page: str) -> None:
    heading, *rows = Reader(comparison_page).tables[RESULTS_TABLE]
    by_label = {row[0]: row for row in rows}
    assert by_label["fedavg fine-tuned"][heading.index("Sent") :] == ["", "", ""]
    assert by_label["fedavg global"][heading.index("Sent")] == "488.7 kB"
    assert [row[0] for row in rows if "best" in row[heading.index("Time")]] == ["local"]


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    page = write_report(write_comparison(tmp_path, ["fedbnn", "local"], [3])).read_text("utf-8")
    reader = Reader(page)
    assert not any("±" in cell for row in reader.tables[RESULTS_TABLE] for cell in row)
    assert "One seed a method." in " ".join(reader.text)


def test_seeds_of_one_method_alone_have_nothing_to_be_best_of(tmp_path: Path) -> None:
    page = write_report(write_comparison(tmp_path, ["fedbnn"], SEEDS)).read_text("utf-8")
    assert "★" not in page
    assert "fedbnn on digits" in page
    assert chart(page, "Epistemic uncertainty of fedbnn") is not None


def test_unequal_numbers_of_seeds_are_shown(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedbnn", "local"], SEEDS)
    listing = json.loads((tmp_path / "comparison.json").read_text())
    listing["runs"].pop()
    (tmp_path / "comparison.json").write_text(json.dumps(listing))
    reader = Reader(write_report(tmp_path).read_text("utf-8"))
    heading, *rows = reader.tables[RESULTS_TABLE]
    assert heading[1] == "Seeds"
    assert [row[1] for row in rows] == ["2", "1"]
    assert "not run with the same seeds" in " ".join(reader.text)


def test_runs_that_are_not_alike_are_pointed_out(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedbnn", "local"], [0])
    write_run(tmp_path / "local-seed0", sample_result("local", 0, rounds=5))
    text = " ".join(Reader(write_report(tmp_path).read_text("utf-8")).text)
    assert "The runs differ in the number of rounds: 12 (fedbnn); 5 (local)." in text
    assert "20 clients" in text
    assert "12 rounds" not in text


def test_reliability_bars_are_as_high_as_the_accuracy(run_page: str) -> None:
    bins = ReliabilityBins.from_dict(sample_result()["reliability"])
    drawing = chart(run_page, "Reliability of fedbnn")
    accuracies = bins.accuracy[~np.isnan(bins.accuracy)]
    heights = [float(bar.get("height", "nan")) for bar in of_class(drawing, "accuracy")]
    np.testing.assert_allclose(heights, 200 * accuracies, atol=0.011)
    counts = np.array([float(bar.get("height", "nan")) for bar in of_class(drawing, "count")])
    np.testing.assert_allclose(counts / counts.max(), bins.count / bins.count.max(), atol=0.001)
    assert f"ECE {bins.ece:.3f}, MCE {bins.mce:.3f}, 2,400 predictions" in drawing.get("aria-label", "")


def test_uncertainty_bars_are_shares_of_their_own_kind(run_page: str) -> None:
    histogram = UncertaintyHistogram.from_dict(sample_result()["uncertainty"]["total"])
    drawing = chart(run_page, "Total uncertainty of fedbnn")
    for kind, counts in (("right", histogram.right), ("wrong", histogram.wrong)):
        heights = np.array([float(bar.get("height", "nan")) for bar in of_class(drawing, kind)])
        np.testing.assert_allclose(heights / heights.sum(), counts[counts > 0] / counts.sum(), atol=1e-3)


def test_the_auroc_is_exact_and_missing_in_results_that_counted_no_pairs(run_page: str, tmp_path: Path) -> None:
    result = sample_result()
    exact = UncertaintyHistogram.from_dict(result["uncertainty"]["total"]).auroc
    assert f"AUROC {exact:.3f}." in chart(run_page, "Total uncertainty of fedbnn").get("aria-label", "")
    for kind in ("total", "epistemic"):
        for name in ("pairs", "won"):
            del result["uncertainty"][kind][name]
    label = chart(page_of(tmp_path, result), "Total uncertainty of fedbnn").get("aria-label", "")
    assert f"AUROC {MISSING}." in label


def test_learning_curve_follows_the_rounds_that_were_evaluated(tmp_path: Path) -> None:
    result = sample_result()
    kept = [0, 5, 10, 12]
    result["curve"] = {name: [values[i] for i in kept] for name, values in result["curve"].items()}
    drawing = chart(page_of(tmp_path, result), "Own-class accuracy against rounds")
    (line,) = of_class(drawing, "line")
    points = [tuple(map(float, p.split())) for p in line.get("d", "").strip("M").split("L")]
    x = np.array([p[0] for p in points])
    np.testing.assert_allclose((x - x[0]) / (x[-1] - x[0]), np.array(kept) / 12, atol=1e-3)
    y = np.array([p[1] for p in points])
    accuracy = np.array(result["curve"]["own_class_accuracy"])
    np.testing.assert_allclose(np.polyval(np.polyfit(accuracy, y, 1), accuracy), y, atol=0.02)
    assert y[-1] < y[0]


def test_band_spans_the_seeds(comparison_page: str, run_page: str) -> None:
    assert len(of_class(chart(comparison_page, "Own-class accuracy against"), "band")) == len(METHODS)
    assert not of_class(chart(run_page, "Own-class accuracy against"), "band")


def test_every_client_has_its_mark(run_page: str, comparison_page: str) -> None:
    spots = of_class(chart(run_page, "Own-class accuracy of the clients of fedbnn"), "spot")
    assert len(spots) == 20
    tips = {spot[0].text for spot in spots}
    per = sample_result()["per_client"]
    assert tips == {f"{n}: {a:.1%}" for n, a in zip(per["name"], per["own_class_accuracy"], strict=True)}
    pooled = of_class(chart(comparison_page, "Own-class accuracy of the clients of fedavg"), "spot")
    assert len(pooled) == 20 * len(SEEDS)


def test_communication_in_plain_words(run_page: str, comparison_page: str) -> None:
    text = " ".join(" ".join(Reader(run_page).text).split())
    weights = sum(sample_result()["per_client"]["weights"]) / 20
    assert "a client sends 16.0 kB and receives 16.0 kB" in text
    assert f"What exchanging weights would need: {weights * 4 / 1000:.1f} kB each way" in text
    assert f"{weights * 4 / 16000:.0f} times as much" in text
    table = Reader(comparison_page).tables[1]
    assert table[1][1:] == ["16.0 kB", "16.0 kB", "488.7 kB", "31 times as much"]
    assert table[3][1:3] == ["0 B", "0 B"]


def test_configuration_is_dotted_and_differences_come_first(run_page: str, comparison_page: str) -> None:
    text = " ".join(" ".join(Reader(run_page).text).split())
    assert "data.partition.classes_per_client 5" in text
    assert "privacy.enabled no" in text
    differing = {row[0]: row[1:] for row in Reader(comparison_page).tables[2]}
    assert differing["seed"] == ["0, 1"] * 3
    assert differing["method.name"] == METHODS
    assert differing["method.gamma"] == ["0.7", MISSING, MISSING]
    assert "rounds" not in differing


HOSTILE = "</title></style><script>alert('x')</script>\"&\x00"


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    result = sample_result()
    result["method"] = result["dataset"] = result["split"] = result["fedbnn_version"] = HOSTILE
    result["class_names"] = [HOSTILE] * 10
    result["per_client"]["name"] = [HOSTILE] * 20
    result["per_client"]["model"] = [HOSTILE] * 20
    page = page_of(tmp_path, result, {HOSTILE: {HOSTILE: [HOSTILE, {"a": HOSTILE}]}})
    reader = Reader(page)
    assert "script" not in reader.tags
    assert "<script" not in page
    assert charts(page)
    assert any("<script>alert('x')</script>" in text for text in reader.text)


def test_hostile_methods_of_a_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "a", sample_result())
    runs = [{"method": HOSTILE, "seed": 0, "folder": "a"}, {"method": "b", "seed": 0, "folder": "a"}]
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": runs}))
    page = write_report(tmp_path).read_text("utf-8")
    assert "<script" not in page
    assert charts(page)
    assert Reader(page).tables[RESULTS_TABLE][1][0] == HOSTILE.replace("\x00", "\ufffd")


def test_missing_numbers_show_as_a_dash(tmp_path: Path) -> None:
    result = sample_result()
    result["ece"] = result["variants"]["personal"]["ece"] = None
    result["all_class_accuracy"] = result["variants"]["personal"]["all_class_accuracy"] = math.nan
    result["bytes_up_per_client_round"] = None
    result["per_client"]["own_class_accuracy"][3] = None
    result["per_client"]["nll"][4] = math.nan
    result["curve"]["nll"] = [None] * 13
    result["curve"]["ece"][2] = math.nan
    result["uncertainty"]["total"]["wrong"] = [0] * 20
    reader = Reader(page := page_of(tmp_path, result))
    table = reader.tables[-1]
    assert table[4][table[0].index("Own-class accuracy")] == MISSING
    assert table[5][table[0].index("NLL")] == MISSING
    assert re.search(rf"<dt>ECE</dt><dd>{MISSING}</dd>", page)
    assert not re.search(r"\bnan\b|None", page)
    assert len(of_class(chart(page, "Own-class accuracy of the clients"), "spot")) == 19


def test_perfect_run_with_one_client_and_one_round(tmp_path: Path) -> None:
    result = sample_result(rounds=1, clients=1)
    result["own_class_accuracy"] = result["variants"]["personal"]["own_class_accuracy"] = 1.0
    result["curve"]["own_class_accuracy"][0] = 1.0
    result["curve"]["own_class_accuracy"][1] = 1.0
    result["per_client"]["own_class_accuracy"] = [1.0]
    result["per_client"]["classes"] = [list(range(10))]
    page = page_of(tmp_path, result)
    ticks = [e.text for e in of_class(chart(page, "Own-class accuracy against rounds"), "tick")]
    assert "100%" in ticks
    assert "110%" not in ticks
    assert "1 client ·" not in page
    assert "all 10" in page
    assert "1 client" in page


def test_same_input_gives_the_same_page(tmp_path: Path) -> None:
    first = page_of(tmp_path / "a", sample_result())
    assert first == page_of(tmp_path / "b", sample_result())


def test_report_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, sample_result(), sample_config())
    (tmp_path / "report.html").write_text("old")
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "report.html", "result.json"]
