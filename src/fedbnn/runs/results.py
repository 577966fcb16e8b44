"""From what a run wrote down to its result: one value per score, per-client lists, and the curve over rounds.

Accuracy, NLL and Brier score are means over clients. ECE and MCE are computed on the pooled reliability bins of all
clients: a bin needs many predictions to say anything, and one client's few test records leave most bins nearly empty.
A client without records of its own to be scored on is unscored: null in its lists, and in no mean.
In regression every score is a mean over clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

from fedbnn.base.version import __version__
from fedbnn.data import FederatedData
from fedbnn.federation.engines import Site
from fedbnn.federation.evaluation import (
    ALL_SCORES,
    DETECTION,
    POOLED,
    SOMETIMES,
    Evaluation,
    Scored,
    headline,
    scores_among,
)
from fedbnn.federation.loop import Round
from fedbnn.federation.metrics import Confusion, ReliabilityBins
from fedbnn.federation.regression_evaluation import RegressionEvaluation
from fedbnn.runs.config import Config

FIELDS = (
    "round",
    "client",
    "name",
    "bytes_up",
    "bytes_down",
    "seconds",
    "rejected",
    "set_aside",
    "reliability",
    "pit",
    "variants",
    "elapsed",
)
"""Of a line of metrics.jsonl, beside scores and a method's own diagnostics, which may not have these names."""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def metric_lines(record: Round, names: Sequence[str]) -> list[dict[str, Any]]:
    """A line for every client that took part or was scored in this round."""
    lines = []
    for client, name in enumerate(names):
        line: dict[str, Any] = {"round": record.number, "client": client, "name": name}
        if client in record.turns:
            turn = record.turns[client]
            line |= {
                "bytes_up": turn.bytes_up,
                "bytes_down": turn.bytes_down,
                "seconds": turn.seconds,
                **turn.info,
            }
            if turn.rejected:
                line["rejected"] = turn.rejected
            if client in record.set_aside:
                line["set_aside"] = True
        if client in record.scores:
            line |= _described(headline(record.scores[client]))
            others = list(record.scores[client].items())[1:]
            if others:
                line["variants"] = {variant: _described(evaluation) for variant, evaluation in others}
        if len(line) > 3:
            line["elapsed"] = record.seconds
            lines.append(line)
    return lines


def without_end(line: Mapping[str, Any], *, scored: bool) -> dict[str, Any]:
    """A line of a last round as it would be were that not the last: without scores of DETECTION, or without any.

    Of a client that only was scored, nothing is left.
    """
    gone = set(DETECTION) if scored else {*ALL_SCORES, *SOMETIMES, "reliability", "pit", "variants"}
    kept = {name: value for name, value in line.items() if name not in gone}
    if "variants" in kept:
        variants = kept["variants"].items()
        kept["variants"] = {variant: without_end(scores, scored=True) for variant, scores in variants}
    return kept if scored or "bytes_up" in kept else {}


def _described(evaluation: Scored) -> dict[str, Any]:
    if isinstance(evaluation, RegressionEvaluation):
        return evaluation.scores | {"pit": evaluation.pit.to_dict()}
    return evaluation.scores | {"reliability": evaluation.reliability.to_dict()}


def score_names(evaluations: Sequence[Scored]) -> list[str]:
    """The scores that all have: those of SOMETIMES only where they were asked for."""
    return [
        *scores_among(evaluations[0].scores),
        *(name for name in SOMETIMES if all(name in one.scores for one in evaluations)),
    ]


def summary(evaluations: Sequence[Scored]) -> dict[str, float]:
    """One value per score over all clients that are scored."""
    pooled = _calibration([one.reliability for one in evaluations if isinstance(one, Evaluation)])
    return {
        name: pooled[name] if name in pooled else mean([one.scores[name] for one in evaluations])
        for name in score_names(evaluations)
    }


def _calibration(bins: Sequence[ReliabilityBins]) -> dict[str, float]:
    """The scores that are POOLED; none of regression, which has no such bins."""
    if not bins:
        return {}
    every: ReliabilityBins = reduce(add, bins)
    return {name: getattr(every, name) for name in POOLED}


def curve(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Scores of each evaluated round; `seconds` is the wall time up to and including it."""
    elapsed: dict[int, float] = {}
    scored: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        elapsed[line["round"]] = line["elapsed"]
        if "nll" in line:
            scored.setdefault(line["round"], []).append(line)
    names = scores_among({name for clients in scored.values() for name in clients[0]})
    result: dict[str, list[float]] = {name: [] for name in ("round", *names, "seconds")}
    for number, clients in sorted(scored.items()):
        bins = [ReliabilityBins.from_dict(line["reliability"]) for line in clients if "reliability" in line]
        pooled = _calibration(bins)
        result["round"].append(number)
        result["seconds"].append(sum(seconds for r, seconds in elapsed.items() if r <= number))
        for name in names:
            result[name].append(pooled[name] if name in pooled else mean([line[name] for line in clients]))
    return result


def assemble(
    config: Config,
    data: FederatedData,
    sites: Sequence[Site],
    lines: Sequence[Mapping[str, Any]],
    final: Mapping[int, Mapping[str, Scored]],
    seconds: float,
) -> dict[str, Any]:
    """The contents of result.json."""
    liars = set(config.attack.attackers(len(sites), config.seed))
    everybody, sites = sites, [site for site in sites if site.client.index not in liars]
    by_site = [headline(final[at]) if (at := site.client.index) in final else None for site in sites]
    judged = [one for one in by_site if one is not None]
    by_client: dict[int, list[Mapping[str, Any]]] = {site.client.index: [] for site in sites}
    for line in lines:
        if "bytes_up" in line and line["client"] in by_client:
            by_client[line["client"]].append(line)
    turns = list(by_client.values())
    # Round 0 sends nothing down and is no exchange yet; a client that never took part after it counts with zero.
    up, down = (
        [mean([t[name] for t in client if t["round"] > 0] or [0]) for client in turns]
        for name in ("bytes_up", "bytes_down")
    )
    variants = list(next(iter(final.values())))
    dropped = sum("rejected" in line for client in turns for line in client)
    aside = [line["name"] for line in lines if line.get("set_aside")]
    return {
        "fedbnn_version": __version__,
        "method": config.method_name,
        "seed": config.seed,
        "rounds": config.rounds,
        "clients": len(everybody),
        **({"attackers": [everybody[client].client.name for client in sorted(liars)]} if liars else {}),
        **({"set_aside": aside} if aside else {}),
        **({"dropped": dropped} if dropped else {}),
        "dataset": data.dataset.name,
        **_target(data),
        "alignment_points": data.alignment_points,
        "split": config.evaluation.split,
        "scored": variants[0],
        **summary(judged),
        "variants": {name: summary([scored[name] for scored in final.values()]) for name in variants},
        **_privacy(config, sites, [len(client) for client in turns]),
        "bytes_up_per_client_round": mean(up),
        "bytes_down_per_client_round": mean(down),
        "seconds": seconds,
        "per_client": {
            "name": [site.client.name for site in sites],
            "model": [site.client.model.name for site in sites],
            "weights": [site.weights for site in sites],
            "records": [len(site.client.train) for site in sites],
            **_held(data, sites),
            **{name: [one and one.scores[name] for one in by_site] for name in score_names(judged)},
            "bytes_up": up,
            "bytes_down": down,
            "seconds": [sum(t["seconds"] for t in client) for client in turns],
        },
        "curve": curve(lines),
        **_counts(judged, data.dataset.classes),
    }


def _target(data: FederatedData) -> dict[str, Any]:
    """What is predicted: classes, or a real number of this scale."""
    if data.dataset.scale is None:
        return {"class_names": list(data.dataset.class_names)}
    return {"task": "regression", "target": asdict(data.dataset.scale)}


def _held(data: FederatedData, sites: Sequence[Site]) -> dict[str, Any]:
    if data.dataset.scale is not None:
        return {}
    return {"classes": [data.own_classes(site.client.index).tolist() for site in sites]}


def _counts(judged: Sequence[Scored], classes: int) -> dict[str, Any]:
    """Predictions of all clients, counted."""
    if measured := [one for one in judged if isinstance(one, RegressionEvaluation)]:
        return {"pit": reduce(add, (one.pit for one in measured)).to_dict()}
    found = [one for one in judged if isinstance(one, Evaluation)]
    return {
        "reliability": reduce(add, (one.reliability for one in found)).to_dict(),
        "uncertainty": {
            "total": reduce(add, (one.total for one in found)).to_dict(),
            "epistemic": reduce(add, (one.epistemic for one in found)).to_dict(),
        },
        "ranked": reduce(add, (one.ranked for one in found)).to_dict(),
        **_confusion([one.confusion for one in found], classes),
    }


def _confusion(matrices: Sequence[Confusion | None], classes: int) -> dict[str, list[list[int]]]:
    """That of all clients' predictions; nothing where a client sent none, or one of other classes."""
    known = [one for one in matrices if one is not None and len(one.counts) == classes]
    return {"confusion": reduce(add, known).to_list()} if len(known) == len(matrices) else {}


def _privacy(config: Config, sites: Sequence[Site], turns: Sequence[int]) -> dict[str, Any]:
    """What is guaranteed to whoever is guaranteed least; nothing is said where nothing is accounted for."""
    method = config.chosen()
    spent = [method.privacy_spent(site.client, count) for site, count in zip(sites, turns, strict=True)]
    guarantees = [one for one in spent if one is not None]
    if len(guarantees) < len(spent):
        return {"epsilon_spent": None}
    weakest = max(guarantees, key=lambda one: one.epsilon)
    return {
        "epsilon_spent": weakest.epsilon,
        **({} if weakest.joined is None else {"epsilon_joined": weakest.joined}),
        "delta": weakest.delta,
        "privacy_unit": weakest.unit,
        "mechanism": weakest.mechanism,
    }
