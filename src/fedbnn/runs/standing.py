"""How far a run is, told by its folder alone: reads while somebody else writes, and changes nothing.

A folder may be anybody's: whatever is in its files, only numbers and words of a known kind come out of here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedbnn.base.errors import UserError
from fedbnn.base.files import held, read_json
from fedbnn.base.wording import one_line
from fedbnn.federation.evaluation import ALL_SCORES
from fedbnn.report.load import runs_of
from fedbnn.runs.folder import FAILURE, NOTES, read_lines
from fedbnn.runs.results import curve

State = Literal["waiting", "running", "unfinished", "crashed", "finished", "unreadable"]
LONGEST = 300  # signs of a name or note
MOST_NOTES = 50
RECENT = 5  # rounds whose time tells how long the next ones take


@dataclass(frozen=True)
class Standing:
    """One run.

    Attributes:
        state: waiting (nothing is there yet), running (a process holds its lock), unfinished (--resume goes on),
            crashed (its process said why it failed), finished, or unreadable (`problem` says why). Where the system
            does not tell who holds a lock, a run that goes on is unfinished.
        rounds: planned; of a run that was stopped early, those that were held.
        round_number: the last that is finished; 0 is the warm-up, -1 before it.
        curve: `round`, `seconds` and each score as lists, one entry an evaluated round.
        clients: the newest line of each in metrics.jsonl: who, bytes, seconds and scores.
        left: seconds that the rounds left will take if they are like the last ones; None where nothing tells.

    """

    folder: Path
    state: State
    method: str = ""
    data: str = ""
    seed: int = 0
    rounds: int = 0
    round_number: int = -1
    curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    clients: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    left: float | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def scores(self) -> dict[str, float]:
        """The last value of each score; nothing before the first evaluation."""
        return {name: self.curve[name][-1] for name in ALL_SCORES if self.curve.get(name)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: numbers that are none become null."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "folder"}
        found: dict[str, Any] = _finite({"name": _words(self.folder.name), **told})
        return found


def standing(folder: Path) -> Standing:
    """How far the run in this folder is; one that cannot be read says why."""
    if not (folder / "config.json").is_file():
        return Standing(folder, "waiting")
    try:
        return _read(folder)
    except UserError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        problem = f"{folder} holds no run that this version can read ({type(error).__name__}: {error})"
    return Standing(folder, "unreadable", problem=_words(problem))


def standings(folder: Path) -> list[Standing]:
    """Those of a comparison, in its order, or the one of a run folder."""
    if (folder / "comparison.json").is_file():
        try:
            return [standing(path) for path in runs_of(folder)]
        except UserError as error:
            return [Standing(folder, "unreadable", problem=_words(str(error)))]
    return [standing(folder)]


def _read(folder: Path) -> Standing:
    config = read_json(folder / "config.json")
    lines = read_lines(folder / "metrics.jsonl")
    result = read_json(folder / "result.json") if (folder / "result.json").exists() else None
    failure = read_json(folder / FAILURE)["error"] if (folder / FAILURE).exists() else ""
    elapsed = {int(line["round"]): float(line["elapsed"]) for line in lines}
    round_number = max(elapsed, default=-1)
    rounds = int(config["rounds"] if result is None else result["rounds"])
    recent = [elapsed[number] for number in sorted(elapsed)[1:][-RECENT:]]  # the warm-up is like no other round
    running = held(folder / ".lock")
    state: State = "finished" if result else "running" if running else "crashed" if failure else "unfinished"
    newest: dict[int, dict[str, Any]] = {}
    for line in lines:
        newest.setdefault(int(line["client"]), {}).update(_about(line))
    stopped = [f"stopped: {result['stopped']}"] if result and "stopped" in result else []
    notes = [*(str(line["note"]) for line in read_lines(folder / NOTES)[-MOST_NOTES:]), *stopped]
    return Standing(
        folder,
        state,
        method=_words(config["method"]).rpartition(":")[2],
        data=_words(config["data"]["source"]),
        seed=int(config["seed"]),
        rounds=rounds,
        round_number=round_number,
        curve=curve(lines),
        clients=tuple(newest[client] for client in sorted(newest)),
        seconds=sum(elapsed.values()),
        left=sum(recent) / len(recent) * (rounds - round_number) if recent and state == "running" else None,
        notes=tuple(_words(note) for note in notes),
        problem=_words(failure) if state == "crashed" else "",
    )


def _about(line: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a client's line: numbers of known names, and words."""
    numbers = ("client", "round", "bytes_up", "bytes_down", "seconds", *ALL_SCORES)
    about: dict[str, Any] = {name: float(line[name]) for name in numbers if name in line}
    return {**about, "name": _words(line["name"]), "rejected": _words(line.get("rejected", ""))}


def _words(text: object) -> str:
    return one_line(str(text), LONGEST)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(found: Sequence[Standing]) -> str:
    return json.dumps([one.to_dict() for one in found], allow_nan=False)
