"""Radio maps without sharing measurements (FedLoc, Yin et al. 2020): Gaussian-process experts, joined by a product.

Each client measures the received signal strength (RSS) of one transmitter in its own quarter of a hall, and fits a
Gaussian process (GP) to its own measurements. Hyperparameters are common and fixed; FedLoc also finds these together.
Asked about a place, expert k of K says N(m_k, v_k), and that is all it sends. With v the prior variance, experts are
joined by

    precision = sum_k b_k / v_k + (1 - sum_k b_k) / v,      mean = (sum_k b_k m_k / v_k) / precision

    bcm     b_k = 1                          the full GP if experts know of places that have nothing in common
    rbcm    b_k = 1/2 log(v / v_k)           who knows nothing of a place says nothing (Deisenroth, Ng 2015)
    gpoe    b_k = 1 / K, without the last term of the precision           generalised product of experts

The table has the error of the map, and the mean negative log density of what is really there, beside those of a client
alone and of a GP on all records, which nobody could make. Measurements are made up: log-distance path loss, smooth
shadowing, and noise, from a seed. Run it: python examples/fedloc.py
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CLIENTS, RECORDS = 4, 60
LENGTH, PRIOR_SD, NOISE_SD = 8.0, 8.0, 2.0  # metres, and two times dB
MEAN = -60.0  # dBm, of the prior
HALL = 40.0  # metres along a side


def kernel(a: Floats, b: Floats, length: float = LENGTH, sd: float = PRIOR_SD) -> Floats:
    """Squared exponential covariances."""
    return sd**2 * np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * length**2))


def posterior(x: Floats, y: Floats, places: Floats) -> tuple[Floats, Floats]:
    """Means and variances of the signal at the places, given measurements."""
    across = kernel(places, x)
    solved = np.linalg.solve(kernel(x, x) + NOISE_SD**2 * np.eye(len(x)), np.c_[y - MEAN, across.T])
    mean = MEAN + across @ solved[:, 0]
    return mean, PRIOR_SD**2 - (across * solved[:, 1:].T).sum(1)


def joined(said: Sequence[tuple[Floats, Floats]], rule: str) -> tuple[Floats, Floats]:
    """What experts say together; `rule` is bcm, rbcm or gpoe."""
    means, variances = (np.stack(part) for part in zip(*said, strict=True))
    prior = PRIOR_SD**2
    powers = {
        "bcm": np.ones_like(variances),
        "rbcm": 0.5 * np.log(prior / variances),
        "gpoe": np.full_like(variances, 1 / len(said)),
    }[rule]
    rest = 0.0 if rule == "gpoe" else (1 - powers.sum(0)) / prior
    precision = (powers / variances).sum(0) + rest
    return MEAN + (powers * (means - MEAN) / variances).sum(0) / precision, 1 / precision


def hall(seed: int) -> tuple[list[tuple[Floats, Floats]], Floats, Floats]:
    """Measurements of each client, and places all over the hall with the true signal there."""
    rng = np.random.default_rng(seed)
    transmitter = rng.uniform(0.3 * HALL, 0.7 * HALL, 2)
    waves, phases, sizes = rng.normal(0, 1 / 6, (30, 2)), rng.uniform(0, 2 * np.pi, 30), rng.normal(0, 1, 30)

    def signal(at: Floats) -> Floats:
        far = np.sqrt(((at - transmitter) ** 2).sum(1) + 1)
        return -40 - 20 * np.log10(far) + np.cos(at @ waves.T + phases) @ sizes * 3 * np.sqrt(2 / 30)

    clients = []
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = (np.array(corner) + rng.uniform(0, 1, (RECORDS, 2))) * HALL / 2
        clients.append((x, signal(x) + NOISE_SD * rng.normal(0, 1, RECORDS)))
    places = rng.uniform(0, HALL, (1000, 2))
    return clients, places, signal(places)


def scores(said: tuple[Floats, Floats], truth: Floats) -> tuple[float, float]:
    """Root mean squared error in dB, and mean negative log density."""
    mean, variance = said
    nll = 0.5 * np.log(2 * np.pi * variance) + (truth - mean) ** 2 / (2 * variance)
    return float(np.sqrt(((truth - mean) ** 2).mean())), float(nll.mean())


def compared(seed: int) -> dict[str, tuple[float, float]]:
    """The scores of a client alone (the mean of all), of each rule, and of all records in one place."""
    clients, places, truth = hall(seed)
    said = [posterior(x, y, places) for x, y in clients]
    alone = np.mean([scores(one, truth) for one in said], 0)
    together = posterior(*(np.concatenate(part) for part in zip(*clients, strict=True)), places)
    return {
        "a client alone": (float(alone[0]), float(alone[1])),
        **{rule: scores(joined(said, rule), truth) for rule in ("gpoe", "rbcm", "bcm")},
        "all records": scores(together, truth),
    }


def main() -> None:
    """Print the table, over ten made-up halls."""
    found = [compared(seed) for seed in range(10)]
    print(f"{CLIENTS} clients, {RECORDS} measurements each; means over 10 halls\n")
    print(f"{'':16}{'error, dB':>10}{'neg. log density':>18}")
    for name in found[0]:
        error, nll = np.mean([one[name] for one in found], 0)
        print(f"{name:16}{error:10.2f}{nll:18.2f}")


if __name__ == "__main__":
    main()
