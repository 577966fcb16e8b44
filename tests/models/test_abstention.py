import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbnn import UserError
from fedbnn.models.abstention import _tested, choose, upper_bound


@given(st.integers(1, 300), st.data(), st.sampled_from([0.01, 0.1, 0.3]))
def test_the_bound_is_that_of_clopper_and_pearson(n, data, level):
    wrong = data.draw(st.integers(0, n))
    expected = stats.binomtest(wrong, n, alternative="less").proportion_ci(1 - level, "exact").high
    assert upper_bound(wrong, n, level) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("shape", "most"), [(1.0, 0.2), (2.0, 0.4)])
def test_the_promise_is_broken_no_more_often_than_was_said(shape, most):
    """Certainty is uniform and errors have the probability most (1 - c)^shape at certainty c.

    Among answered records, above t, their rate is then most (1 - t)^shape / (shape + 1).
    """
    rng = np.random.default_rng(0)
    risk, confidence, broken, answered = 0.08, 0.8, 0, []
    for _ in range(600):
        certainty = rng.random(300)
        right = rng.random(300) >= most * (1 - certainty) ** shape
        chosen = choose(certainty, right, risk, confidence)
        true = most * (1 - max(chosen.threshold, 0)) ** shape / (shape + 1) if chosen.answered else 0.0
        broken += true > risk
        answered.append(chosen.answered / 300)
    assert broken / 600 <= 1 - confidence
    assert np.mean(answered) > 0.2  # the promise is not kept by silence


def test_the_lowest_threshold_that_passes_is_taken():
    certainty = np.linspace(0.99, 0.5, 200)
    right = np.arange(200) < 150  # the 50 least certain are wrong
    chosen = choose(certainty, right, 0.05)
    assert chosen.answered == 140  # of steps of 20, the last below 150
    assert chosen.wrong == 0
    assert chosen.bound <= 0.05
    assert (certainty > chosen.threshold).sum() == chosen.answered
    assert choose(certainty, np.ones(200), 0.05).answered == 200
    assert choose(certainty, np.ones(200), 0.05).threshold == -math.inf


@pytest.mark.parametrize("n", [0, 1, 44])
def test_too_few_records_answer_nothing(n):
    """(1 - 0.05)^n > 0.1 for n < 45: not even without an error is the rate known to be so small."""
    chosen = choose(np.linspace(0.5, 1, n), np.ones(n), 0.05, 0.9)
    assert (chosen.threshold, chosen.answered, chosen.bound) == (math.inf, 0, 1.0)
    assert choose(np.linspace(0.5, 1, 45), np.ones(45), 0.05, 0.9).answered == 45


@given(st.integers(0, 2000), st.sampled_from([0.01, 0.05, 0.2]), st.sampled_from([0.05, 0.1]))
def test_levels_of_all_tests_add_up_to_what_may_go_wrong(n, risk, level):
    ranks, each = _tested(n, risk, level, 10)
    assert len(ranks) * each <= level * (1 + 1e-12)
    assert all(upper_bound(0, one, each) <= risk for one in ranks)


def test_equal_certainties_are_answered_together_or_not_at_all():
    certainty = np.repeat([0.9, 0.6], 100)
    chosen = choose(certainty, np.arange(200) < 100, 0.1)
    assert chosen.answered == 100
    assert chosen.threshold == 0.6


@pytest.mark.parametrize(("risk", "confidence", "name"), [(0, 0.9, "risk"), (1, 0.9, "risk"), (0.1, 1.0, "confidence")])
def test_what_is_no_rate_is_told(risk, confidence, name):
    with pytest.raises(UserError, match=f"{name} = .* above 0 and below 1"):
        choose([], [], risk, confidence)
