"""What the page says of models that claim too much, of each class, and of answers that are certain."""

import math
import re

import numpy as np
import pytest

from fedbnn import UserError
from fedbnn.federation.metrics import ReliabilityBins, confusion, ranked_counts, reliability
from fedbnn.report import write_report
from fedbnn.report.confidence import LEAST, bound, overconfidence
from tests.report.reader import Reader, charts, of_class
from tests.report.samples import CLASSES, sample_result, write_comparison, write_run


def counted(skill=0.8, n=600):
    """Predictions, and the entries of a result that are made of them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    peak = np.where(rng.random(n) < skill, y, rng.integers(0, CLASSES, n))
    p = rng.dirichlet(np.ones(CLASSES), n) * 0.6 + 0.4 * np.eye(CLASSES)[peak]
    entries = {"ranked": ranked_counts(p, y).to_dict(), "confusion": confusion(p, y).to_list()}
    return p, y, entries | {"reliability": reliability(p, y).to_dict()}


def page_of(folder, **changes):
    return write_report(write_run(folder, sample_result() | changes)).read_text("utf-8")


def chart_named(page, beginning):
    return next(one for one in charts(page) if one.get("aria-label", "").startswith(beginning))


def test_the_curve_tells_the_accuracy_of_the_most_certain(tmp_path):
    p, y, entries = counted()
    page = page_of(tmp_path, **entries)
    right = (p.argmax(1) == y)[np.argsort(-p.max(1), kind="stable")]
    told = chart_named(page, "Accuracy against the share").get("aria-label")
    assert f"fedbnn: {right[:300].mean():.1%} on the more certain half, {right.mean():.1%} on all." in told
    tips = re.findall(r"fedbnn: ([\d.]+)% of the most certain (\d+)% are right", page)
    assert [int(share) for _, share in tips] == list(range(10, 101, 10))
    assert [float(value) for value, _ in tips] == [
        pytest.approx(100 * right[: 60 * step].mean(), abs=0.051) for step in range(1, 11)
    ]


def test_the_matrix_and_the_table_tell_the_counts(tmp_path):
    p, y, entries = counted()
    page = page_of(tmp_path, **entries)
    reader = Reader(page)
    predicted = p.argmax(1)
    rows = next(table for table in reader.tables if table[0][:2] == ["Class", "Records"])
    for label, (name, records, recall, precision, f1) in enumerate(rows[1:]):
        assert (name, int(records)) == (str(label), (y == label).sum())
        hits = ((y == label) & (predicted == label)).sum()
        assert recall == f"{hits / (y == label).sum():.1%}"
        assert precision == f"{hits / (predicted == label).sum():.1%}"
        assert f1 == f"{2 * hits / ((y == label).sum() + (predicted == label).sum()):.1%}"
    drawing = chart_named(page, "Confusion of fedbnn")
    assert f"{(y != predicted).sum()} of 600 predictions are of another class" in drawing.get("aria-label")
    assert len(of_class(drawing, "empty")) == CLASSES**2
    assert len(of_class(drawing, "right")) == CLASSES
    for i, j in ((0, 0), (3, 7)):
        count = int(((y == i) & (predicted == j)).sum())
        assert f"{i} taken for {j}: {count} of {(y == i).sum()}" in page


def test_pages_of_earlier_runs_have_neither(tmp_path):
    page = page_of(tmp_path)
    for anchor in ("selective", "confusion", "classes"):
        assert f'id="{anchor}"' not in page
    assert 'id="uncertainty"' in page


def test_a_comparison_has_the_curves_of_those_that_have_any(tmp_path):
    folder = write_comparison(tmp_path, ["fedavg", "local"], [0, 1])
    assert 'id="selective"' not in write_report(folder).read_text("utf-8")
    _, _, entries = counted()
    for seed in (0, 1):
        write_run(folder / f"local-seed{seed}", sample_result("local", seed) | entries)
    page = write_report(folder).read_text("utf-8")
    told = chart_named(page, "Accuracy against the share").get("aria-label")
    assert "local:" in told
    assert "fedavg" not in told
    assert 'id="confusion"' not in page
    Reader(page)


def bins(n, confidence, right):
    return ReliabilityBins(np.array([0.0, 1.0]), np.array([n]), np.array([n * confidence]), np.array([right]))


@pytest.mark.parametrize(
    ("n", "confidence", "right", "told"),
    [
        (10_000, 0.949, 9000, False),  # 4.9 points
        (10_000, 0.951, 9000, True),  # 5.1 points
        (100, 0.99, 90, False),  # 9 points of luck
        (100, 0.99, 80, True),
        (10_000, 0.5, 9000, False),  # doubt is no boast
        (0, 0.0, 0, False),
    ],
)
def test_a_model_is_called_over_confident_above_the_bound_and_not_below(n, confidence, right, told):
    words = overconfidence(bins(n, confidence, right), "The model")
    assert bool(words) == told
    if told:
        assert f"claims {confidence:.1%} on average and is right on {right / n:.1%}" in words


def test_the_bound_is_seldom_passed_by_a_model_that_keeps_what_it_claims():
    rng = np.random.default_rng(0)
    for n in (30, 100, 400):
        claimed = rng.beta(4, 1, (2000, n))
        gaps = claimed.mean(1) - (rng.random((2000, n)) < claimed).mean(1)
        assert (gaps > bound(n)).mean() <= 0.05
        assert bound(n) == max(LEAST, math.sqrt(math.log(20) / (2 * n)))


def test_the_page_says_so_once(tmp_path):
    p, y, entries = counted(skill=0.3)
    page = page_of(tmp_path / "bad", **entries)
    assert page.count("is over-confident") == 1
    assert f"it claims {p.max(1).mean():.1%} on average and is right on {(p.argmax(1) == y).mean():.1%}" in page
    modest = 0.4 * p + 0.06
    kept = {"reliability": reliability(modest, y).to_dict()}
    assert "over-confident:" not in page_of(tmp_path / "good", **kept)


def test_nobody_speaks_of_unseen_classes_where_there_are_none(tmp_path):
    result = sample_result()
    assert "never saw" in page_of(tmp_path / "some")
    everything = result["per_client"] | {"classes": [list(range(CLASSES))] * result["clients"]}
    page = page_of(tmp_path / "all", per_client=everything)
    assert "never saw" not in page
    assert "every client holds records of all classes" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"confusion": [[1, 2], [3, 4]]}, "confusion has 2 classes, class_names 10"),
        ({"confusion": [[1, 2]]}, "a confusion matrix"),
        ({"ranked": {"edges": [0, 1]}}, "ranked counts without 'count'"),
    ],
)
def test_entries_that_are_wrong_are_told(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        page_of(tmp_path, **changes)
