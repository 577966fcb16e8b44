"""The numbers of a round, by names that loggers show: scores over all clients, cost, a method's own diagnostics."""

from collections.abc import Mapping

from fedbnn.federation.loop import Round
from fedbnn.runs.results import mean, summary


def numbers_of(record: Round) -> dict[str, float]:
    """Of the model that a method is judged by `scores/...`, of its others `VARIANT/...`; means over clients that took
    part as `round/...` and `info/...`.
    """
    numbers = {"round/elapsed": record.seconds}
    turns = list(record.turns.values())
    for name in ("bytes_up", "bytes_down", "seconds"):
        numbers[f"round/{name}"] = mean([float(getattr(turn, name)) for turn in turns] or [0.0])
    told = dict.fromkeys(name for turn in turns for name in turn.info)
    numbers |= {f"info/{name}": mean([float(turn.info[name]) for turn in turns if name in turn.info]) for name in told}
    variants = list(next(iter(record.scores.values()))) if record.scores else []
    for at, variant in enumerate(variants):
        scores = summary([scored[variant] for scored in record.scores.values()])
        numbers |= prefixed("scores" if at == 0 else variant, scores)
    return numbers


def prefixed(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": float(value) for name, value in values.items()}
