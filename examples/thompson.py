"""Federated Thompson sampling (Dai, Low, Jaillet 2020): Bayesian optimisation that is helped by others' samples.

Every client looks for the maximum of a function of its own, of which it sees noisy values. Functions of clients are
alike, values are not shared. With random Fourier features phi, the same for all, of a squared exponential kernel,

    f(x) = phi(x)^T w,      w | values ~ N(nu, s^2 S^-1),      S = Phi^T Phi + s^2 I,      nu = S^-1 Phi^T y,

so that a client can send a draw of w, as many numbers as there are features. At step t a client asks where a draw of
its own posterior is greatest with probability p_t = 1 - 1/(t + 1), else where the draw that another client once sent
is. A draw of w is not private by itself: nothing is promised of it here.

The table has the simple regret, how far the best place so far is below the maximum, alone and with what others sent.
Functions are made up from a seed: a common one and a fifth of another. Run it: python examples/thompson.py
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES, LENGTH, NOISE_SD = 200, 0.08, 0.1
CLIENTS, BEFORE, STEPS = 6, 30, 12  # values that others have when they send, and steps of the client that is helped
GRID = np.linspace(0, 1, 301)


@dataclass(frozen=True)
class Fourier:
    """Random features whose products are, on average, exp(-(x - z)^2 / (2 length^2))."""

    frequencies: Floats
    phases: Floats

    @classmethod
    def drawn(cls, rng: np.random.Generator, features: int = FEATURES, length: float = LENGTH) -> "Fourier":
        return cls(rng.normal(0, 1 / length, features), rng.uniform(0, 2 * np.pi, features))

    def __call__(self, x: Floats) -> Floats:
        return np.sqrt(2 / len(self.phases)) * np.cos(np.outer(x, self.frequencies) + self.phases)


def posterior(phi: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Nu and the covariance s^2 S^-1 of the weights, given features and values."""
    inverse = np.linalg.inv(phi.T @ phi + NOISE_SD**2 * np.eye(phi.shape[1]))
    return inverse @ phi.T @ y, NOISE_SD**2 * inverse


def draw(phi: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """A draw of the weights: all that a client sends."""
    mean, covariance = posterior(phi, y)
    return rng.multivariate_normal(mean, covariance, method="cholesky")


def functions(rng: np.random.Generator) -> Floats:
    """The values of every client's function on the grid: drawn apart from the features that clients use."""
    phi = Fourier.drawn(rng, 1000)(GRID)
    common, *own = phi @ rng.normal(0, 1, (1000, CLIENTS + 1)).T[..., None]
    return np.stack([(common + 0.2 * one)[:, 0] for one in own])


def regrets(seed: int, helped: bool) -> Floats:
    """The simple regret of the first client after each step."""
    rng = np.random.default_rng(seed)
    truth, phi = functions(rng), Fourier.drawn(rng)(GRID)

    def value(client: int, places: NDArray[np.int64]) -> Floats:
        return truth[client, places] + NOISE_SD * rng.normal(0, 1, len(places))

    sent = []
    for client in range(1, CLIENTS):
        places = rng.integers(0, len(GRID), BEFORE)
        sent.append(draw(phi[places], value(client, places), rng))
    asked: list[int] = []
    y, found = np.zeros(0), []
    for step in range(1, STEPS + 1):
        others = helped and rng.uniform() < 1 / (step + 1)
        weights = sent[rng.integers(len(sent))] if others else draw(phi[asked], y, rng)
        asked.append(int((phi @ weights).argmax()))
        y = np.append(y, value(0, np.array(asked[-1:])))
        found.append(truth[0].max() - truth[0, asked].max())
    return np.array(found)


def main() -> None:
    """Print the table, over a hundred made-up federations."""
    alone, helped = (np.mean([regrets(seed, one) for seed in range(100)], 0) for one in (False, True))
    print(f"one of {CLIENTS} clients, each of the others with {BEFORE} values; means over 100 seeds\n")
    print(f"{'step':>4}{'alone':>10}{'with others':>14}")
    for step in (1, 2, 4, 8, STEPS):
        print(f"{step:4}{alone[step - 1]:10.3f}{helped[step - 1]:14.3f}")


if __name__ == "__main__":
    main()
