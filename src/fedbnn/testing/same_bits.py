"""The same bits in one process, in worker processes, and after a run was stopped and resumed."""

import tempfile
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from fedbnn.federation.engines import Engine, Site, WorkerPool
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.method import Method
from fedbnn.testing.sample import ROUNDS, SEED, same, sample_sites

PARTICIPATION = 0.6  # two of three clients after the warm-up


def check_workers(method: Method[Any, Any], sites: Sequence[Site] | None = None, workers: Engine | None = None) -> None:
    """Two worker processes give what one process gives: nothing passes between clients but messages."""
    sites = sites or sample_sites(method)
    straight = _federation(method, sites)
    expected = straight.run(ROUNDS)
    with nullcontext(workers) if workers else closing(WorkerPool(2)) as engine:
        spread = _federation(method, sites, engine)
        found = spread.run(ROUNDS)
        _compare(
            f"method '{method.name}': two worker processes give other results than one: clients may share nothing, not "
            "even what lies in a module or class",
            (straight, expected),
            (spread, found),
        )


def check_resume(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """A run that goes on from what was saved after round 1 ends as one that was never stopped.

    Unless the method's `replanned` says that it matters, only that round was planned at first.
    """
    sites = sites or sample_sites(method)
    planned = 1 if not method.replanned(1, ROUNDS) else ROUNDS
    fewer = [replace(site, client=replace(site.client, rounds=planned)) for site in sites]
    straight, stopped, resumed = (_federation(method, some) for some in (sites, fewer, sites))
    expected = straight.run(ROUNDS)
    stopped.run(1)
    with tempfile.TemporaryDirectory() as folder:
        stopped.save(Path(folder))
        resumed.load(Path(folder), 1)
    found = resumed.run(ROUNDS)
    _compare(
        f"method '{method.name}': a run that was stopped and resumed gives other results: all that must be kept "
        "belongs into the states, and a method to which it matters how many rounds are planned says so in `replanned`",
        (straight, expected[2:]),
        (resumed, found),
    )


def _federation(method: Method[Any, Any], sites: Sequence[Site], engine: Engine | None = None) -> Federation:
    return Federation(method, sites, seed=SEED, participation=PARTICIPATION, engine=engine)


def _compare(what: str, one: tuple[Federation, list[Round]], other: tuple[Federation, list[Round]]) -> None:
    assert same(_states(one[0]), _states(other[0])), f"{what} (states differ)"
    assert [_seen(turn) for turn in one[1]] == [_seen(turn) for turn in other[1]], f"{what} (scores or infos differ)"


def _states(federation: Federation) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        federation.save(Path(folder))
        files = {file.name: load_file(file) for file in Path(folder).iterdir()}
        return {f"{name}.{key}": value.clone() for name, file in files.items() for key, value in file.items()}


def _seen(record: Round) -> tuple[Any, ...]:
    """All that a round tells but how long it took."""
    turns = {c: (dict(turn.info), turn.bytes_up, turn.bytes_down, turn.rejected) for c, turn in record.turns.items()}
    scores = {c: {variant: e.to_dict() for variant, e in found.items()} for c, found in record.scores.items()}
    return record.number, turns, scores
