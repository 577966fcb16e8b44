"""What the paper says: test accuracy in percent with its spread, and calibration.

Source: Makhija, Ghosh, Ho, "Privacy Preserving Bayesian Federated Learning in Heterogeneous Settings" (2023), Table 1
("Test accuracy comparison with baselines in non-IID settings"), the captions of the reliability diagrams in the
supplement, and its section on experiments.
"""

SOURCE = "Makhija, Ghosh, Ho 2023"

DATA = ("mnist", "cifar10", "cifar100")
SIZES = ("small", "medium", "full")

_ROWS = {
    "FedAvg": "88.2 0.5  90.15 1.2  92.23 1.1  43.14 1.2  56.27 1.8  78.17 1.2  27.3 1.9  32.81 1.6  36.3 0.2",
    "FedProx": "86.9 0.8  89.91 0.7  93.1 0.4  44.27 1.2  58.93 0.9  79.19 0.6  28.6 2.7  34.31 1.4  37.8 0.9",
    "pFedME": "91.95 2.1  93.39 1.2  95.62 0.5  48.46 1.5  64.57 2.1  75.11 1.2  32.4 2.2  36.3 2.0  41.8 1.7",
    "pFedGP": "86.15 1.3  90.59 1.7  94.92 0.3  45.62 2.2  56.24 1.8  72.89 0.7  47.06 1.3  53.1 1.2  54.54 0.2",
    "pFedBayes": "94.0 0.2  94.6 0.1  95.5 0.3  58.7 1.1  64.6 0.8  78.3 0.5  39.51 1.8  41.43 0.4  47.67 1.1",
    "FOLA": "91.74 1.0  92.87 0.8  95.12 0.6  43.29 0.9  45.94 0.7  67.98 0.5  33.42 1.3  48.8 2.1  43.2 1.6",
    "Ours (Homo)": "94.9 1.0  95.72 0.8  96.21 0.3  70.6 1.1  72.3 0.6  79.7 0.3  49.65 1.4  55.4 0.8  57.3 0.8",
    "Ours (Hetero)": "93.1 1.1  94.4 0.2  95.9 0.2  68.17 2.0  71.73 1.3  78.7 0.7  47.5 1.4  49.10 1.1  51.1 0.7",
    "Ours (Hetero-DP)": "89.82 2.3  90.21 1.6  91.43 1.4  60.4 1.1  68.13 1.2  74.3 1.6  43.7 2.3  44.5 1.7  47.0 1.5",
    "DP-FedAvg": "80.1 1.7  85.2 1.8  86.2 1.7  35.17 0.8  50.22 1.1  74.6 1.2  26.5 0.3  30.7 1.4  32.4 0.6",
}


def _parsed(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    numbers = [float(word) for word in text.split()]
    places = [(data, size) for data in DATA for size in SIZES]
    return dict(zip(places, zip(numbers[::2], numbers[1::2], strict=True), strict=True))


TABLE1: dict[str, dict[tuple[str, str], tuple[float, float]]] = {name: _parsed(text) for name, text in _ROWS.items()}
"""By the paper's row, data set and size: mean and spread, in percent."""

CALIBRATION: dict[str, tuple[float, float]] = {"cifar10": (0.070, 0.134), "mnist": (0.032, 0.156)}
"""ECE and MCE of FedBNN in the non-IID setting."""

ALIGNMENT = 2000
"""Points of the paper's alignment set."""

SHAPES: dict[str, tuple[tuple[int, int, int], int]] = {
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
"""Channels, height and width of the paper's images, and its classes."""
