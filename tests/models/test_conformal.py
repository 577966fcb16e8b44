import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mapie.classification import SplitConformalClassifier
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin

from fedbnn import UserError
from fedbnn.models.conformal import Conformal, aps_scores, lac_scores, least_records, rank, threshold

ALPHAS = st.integers(1, 99).map(lambda percent: percent / 100)


def sample(rng, n, classes=4, shares=None):
    """Labels, and the probabilities of a model that is neither good nor calibrated; records are independent."""
    y = rng.choice(classes, n, p=shares)
    logits = rng.normal(size=(n, classes)) + 1.3 * np.eye(classes)[y] * rng.gamma(2.0, size=(n, 1))
    logits[:, 0] += 0.8
    odds = np.exp(2 * logits)
    return odds / odds.sum(1, keepdims=True), y


class Known(ClassifierMixin, BaseEstimator):
    """A classifier for another library: its inputs are the probabilities themselves."""

    def __init__(self, classes=4):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, x, y):
        return self

    def predict(self, x):
        return x.argmax(1)

    def predict_proba(self, x):
        return x

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("alpha", [0.06, 0.1, 0.37])  # no rank that rounding of 1 - alpha could move
@pytest.mark.parametrize("n", [20, 40, 153])
def test_lac_is_what_another_library_says(n, alpha):
    rng = np.random.default_rng(n)
    (p, y), (new, _) = sample(rng, n), sample(rng, 60)
    other = SplitConformalClassifier(Known(), confidence_level=1 - alpha, conformity_score="lac", prefit=True)
    other.conformalize(p, y)
    expected = other.predict_set(new)[1][:, :, 0]
    assert np.array_equal(Conformal.fit(p, y, alpha, "lac").sets(new), expected)


@pytest.mark.parametrize("alpha", [0.1, 0.37])
def test_aps_is_what_another_library_says(alpha):
    """Its calibration draws u for each record; its sets without the last class take all of a class's own mass."""
    rng = np.random.default_rng(3)
    (p, y), (new, _) = sample(rng, 79), sample(rng, 60)
    other = SplitConformalClassifier(
        Known(), confidence_level=1 - alpha, conformity_score="aps", prefit=True, random_state=7
    )
    other.conformalize(p, y)
    expected = other.predict_set(new, conformity_score_params={"include_last_label": False})[1][:, :, 0]
    u = 1 - np.random.RandomState(7).uniform(size=79)  # as the other one draws it
    limit = threshold(aps_scores(p, u)[np.arange(79), y], alpha)
    top = np.eye(4, dtype=bool)[new.argmax(1)]  # the other one is never without it
    assert np.array_equal((aps_scores(new, 1) <= limit) | top, expected)
    assert not np.array_equal(aps_scores(new, 0) <= limit, expected)


@pytest.mark.parametrize(("n", "alpha"), [(9, 0.1), (20, 0.2), (50, 0.07)])
def test_coverage_given_the_calibration_records_follows_its_beta_law(n, alpha):
    """Where p(y | x) of the true class is uniform, a threshold q covers exactly q."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(1500):
        p = 1 - rng.random(n)
        fitted = Conformal.fit(np.stack([p, 1 - p], 1), np.zeros(n, int), alpha, "lac")
        covered.append(fitted.thresholds[0])
    k = math.ceil((n + 1) * (1 - alpha))
    assert stats.kstest(covered, stats.beta(k, n + 1 - k).cdf).pvalue > 0.01
    assert stats.kstest(covered, stats.beta(k - 1, n + 2 - k).cdf).pvalue < 1e-6  # one rank off would be seen
    low, high = fitted.likely_coverage(0.9)
    assert np.mean([low <= one <= high for one in covered]) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_coverage_is_at_least_what_was_wished_and_hardly_more(score):
    rng = np.random.default_rng(1)
    n, alpha, hits = 24, 0.2, []
    for _ in range(800):
        (p, y), (new, true) = sample(rng, n), sample(rng, 10)
        hits.append(Conformal.fit(p, y, alpha, score).sets(new)[np.arange(10), true].mean())
    slack = 4 * np.std(hits) / math.sqrt(len(hits))
    assert np.mean(hits) >= 1 - alpha - slack
    if score == "lac":  # the scores of aps tie at zero
        assert np.mean(hits) <= 1 - alpha + 1 / (n + 1) + slack


def test_classes_are_covered_one_by_one_also_where_their_shares_change():
    rng = np.random.default_rng(2)
    alpha, together, apart = 0.15, [], []
    before, after = [0.55, 0.25, 0.15, 0.05], [0.05, 0.15, 0.25, 0.55]
    for _ in range(250):
        (p, y), (new, true) = sample(rng, 200, shares=before), sample(rng, 200, shares=after)
        for found, within in ((together, "client"), (apart, "class")):
            held = Conformal.fit(p, y, alpha, "lac", within).sets(new)[np.arange(200), true]
            found.append([held[true == label].mean() for label in range(4)])
    slack = 4 * np.nanstd(apart, 0) / math.sqrt(250)
    assert (np.nanmean(apart, 0) >= 1 - alpha - slack).all()
    assert np.nanmean(together, 0).min() < 1 - alpha - 0.05  # one threshold for all does not do that


def test_a_class_with_too_few_records_is_in_every_set():
    rng = np.random.default_rng(4)
    p, y = sample(rng, 60)
    y = np.where(y == 3, 2, y)
    kept = np.flatnonzero((y != 1) | (np.cumsum(y == 1) <= least_records(0.1)))  # exactly as many as are needed
    fewer = kept[:-1] if y[kept[-1]] == 1 else np.delete(kept, np.flatnonzero(y[kept] == 1)[-1])
    enough = Conformal.fit(p[kept], y[kept], 0.1, within="class")
    short = Conformal.fit(p[fewer], y[fewer], 0.1, within="class")
    assert enough.without_promise.tolist() == [False, False, False, True]
    assert short.without_promise.tolist() == [False, True, False, True]
    assert short.sets(p)[:, [1, 3]].all()
    assert Conformal.fit(np.empty((0, 4)), np.empty(0, int), 0.1).sets(p).all()
    assert short.likely_coverage() is None


@given(st.integers(0, 400), ALPHAS)
def test_the_rank_is_the_smallest_with_the_promise(n, alpha):
    """P(rank of a new score among n + 1 <= k) = k / (n + 1), in exact numbers."""
    k = rank(n, alpha)
    wished = 1 - Fraction(round(alpha * 100), 100)
    assert Fraction(k, n + 1) >= wished > Fraction(k - 1, n + 1)
    assert (k > n) == (n < least_records(alpha))


@given(
    arrays(np.float64, (12, 3), elements=st.floats(0.01, 1)),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    ALPHAS,
    ALPHAS,
    st.sampled_from(["lac", "aps"]),
    st.sampled_from(["client", "class"]),
    st.randoms(use_true_random=False),
)
def test_sets_grow_as_alpha_falls_and_know_no_order(raw, labels, one, other, score, within, random):
    p, y = raw / raw.sum(1, keepdims=True), np.array(labels)
    low, high = sorted((one, other))
    wide, narrow = (Conformal.fit(p, y, alpha, score, within) for alpha in (low, high))
    assert (wide.sets(p) >= narrow.sets(p)).all()
    order = np.array(random.sample(range(12), 12))
    assert np.array_equal(Conformal.fit(p[order], y[order], low, score, within).thresholds, wide.thresholds)
    assert (wide.sets(p)[np.arange(12), y].mean()) >= 1 - low - 1e-9  # of the records themselves, always
    if score == "aps" and within == "client":
        assert wide.sets(p)[np.arange(12), p.argmax(1)].all()
    assert (lac_scores(p) >= aps_scores(p) - 1e-12).all()  # likelier ones have at most the mass that is left


@pytest.mark.parametrize("alpha", [0, 1, -0.1, math.nan, "0.1"])
def test_what_is_no_rate_is_told(alpha):
    with pytest.raises(UserError, match=r"alpha = .*above 0 and below 1"):
        Conformal.fit(np.ones((1, 2)) / 2, [0], alpha)


@pytest.mark.parametrize(("score", "within"), [("ranks", "client"), ("lac", "record")])
def test_other_scores_and_promises_are_told(score, within):
    with pytest.raises(UserError, match=r"(score|within) = '(ranks|record)': it is"):
        Conformal.fit(np.ones((1, 2)) / 2, [0], 0.1, score, within)
