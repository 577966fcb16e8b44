"""Federated Thompson sampling: features and posteriors by other formulas, and less regret with others than alone."""

import numpy as np
import thompson
from scipy.stats import ttest_rel
from sklearn.kernel_ridge import KernelRidge

RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0, 1, 12), RNG.normal(0, 1, 12)


def test_products_of_features_are_the_kernel_on_average() -> None:
    phi = thompson.Fourier.drawn(np.random.default_rng(1), 200_000)
    exact = np.exp(-((X[:, None] - X) ** 2) / (2 * thompson.LENGTH**2))
    np.testing.assert_allclose(phi(X) @ phi(X).T, exact, atol=0.015)


def test_the_mean_is_kernel_ridge_regression() -> None:
    """With the features' own kernel exactly, whose other formula works with records in the place of weights."""
    fourier = thompson.Fourier.drawn(np.random.default_rng(1))
    phi, asked = fourier(X), fourier(thompson.GRID)
    ridge = KernelRidge(alpha=thompson.NOISE_SD**2, kernel="precomputed").fit(phi @ phi.T, Y)
    mean, covariance = thompson.posterior(phi, Y)
    np.testing.assert_allclose(asked @ mean, ridge.predict(asked @ phi.T), atol=1e-6)
    gram = np.linalg.inv(phi @ phi.T + thompson.NOISE_SD**2 * np.eye(len(X)))
    expected = asked @ asked.T - asked @ phi.T @ gram @ phi @ asked.T
    np.testing.assert_allclose(asked @ covariance @ asked.T, expected, atol=1e-6)


def test_with_many_features_it_is_that_of_the_kernel_itself() -> None:
    ridge = KernelRidge(alpha=thompson.NOISE_SD**2, kernel="rbf", gamma=1 / (2 * thompson.LENGTH**2))
    x = np.linspace(0, 1, len(Y))
    exact = ridge.fit(x[:, None], Y).predict(thompson.GRID[:, None])
    off = {100: 0.0, 1600: 0.0}
    for features in off:
        for seed in range(4):
            fourier = thompson.Fourier.drawn(np.random.default_rng(seed), features)
            mean, _ = thompson.posterior(fourier(x), Y)
            off[features] += float(np.square(fourier(thompson.GRID) @ mean - exact).mean()) / 4
    assert off[1600] < 0.15 * off[100]  # one sixteenth is to be expected
    assert off[1600] < 0.01 * np.square(exact).mean()


def test_draws_have_the_posteriors_mean_and_covariance() -> None:
    phi = thompson.Fourier.drawn(np.random.default_rng(1), 8)(X)
    draws = np.stack([thompson.draw(phi, Y, RNG) for _ in range(4000)])
    mean, covariance = thompson.posterior(phi, Y)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * np.sqrt(covariance.diagonal().max() / 4000))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.1 * covariance.diagonal().max())


def test_others_lower_the_regret() -> None:
    alone, helped = (np.stack([thompson.regrets(seed, one) for seed in range(30)]) for one in (False, True))
    assert helped.mean() < 0.5 * alone.mean()
    assert ttest_rel(alone.mean(1), helped.mean(1)).pvalue < 1e-3
    assert (np.diff(alone, axis=1) <= 0).all()
    assert (helped >= 0).all()


def test_the_table_is_printed(capsys, monkeypatch) -> None:
    monkeypatch.setattr(thompson, "regrets", lambda seed, helped: np.full(thompson.STEPS, 0.25 if helped else 0.5))
    thompson.main()
    assert capsys.readouterr().out.splitlines()[-1].split() == [str(thompson.STEPS), "0.500", "0.250"]
