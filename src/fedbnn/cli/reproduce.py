"""The command `fedbnn reproduce`: parse, call one function, print."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedbnn.cli import tables
from fedbnn.cli.cell_progress import CellProgress
from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import Set, error_console, out_console, say, split, split_seeds
from fedbnn.report.figures import MISSING, duration, show
from fedbnn.report.table import Table, row, table
from fedbnn.reproduce import driver
from fedbnn.reproduce.plan import find, load
from fedbnn.reproduce.write import make_folder


def reproduce(
    context: typer.Context,
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help="Studies to make, or all; without any: their list.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="cpu: hours on a small machine; paper: the paper's settings; quick: minutes; digits: all methods on "
            "digits; privacy: what budgets cost; robustness: clients that lie; or a folder."
        ),
    ] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="The same as --scale quick; needs no data files.")] = False,
    methods: Annotated[str, typer.Option(help="Run only these rows or methods, separated by commas.")] = "",
    datasets: Annotated[str, typer.Option(help="Run only on these data sets.")] = "",
    sizes: Annotated[str, typer.Option(help="Run only these sizes of data.")] = "",
    seeds: Annotated[str, typer.Option(help="Run only these of the plan's seeds.")] = "",
    changes: Set = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the results; a folder of the scale's name is made in it.")
    ] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/reproduce"),
    missing: Annotated[
        bool, typer.Option("--missing", help="Run, or list, only what the results lack, wherever it was run.")
    ] = False,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing; write what has been run.")] = False,
    show_cells: Annotated[bool, typer.Option("--list", help="Run nothing; list the cells and what is done.")] = False,
) -> None:
    """Make the paper's table and figures again, cell by cell, beside the published numbers.

    Stop it at any time: the same command goes on where it stopped, and what is finished is in the tables already.
    """
    plan = load(find("quick" if quick else scale))
    if not studies:
        typer.echo(context.get_help())
        out_console.print(f"Studies of scale {escape(plan.name)}:")
        out_console.print(tables.listing({name: study.title for name, study in plan.contents.studies.items()}))
        return
    selection = driver.Selection(split(methods), split(datasets), split(sizes), split_seeds(seeds))
    work = driver.prepare(plan, driver.choose(plan, studies), runs / plan.name, selection, changes or [])
    folder = out / plan.name
    if missing:
        work = work.lacking(folder)
    problems: list[str] = []
    if show_cells:
        # A pipe gets each cell on a line of its own, for grep.
        (out_console if out_console.is_terminal else Console(emoji=False, width=1000)).print(Printed(_cells(work)))
        return
    if finished:
        make_folder(folder)
        work.write(folder)
    else:
        with CellProgress(error_console) as progress:
            problems = driver.run(work, folder, progress)
    say(f"Results: {(folder / 'index.html').resolve()}")
    if problems:
        error_console.print(f"{len(problems)} of {len(work.cells)} cells failed", style="red")
        raise typer.Exit(1)


def _cells(work: driver.Work) -> Table:
    clock = driver.Clock()
    results = {cell.folder: cell.result() for cell in work.cells}
    for cell in work.cells:
        if result := results[cell.folder]:
            clock.learn(cell, result["seconds"])
    rows = []
    for cell in work.cells:
        result, guess = results[cell.folder], clock.estimate(cell)
        state = "done" if result else "started" if cell.started else "to run"
        time = (
            show(result["seconds"], duration) if result else MISSING if guess is None else f"~{show(guess, duration)}"
        )
        rows.append(row(cell.title, cell.folder.name, state, time))
    left = [cell for cell in work.cells if not results[cell.folder]]
    guess = clock.left(left)
    caption = f"{len(work.cells)} cells, {len(left)} to run"
    if left and guess is not None:
        caption += f", about {show(guess, duration)}"
    return table(["cell", "folder", "state", "time"], rows, caption, words=3)
