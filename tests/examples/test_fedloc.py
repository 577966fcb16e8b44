"""Radio maps by experts: joined they are the full Gaussian process where that can be, and better than one alone."""

import fedloc
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

RNG = np.random.default_rng(0)


def measured(at: float, count: int = 15) -> tuple[np.ndarray, np.ndarray]:
    return at + RNG.uniform(0, 20, (count, 2)), fedloc.MEAN + RNG.normal(0, 8, count)


def test_an_expert_is_scikit_learns_gaussian_process() -> None:
    x, y = measured(0.0)
    places = RNG.uniform(0, 30, (50, 2))
    kernel = fedloc.PRIOR_SD**2 * RBF(fedloc.LENGTH)
    process = GaussianProcessRegressor(kernel, alpha=fedloc.NOISE_SD**2, optimizer=None).fit(x, y - fedloc.MEAN)
    mean, sd = process.predict(places, return_std=True)
    found = fedloc.posterior(x, y, places)
    np.testing.assert_allclose(found[0], fedloc.MEAN + mean, atol=1e-8)
    np.testing.assert_allclose(found[1], sd**2, atol=1e-8)


@pytest.mark.parametrize("rule", ["bcm", "gpoe"])
def test_one_expert_says_what_it_says_alone(rule: str) -> None:
    alone = fedloc.posterior(*measured(0.0), RNG.uniform(0, 30, (50, 2)))
    for found, expected in zip(fedloc.joined([alone], rule), alone, strict=True):
        np.testing.assert_allclose(found, expected)


def test_experts_on_independent_blocks_are_the_full_gaussian_process() -> None:
    """A thousand metres apart their covariance is zero: what one measured tells nothing of what the other did."""
    one, other = measured(0.0), measured(1000.0)
    places = np.concatenate([RNG.uniform(0, 25, (50, 2)), 1000 + RNG.uniform(0, 25, (50, 2))])
    x, y = (np.concatenate(part) for part in zip(one, other, strict=True))
    full = fedloc.posterior(x, y, places)
    experts = [fedloc.posterior(*records, places) for records in (one, other)]
    for found, expected in zip(fedloc.joined(experts, "bcm"), full, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.abs(fedloc.joined(experts, "gpoe")[0] - full[0]).max() > 1  # half asleep where one knows nothing


def test_where_nobody_knows_anything_the_prior_is_left() -> None:
    far = np.array([[1e4, 1e4]])
    experts = [fedloc.posterior(*measured(at), far) for at in (0.0, 50.0)]
    for rule in ("bcm", "rbcm", "gpoe"):
        mean, variance = fedloc.joined(experts, rule)
        np.testing.assert_allclose([mean[0], variance[0]], [fedloc.MEAN, fedloc.PRIOR_SD**2])


def test_scores_are_error_and_log_density() -> None:
    said, truth = (np.array([1.0, -2.0]), np.array([4.0, 0.25])), np.array([0.0, -1.0])
    expected = -np.mean(norm.logpdf(truth, [1.0, -2.0], [2.0, 0.5]))
    assert fedloc.scores(said, truth) == pytest.approx((1.0, expected))


def test_together_a_map_is_nearly_that_of_all_records(capsys: pytest.CaptureFixture[str]) -> None:
    fedloc.main()
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()[3:]]
    error = {name.strip(): float(value) for name, value, _ in rows}
    assert error.keys() == {"a client alone", "gpoe", "rbcm", "bcm", "all records"}
    for rule in ("gpoe", "rbcm", "bcm"):
        assert error["all records"] <= error[rule] < 1.2 * error["all records"]
        assert error[rule] < error["a client alone"] / 3
