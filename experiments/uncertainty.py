"""Does the epistemic uncertainty of FedBNN mean something? It should fall with records, and rise for foreign ones.

    python experiments/uncertainty.py       makes results/uncertainty.json and results/uncertainty.md again

Eight clients with 5 of 10 classes each and 1000, 300, 100 or 30 records, the same number of training steps whatever
the number, otherwise as in experiments/cpu and with the defaults; the first 500 test records, three seeds. FEDBNN_DATA
holds mnist, fashion_mnist (its test half is enough), cifar10 and cifar100. About half an hour on one core. Told are the
mean epistemic uncertainty in nats of test records of a client's own classes, and of foreign ones (clothes for MNIST,
CIFAR-100's pictures for CIFAR-10), and the AUROC of telling them apart; means over clients. A row is saved as soon as
it is there.
"""

import json
import statistics
from pathlib import Path

import torch

from fedbnn import Federation, load_config
from fedbnn.federation.metrics.detection import auroc
from fedbnn.runs.experiment import Prepared

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "uncertainty.json"
FOREIGN = {"mnist": "fashion_mnist", "cifar10": "cifar100"}
RECORDS = (1000, 300, 100, 30)
SEEDS = (0, 1, 2)
STEPS = 200  # of warm-up, as 250 records have at the scale of two cores


def measure(data: str, records: int, seed: int) -> dict[str, float]:
    """Of one federation, after its last round."""
    config = load_config(
        HERE / "cpu" / f"{data}.toml",
        [
            f"seed={seed}",
            "method=fedbnn",
            "partition.clients=8",
            f"partition.records_per_class={records // 5}",
            "data.test_records=500",
            f"training.warmup_epochs={round(STEPS * 25 / records)}",
            f"training.local_epochs={round(STEPS / 4 * 25 / records) or 1}",
            f"evaluation.foreign={FOREIGN[data]}",
        ],
    )
    prepared = Prepared.of(config, ["fedbnn"])
    federation = Federation(config.chosen(), prepared.sites, seed=seed)
    for _ in range(config.rounds + 1):
        federation.step(evaluate=False)
    found = []
    for site in prepared.sites:
        assert site.foreign is not None
        own = federation.predict(site.client.index, site.evaluation.x[site.own]).epistemic
        foreign = federation.predict(site.client.index, site.foreign[:500]).epistemic
        found.append((float(own.mean()), float(foreign.mean()), auroc(own.numpy(), foreign.numpy())))
    own_mean, foreign_mean, area = (statistics.mean(column) for column in zip(*found, strict=True))
    return {"own": own_mean, "foreign": foreign_mean, "auroc": area}


def table(rows: list[dict[str, float | str]]) -> str:
    """Markdown: a line for each data set and number of records, mean ± standard deviation over seeds."""
    lines = [__doc__.partition("\n")[0], "", "(`python experiments/uncertainty.py`, which says how.)", ""]
    lines += ["| data | records | own records, nats | foreign | times | AUROC |", "|---|---|---|---|---|---|"]
    for data in FOREIGN:
        for records in RECORDS:
            of = [row for row in rows if (row["data"], row["records"]) == (data, records)]
            if not of:
                continue
            columns: list[list[float]] = [[float(row[name]) for row in of] for name in ("own", "foreign", "auroc")]
            own, foreign, area = columns
            times = [far / near for near, far in zip(own, foreign, strict=True)]
            told = " | ".join(spread(column) for column in (own, foreign, times, area))
            lines.append(f"| {data} | {records} | {told} |")
    lines += ["", f"Mean ± standard deviation over {len({row['seed'] for row in rows})} seeds."]
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.pstdev(values):.3f}"


def main() -> None:
    torch.set_num_threads(1)
    rows = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    done = {(row["data"], row["records"], row["seed"]) for row in rows}
    for seed in SEEDS:
        for data in FOREIGN:
            for records in RECORDS:
                if (data, records, seed) in done:
                    continue
                row = {"data": data, "records": records, "seed": seed, **measure(data, records, seed)}
                print(row, flush=True)
                rows.append(row)
                OUT.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
                OUT.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
