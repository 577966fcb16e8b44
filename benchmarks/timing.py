"""Times alternatives against each other: interleaved, in random order, as ratios of medians.

On a busy machine absolute times drift; alternatives that take turns, in a new random order each time, drift alike.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping


def medians(alternatives: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median seconds of each alternative; one unmeasured turn each to warm up."""
    order = random.Random(0)
    names = list(alternatives)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repetitions + 1):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            alternatives[name]()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
