"""Throughput of one and two worker processes on the digits federation: client turns a second, as a ratio.

    python benchmarks/workers.py [--json FILE] [--rounds N]

Both pools live side by side and take turns at the same rounds, so a busy machine slows them alike.
"""

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path

from fedbnn.data import federate, load_dataset
from fedbnn.federation.engines import WorkerPool
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedBNN
from fedbnn.runs.config import Config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--json", type=Path, help="also write the ratio to this file")
    arguments = parser.parse_args()
    config = Config()
    data = federate(load_dataset(config.data), config.data, config.partition, seed=0)
    sites = make_sites(data, config.models, config.training)
    with closing(WorkerPool(1)) as one, closing(WorkerPool(2)) as two:
        federations = {1: Federation(FedBNN(), sites, engine=one), 2: Federation(FedBNN(), sites, engine=two)}
        times: dict[int, list[float]] = {1: [], 2: []}
        for number in range(arguments.rounds + 1):
            for workers in (1, 2) if number % 2 else (2, 1):
                start = time.perf_counter()
                federations[workers].step()
                if number:  # the warm-up round is another kind of work
                    times[workers].append(time.perf_counter() - start)
    ratio = statistics.median(times[1]) / statistics.median(times[2])
    print(f"two workers do {ratio:.2f}x the work of one in the same time")
    if arguments.json:
        arguments.json.write_text(json.dumps({"two workers / one": ratio}, indent=2) + "\n")


if __name__ == "__main__":
    main()
