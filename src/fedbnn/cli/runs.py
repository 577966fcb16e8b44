"""The commands `fedbnn runs ...`: list what was run, put runs side by side, delete old ones."""

import time
from collections.abc import Sized
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbnn.base.errors import UserError
from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import Json, complain, echo_json, out_console, say
from fedbnn.federation.evaluation import MEASURES
from fedbnn.report.figures import MISSING, plain, share, show, size, target
from fedbnn.report.table import row, table
from fedbnn.runs.collection import changed_at, compare_runs, find_runs, size_of
from fedbnn.runs.prune import delete, old_runs, parse_age
from fedbnn.runs.standing import standing

app = typer.Typer(help="List runs, compare any of them, and delete old ones.", invoke_without_command=True)
Below = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look, at any depth.")]


@app.callback()
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_runs(Path("runs"), as_json=False)


@app.command("list")
def list_runs(folder: Below = Path("runs"), as_json: Json = False) -> None:
    """List the runs below FOLDER: how far each is, what it scored, how old and how large it is."""
    now, rows, told = time.time(), [], []
    for path in find_runs(folder):
        run, age, taken = standing(path), now - changed_at(path), size_of(path)
        name = str(path.relative_to(folder)) if path != folder else path.name
        accuracy, crps = run.scores.get("own_class_accuracy"), run.scores.get("crps")
        fields = ("state", "method", "data", "seed", "round_number", "rounds", "problem")
        facts = {one: getattr(run, one) for one in fields}
        score = {"own_class_accuracy": accuracy} if crps is None else {"crps": crps}
        told.append({"folder": name, **facts, **score, "age_seconds": age, "bytes": taken})
        rounds = f"{max(run.round_number, 0)}/{run.rounds}" if run.rounds else MISSING
        scored = MISSING if accuracy is None else show(accuracy, share)
        scored = scored if crps is None else f"CRPS {show(crps, target)}"
        cells = [run.method, run.data, str(run.seed), rounds, scored, age_text(age), show(taken, size)]
        rows.append(row(name, run.state, *cells))
    if as_json:
        echo_json(told)
        return
    titles = ["run", "state", "method", "data", "seed", "rounds", "own classes", "age", "size"]
    out_console.print(Printed(table(titles, rows, f"{_count(rows)} below {folder}", words=4)))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not.")],
    as_json: Json = False,
) -> None:
    """Put runs side by side: the settings in which they differ, and what each scored last."""
    found = compare_runs(runs)
    if as_json:
        runs_told = [{"folder": str(run.folder), "state": run.state, "round": run.round_number} for run in found.runs]
        echo_json({"runs": runs_told, "settings": found.settings, "scores": found.scores})
        return
    names = _names([run.folder for run in found.runs])
    rows = [row("state", *(run.state for run in found.runs))]
    rows.append(row("rounds", *(f"{max(run.round_number, 0)}/{run.rounds}" for run in found.runs)))
    rows += [row(key, *(_value(value) for value in values)) for key, values in found.settings.items()]
    for score, values in found.scores.items():
        measure = MEASURES[score]
        unit = share if measure.unit == "share" else plain
        rows.append(row(measure.title, *(MISSING if value is None else show(value, unit) for value in values)))
    same = "" if found.settings else "; their settings are the same"
    out_console.print(Printed(table(["", *names], rows, f"settings that differ, and the last scores{same}")))


@app.command()
def prune(
    folder: Below = Path("runs"),
    older_than: Annotated[
        str, typer.Option("--older-than", help="Nothing was written to them for so long: 12h, 30d or 8w.")
    ] = "",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only runs that were not finished.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it they are only listed.")] = False,
    as_json: Json = False,
) -> None:
    """Delete old runs below FOLDER; without --yes it only says which. A run with ledgers is never deleted."""
    if not older_than:
        raise UserError("--older-than is missing: how old runs must be to be deleted, e.g. 30d")
    found = old_runs(folder, parse_age(older_than), unfinished=unfinished)
    gone = delete(found) if yes else []
    if as_json:
        told = [{"folder": str(one.folder), "state": one.state, "age_seconds": one.seconds} for one in found]
        extra = [{"bytes": one.bytes, "refused": one.refusal, "deleted": one.folder in gone} for one in found]
        echo_json([one | more for one, more in zip(told, extra, strict=True)])
        return
    for one in found:
        if one.refusal:
            complain(f"{one.folder} stays: {one.refusal}")
        elif yes and one.folder not in gone:
            complain(f"{one.folder} stays: it has changed meanwhile")
        else:
            verb = "deleted" if yes else "would be deleted"
            say(f"{one.folder} ({one.state}, {age_text(one.seconds)}, {show(one.bytes, size)}) {verb}")
    going = [one for one in found if not one.refusal]
    freed = show(sum(one.bytes for one in going), size)
    say(f"{_count(going)}, {freed}" + ("" if yes or not going else "; --yes deletes them"))


def age_text(seconds: float) -> str:
    """An age in its largest unit."""
    for worth, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= worth:
            return f"{int(seconds / worth)} {unit}"
    return f"{max(0, int(seconds))} s"


def _names(folders: list[Path]) -> list[str]:
    """The last part of each path, or as much of it as tells them apart."""
    for parts in range(1, 8):
        names = ["/".join(folder.resolve().parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _value(value: Any) -> str:
    return MISSING if value is None else str(value)


def _count(found: Sized) -> str:
    return f"{len(found)} run" + ("" if len(found) == 1 else "s")
