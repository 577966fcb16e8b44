"""Run folders, comparisons and results that others made: what reads them to tell of them, to report and to go on."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedbnn
from fedbnn.report.write import write_report
from fedbnn.reproduce.plan import load as load_plan
from fedbnn.reproduce.write import known_runs, write_page
from fedbnn.runs.collection import compare_runs
from fedbnn.runs.config import as_of_today
from fedbnn.runs.folder import RunFolder
from fedbnn.runs.prune import old_runs
from fedbnn.runs.standing import as_json, standings
from tests.fuzz.mutations import Form, json_lines, json_tree
from tests.fuzz.targets.target import Prepared, Target, from_file
from tests.report.samples import sample_config, sample_result
from tests.runs.run_sample import tiny

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ("pretrained", "ad_size", "calibration", "cost")  # a table, a curve, diagrams, costs

Reader = Callable[[Path], object]


@cache
def finished(*changes: str) -> dict[str, bytes]:
    """The files of a run that takes a second, by name."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        fedbnn.run(tiny("rounds=1", *changes), folder)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".html"}


def write_runs(folder: Path) -> tuple[Path, Path]:
    """Two finished runs, and the comparison of both; the first."""
    for name in ("one", "two"):
        (folder / name).mkdir()
        for file, data in finished().items():
            (folder / name / file).write_bytes(data)
        (folder / name / "notes.jsonl").write_text('{"note": "a client was set aside"}\n')
        (folder / name / "failure.json").write_text('{"error": "RuntimeError: told to"}\n')
    runs = [{"method": name, "seed": 0, "folder": name} for name in ("one", "two")]
    (folder / "comparison.json").write_text(json.dumps({"runs": runs}))
    return folder / "one", folder / "two"


def shown(folder: Path) -> None:
    """As `fedbnn watch` and `fedbnn runs` show it: JSON without numbers that are none."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is told")

    found = standings(folder)
    told = json.loads(as_json(found), parse_constant=refuse)
    assert len(told) == len(found)
    for one in found:
        if one.problem and one.state == "unreadable":
            raise fedbnn.UserError(one.problem)


def scored(folder: Path) -> None:
    fedbnn.load(folder).scores()


def resumed(folder: Path) -> None:
    stored = json.loads(finished()["config.json"])
    RunFolder.check(folder, stored, json.loads(finished()["partition.json"]), resume=True, today=as_of_today)


def metrics(folder: Path) -> None:
    run = RunFolder(folder)
    run.forget_after(0)
    run.metrics()


def pruned(folder: Path) -> None:
    old_runs(folder.parent, 0.0)


def dealt(folder: Path) -> None:
    _ = fedbnn.load(folder).clients


def _run_file(name: str, valid: Callable[[], list[Any]], *readers: Reader) -> Callable[[Path], Prepared]:
    """A file of the first of two runs; what reads the pair of them reads that, too."""

    def prepare(folder: Path) -> Prepared:
        one, two = write_runs(folder)
        others = [json.dumps(value).encode() for value in valid()]
        seeds = [(one / name).read_bytes(), *others]

        def compared(_: Path) -> None:
            compare_runs([one, two])

        every: list[Reader] = [*readers, compared] if name == "config.json" else list(readers)
        return Prepared(seeds, from_file(one / name, *(lambda file, read=read: read(file.parent) for read in every)))

    return prepare


def _comparison(folder: Path) -> Prepared:
    write_runs(folder)
    file = folder / "comparison.json"
    readers: list[Reader] = [shown, write_report, lambda place: pruned(place / "one")]
    return Prepared(
        [file.read_bytes()], from_file(file, *(lambda path, read=read: read(path.parent) for read in readers))
    )


def _study(folder: Path) -> Prepared:
    """A study of every kind, as the results in the repository have them."""
    plan, out = load_plan(ROOT / "experiments" / "cpu"), folder / "results"
    out.mkdir()
    valid = [(ROOT / "results" / "cpu" / f"{name}.json").read_bytes() for name in STUDIES]

    def page(file: Path) -> None:
        write_page(file.parent, plan)

    def known(file: Path) -> None:
        known_runs(file.parent, plan, STUDIES[0])

    return Prepared(valid, from_file(out / f"{STUDIES[0]}.json", page, known))


def _results_of_samples() -> list[Any]:
    regression = json.loads(
        finished("data.source=diabetes", "data.task=regression", "partition.kind=iid", "data.alignment=20")[
            "result.json"
        ]
    )
    return [sample_result("fedavg", rounds=2, clients=3), sample_result("dp_fedavg", rounds=2, clients=3), regression]


def _of(name: str, reads: str, form: Form, prepare: Callable[[Path], Prepared], share: float) -> Target:
    return Target(name, reads, form, prepare, share)


RUNS = (
    _of(
        "config.json",
        "a run's configuration",
        json_tree,
        _run_file("config.json", lambda: [sample_config()], shown, fedbnn.load, write_report, resumed, pruned),
        0.1,
    ),
    _of(
        "result.json",
        "a run's result",
        json_tree,
        _run_file("result.json", _results_of_samples, shown, scored, write_report),
        0.3,
    ),
    _of("metrics.jsonl", "a run's metrics", json_lines, _run_file("metrics.jsonl", list, shown, metrics), 0.5),
    _of("partition.json", "who holds what", json_tree, _run_file("partition.json", list, resumed, pruned, dealt), 0.02),
    _of("notes.jsonl", "notes of a run", json_lines, _run_file("notes.jsonl", list, shown), 0.3),
    _of("failure.json", "why a run failed", json_tree, _run_file("failure.json", list, shown), 0.3),
    _of("comparison.json", "runs that are compared", json_tree, _comparison, 0.1),
    _of("study", "results of a study", json_tree, _study, 0.05),
)
