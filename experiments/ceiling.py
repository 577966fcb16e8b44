"""Why averaging weights leads where all clients share an architecture: what each kind of exchange can know at most.

    python experiments/ceiling.py           makes results/ceiling.json and results/ceiling.md again

On the homogeneous digits federation (the preset's settings), test records, three seeds:
    pooled          one network trained on the records of all clients together: what averaging weights works towards
    alone, joined   the mean output of networks that never exchanged anything: what one exchange of outputs knows
    consensus       FedBNN's consensus after the last round, on the alignment set (whose labels serve only to count)
    fedbnn          the personal models that consensus leads to
"""

import json
import statistics
from pathlib import Path

import torch

from fedbnn import Federation, federate, load_config, load_dataset, make_sites
from fedbnn.base.randomness import Stream
from fedbnn.methods import Local
from fedbnn.models.bayes import average
from fedbnn.models.training import Records
from fedbnn.runs.results import summary

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)


def measure(seed: int) -> dict[str, float]:
    config = load_config(Path("digits-homogeneous"), [f"seed={seed}"])
    data = federate(load_dataset(config.data), config.data, config.partition, seed)
    sites = make_sites(data, config.models, config.training, rounds=config.rounds, seed=seed)
    x, y = sites[0].evaluation.x, sites[0].evaluation.y

    def accuracy(probs: torch.Tensor, labels: torch.Tensor) -> float:
        return float((probs.argmax(1) == labels).float().mean())

    local = config.with_method("local").chosen()
    assert isinstance(local, Local)
    alone = [Stream((seed, "alone", site.client.index)) for site in sites]
    passes = config.training.passes(0) + config.rounds * config.training.passes(1)
    outputs = []
    for site, stream in zip(sites, alone, strict=True):
        weights, _ = local.train(site.client.initial_weights(), site.client, passes, stream)
        outputs.append(average(site.client.network, iter([weights]), x).logits)
    first = sites[0].client
    everything = Records(torch.cat([s.client.train.x for s in sites]), torch.cat([s.client.train.y for s in sites]))
    pool = type(first)(**{**vars(first), "train": everything})
    pooled, _ = local.train(pool.initial_weights(), pool, passes, Stream((seed, "pooled")))
    federation = Federation(config.with_method("fedbnn").chosen(), sites, seed=seed)
    for _ in range(config.rounds + 1):
        record = federation.step(evaluate=federation.round_number == config.rounds - 1)
    truth = torch.from_numpy(data.dataset.y_train[data.alignment_indices])
    return {
        "pooled": accuracy(average(pool.network, iter([pooled]), x).probs, y),
        "alone, joined": accuracy(torch.stack(outputs).mean(0), y),
        "consensus": accuracy(federation.server.tensors()["phi_bar"], truth),
        "fedbnn": summary([found["personal"] for found in record.scores.values()])["all_class_accuracy"],
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [measure(seed) for seed in SEEDS]
    table = {
        name: {"mean": statistics.mean(r[name] for r in rows), "sd": statistics.stdev(r[name] for r in rows)}
        for name in rows[0]
    }
    lines = [
        "| all-class accuracy of | |",
        "|---|---|",
        *(f"| {name} | {100 * v['mean']:.1f} ± {100 * v['sd']:.1f} |" for name, v in table.items()),
        "",
        f"Mean ± standard deviation over seeds {', '.join(map(str, SEEDS))}. Made by `python experiments/ceiling.py`.",
    ]
    (HERE / "results" / "ceiling.json").write_text(json.dumps(table, indent=2) + "\n")
    (HERE / "results" / "ceiling.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
