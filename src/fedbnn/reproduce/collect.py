"""A study as JSON: what was planned, and what finished runs found. Tables, figures and pages are made from it alone."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from fedbnn.federation.evaluation import POOLED, SOMETIMES, scores_among
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.reproduce import published
from fedbnn.reproduce.cells import Cell, Entry, identity
from fedbnn.reproduce.plan import Cost, Plan, Reliability, Row
from fedbnn.runs.results import mean

FORMAT = 2
COPIED = (
    "fedbnn_version",
    "rounds",
    "clients",
    "alignment_points",
    "split",
    "scored",
    "variants",
    "epsilon_spent",
    "epsilon_joined",
    "delta",
    "privacy_unit",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "seconds",
)


def collect(
    plan: Plan,
    name: str,
    entries: Sequence[Entry],
    changes: Sequence[str],
    known: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The contents of NAME.json; `known` are runs that need not be there, by name."""
    study = plan.contents.studies[name]
    settings = study.model_dump(exclude={"set"})
    return {
        "format": FORMAT,
        "study": name,
        "scale": plan.name,
        **settings,
        "changed": [change for change in changes if not change.strip().startswith("engine.")],  # where, not what
        "row_titles": {one: row.title for one, row in plan.contents.rows.items() if any(e.row == one for e in entries)},
        "entries": [_entry(entry, plan.contents.rows[entry.row], study, known or {}) for entry in entries],
        **({"paper_sizes": paper_sizes()} if isinstance(study, Cost) else {}),
    }


def _entry(entry: Entry, row: Row, study: object, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    bins = isinstance(study, Reliability)
    runs = [_run(cell, bins=bins) or known.get(cell.folder.name) for cell in entry.cells]
    facts: dict[str, Any] = {
        **entry.place,
        "row": entry.row,
        "method": row.method,
        "data": entry.column.data,
        "size": entry.column.size,
        "seeds": [cell.config.seed for cell in entry.cells],
        "runs": [run for run in runs if run is not None],
    }
    place = (entry.column.data, entry.column.size)
    if row.published and place in (cells := published.TABLE1[row.published]):
        facts["published"] = {"row": row.published, "mean": cells[place][0], "spread": cells[place][1]}
    if isinstance(study, Reliability) and row.method == "fedbnn" and entry.column.data in published.CALIBRATION:
        ece, mce = published.CALIBRATION[entry.column.data]
        facts["published"] = {"ece": ece, "mce": mce}
    return facts


def _run(cell: Cell, *, bins: bool) -> dict[str, Any] | None:
    """What a study keeps of one finished run; the reliability bins only where a diagram may be drawn."""
    result = cell.result()
    if result is None:
        return None
    return {
        "seed": cell.config.seed,
        "run": cell.folder.name,
        "hash": identity(cell.config),
        **{key: result[key] for key in COPIED if key in result},
        **{key: result[key] for key in SOMETIMES if key in result},
        "models": by_model(result["per_client"]),
        **({"reliability": result["reliability"]} if bins else {}),
    }


def by_model(clients: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, float]]:
    """For each architecture: how many clients, and the means of their weights, records, seconds and headline scores.

    Scores are those of the clients that have any; where that is not all of them, `scored` says of how many.
    ECE and MCE are left out: of single clients they say little, and their mean is not that of the pooled predictions.
    """
    groups: dict[str, list[int]] = {}
    for at, model in enumerate(clients["model"]):
        groups.setdefault(model, []).append(at)
    names = [name for name in scores_among(clients) if name not in POOLED] + ["weights", "records", "seconds"]
    return {model: _means(clients, of, names) for model, of in groups.items()}


def _means(clients: Mapping[str, Sequence[Any]], of: Sequence[int], names: Sequence[str]) -> dict[str, float]:
    known = {name: [value for at in of if (value := clients[name][at]) is not None] for name in names}
    scored = len(known["nll"])
    counts = {"clients": len(of)} | ({} if scored == len(of) else {"scored": scored})
    return counts | {name: mean(values) for name, values in known.items() if values}


def over_models(models: Mapping[str, Mapping[str, float]], names: Iterable[str], score: str) -> float | None:
    """The mean of a score over the clients of some architectures; None where there are none."""
    chosen = [models[name] for name in names if name in models and score in models[name]]
    counts = [model.get("scored", model["clients"]) for model in chosen]
    return sum(n * model[score] for n, model in zip(counts, chosen, strict=True)) / sum(counts) if counts else None


@cache
def paper_sizes() -> list[dict[str, Any]]:
    """What one message weighs at the paper's scale: outputs, points x classes x 4 bytes, or weights x 4 bytes."""
    sizes = []
    for data, (shape, classes) in published.SHAPES.items():
        with torch.device("meta"):
            weights = sum(one.numel() for one in build(ModelSettings("vgg9"), shape, classes).parameters())
        sizes.append(
            {
                "data": data,
                "points": published.ALIGNMENT,
                "classes": classes,
                "output_bytes": 4 * published.ALIGNMENT * classes,
                "weights": weights,
                "weight_bytes": 4 * weights,
            }
        )
    return sizes
