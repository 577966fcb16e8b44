"""Does a client know how much it does not know? Epistemic uncertainty against the number of records a client holds.

    FEDBNN_DATA=FOLDER python experiments/records.py    makes results/records.json and results/records.md again

Five clients with four of eight classes each hold 1000, 300, 100 or 32 records; the last two classes of the data set are
known to nobody, the alignment set included. FedBNN with the settings of experiments/cpu, and as many steps of training
whatever the number of records. On test records, the mean over clients and seeds:
    own         epistemic part of uncertainty, in nats, of records of a client's own classes
    unseen      the same, of records of the two classes that nobody has seen; times: of the former, by how much more
    foreign     the same, of another data set's records (clothes for digits, CIFAR-100's pictures for CIFAR-10's)
    AUROC       how well the epistemic part tells these records from those of own classes
A run takes a few minutes, each is saved as it is finished, and the same command goes on.
"""

import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fedbnn import Federation, federate, load_config, load_dataset, make_sites
from fedbnn.base.files import write_atomically, write_json
from fedbnn.data.other_inputs import foreign_inputs
from fedbnn.federation.metrics import auroc
from fedbnn.runs.results import summary

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
RECORDS = (1000, 300, 100, 32)
FOREIGN = {"mnist": "fashion_mnist", "cifar10": "cifar100"}
KINDS = ("unseen", "foreign")
STEPS = {"training.warmup_epochs": 200, "training.local_epochs": 50}  # of training, whatever the number of records


def changes(records: int, seed: int) -> Iterator[str]:
    """What differs from experiments/cpu."""
    yield f"seed={seed}"
    yield from ("partition.clients=5", "partition.classes_per_client=4", f"partition.records_per_class={records // 4}")
    yield from ("data.unseen_classes=2", "data.validation=0")
    batches = -(-records // 25)
    yield from (f"{field}={max(1, round(steps / batches))}" for field, steps in STEPS.items())


def measure(source: str, records: int, seed: int) -> dict[str, float]:
    config = load_config(HERE / "cpu" / f"{source}.toml", [*changes(records, seed)])
    data = federate(load_dataset(config.data), config.data, config.partition, seed)
    sites = make_sites(data, config.models, config.training, rounds=config.rounds, seed=seed)
    federation = Federation(config.chosen(), sites, seed=seed)
    for number in range(config.rounds + 1):
        held = federation.step(evaluate=number == config.rounds)
    found = {name: float(value) for name, value in summary([one["personal"] for one in held.scores.values()]).items()}
    x, _, _ = data.evaluation("test")
    shape = data.dataset.input_shape
    names = {"unseen": "unseen", "foreign": FOREIGN[source]}
    asked = {kind: data.seen(foreign_inputs(name, config.data, shape)) for kind, name in names.items()}
    told: dict[str, list[float]] = {}
    for client in range(data.n_clients):
        own = data.own_mask(client, "test")
        known = federation.predict(client, torch.from_numpy(x[own])).epistemic.numpy()
        told.setdefault("own", []).append(float(known.mean()))
        for kind, inputs in asked.items():
            strange = federation.predict(client, torch.from_numpy(inputs)).epistemic.numpy()
            told.setdefault(kind, []).append(float(strange.mean()))
            told.setdefault(f"{kind}_auroc", []).append(auroc(known, strange))
    federation.close()
    scores = {name: found[name] for name in ("own_class_accuracy", "nll", "ece")}
    return scores | {name: statistics.mean(values) for name, values in told.items()}


def table(runs: dict[str, dict[str, float]]) -> str:
    lines = ["# Epistemic uncertainty against the number of records", ""]
    lines += [
        "Five clients, four of eight classes each; two classes are known to nobody. Means over clients and seeds,",
        "± the standard deviation over seeds. Made by `python experiments/records.py`, which says what columns are.",
    ]
    head = ["records a client", "own classes, %", "NLL", "ECE", "epistemic: own"]
    head += [word for kind in KINDS for word in (kind, "times", "AUROC")]
    for source in FOREIGN:
        lines += ["", f"## {source}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for records in RECORDS:
            done = [run for seed in SEEDS if (run := runs.get(f"{source}-{records}-{seed}"))]
            if not done:
                continue
            cells = [f"{records}" + (f" ({len(done)} of {len(SEEDS)} seeds)" if len(done) < len(SEEDS) else "")]
            cells += [spread([100 * run["own_class_accuracy"] for run in done], 1)]
            cells += [spread([run[name] for run in done], 3) for name in ("nll", "ece")]
            cells += [spread([run["own"] for run in done], 4)]
            for kind in KINDS:
                cells += [spread([run[kind] for run in done], 3)]
                cells += [spread([run[kind] / run["own"] for run in done], 1)]
                cells += [spread([run[f"{kind}_auroc"] for run in done], 3)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def main() -> None:
    torch.set_num_threads(1)
    place = HERE / "results" / "records.json"
    runs: dict[str, dict[str, float]] = json.loads(place.read_text()) if place.exists() else {}
    for seed in SEEDS:
        for source, records in itertools.product(FOREIGN, RECORDS):
            if (name := f"{source}-{records}-{seed}") not in runs:
                runs[name] = measure(source, records, seed)
                write_json(place, runs)
                write_atomically(place.with_suffix(".md"), table(runs))
                print(name, runs[name], flush=True)
    print(table(runs))


if __name__ == "__main__":
    main()
