import math

import numpy as np
import pytest
from scipy.stats import beta, kstest

from fedbnn import UserError
from fedbnn.models.conformal import rank
from fedbnn.models.regression.intervals import ConformalIntervals


def sample(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A model that is wrong about mean and noise: mean, sd and what came."""
    x = rng.normal(size=n)
    return 0.5 * x, 0.3 + 0.1 * np.abs(x), x + rng.standard_t(3, size=n)


def held(rule: ConformalIntervals, new: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    low, high = rule.intervals(new[0], new[1])
    return (low <= new[2]) & (new[2] <= high)


def test_coverage_is_at_least_what_was_wished_and_hardly_more() -> None:
    rng, n, alpha = np.random.default_rng(0), 24, 0.2
    hits = [held(ConformalIntervals.fit(*sample(rng, n), alpha), sample(rng, 10)).mean() for _ in range(1500)]
    slack = 4 * np.std(hits) / math.sqrt(len(hits))
    assert 1 - alpha - slack <= np.mean(hits) <= 1 - alpha + 1 / (n + 1) + slack


def test_coverage_given_the_records_follows_its_beta_law() -> None:
    rng, n, alpha = np.random.default_rng(1), 40, 0.1
    found = [held(ConformalIntervals.fit(*sample(rng, n), alpha), sample(rng, 20000)).mean() for _ in range(150)]
    k = rank(n, alpha)
    assert kstest(found, beta(k, n + 1 - k).cdf).pvalue > 1e-3
    likely = ConformalIntervals.fit(*sample(rng, n), alpha).likely_coverage()
    assert likely == pytest.approx(beta(k, n + 1 - k).interval(0.9))


def test_the_threshold_is_the_quantile_of_normalised_residuals() -> None:
    """As split-conformal prediction is mostly written: at ceil((n + 1)(1 - alpha)) / n."""
    mean, sd, y = sample(np.random.default_rng(2), 57)
    level = math.ceil(58 * 0.85) / 57
    expected = np.quantile(np.abs(y - mean) / sd, level, method="inverted_cdf")
    assert ConformalIntervals.fit(mean, sd, y, 0.15).threshold == expected


def test_too_few_records_promise_nothing_short_of_everything() -> None:
    few = ConformalIntervals.fit(*sample(np.random.default_rng(3), 8), 0.1)
    assert few.threshold == math.inf
    assert few.likely_coverage() is None
    assert ConformalIntervals.fit([], [], [], 0.1).threshold == math.inf
    assert ConformalIntervals.fit(*sample(np.random.default_rng(3), 9), 0.1).threshold < math.inf


@pytest.mark.parametrize("alpha", [0, 1, math.nan])
def test_what_is_no_rate_is_told(alpha: float) -> None:
    with pytest.raises(UserError, match=r"alpha = .*above 0 and below 1"):
        ConformalIntervals.fit([0.0], [1.0], [0.0], alpha)
