"""The command `fedbnn tune`: parse, call one function, print."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedbnn.cli import tables
from fedbnn.cli.cell_progress import CellProgress
from fedbnn.cli.terminal import Set, error_console, out_console, split, split_seeds
from fedbnn.reproduce.tuning.search import load_search
from fedbnn.reproduce.tuning.trials import Trials
from fedbnn.reproduce.tuning.write import check_writable, judged_text, settings_text, write_best, write_trials


def tune(
    search: Annotated[
        Path | None,
        typer.Argument(metavar="[SEARCH]", help="A search, or a configuration or preset to search settings for."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Search only these, separated by commas; default: the file's, or its method.")
    ] = "",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Candidates of each method, the defaults first; default: the search's, or 10."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; default: the file's.")] = "",
    aim: Annotated[
        str,
        typer.Option(help='Scores to judge by, by importance, e.g. "nll + all_class_nll" or own_class_accuracy,nll.'),
    ] = "",
    changes: Set = None,
    out: Annotated[Path, typer.Option(help="A folder of the search's name is made in it.")] = Path("runs/tune"),
    write: Annotated[
        Path | None, typer.Option(help="Write the best settings into this file, as a configuration for `run`.")
    ] = None,
) -> None:
    """Search for good settings of methods on validation records; test records are never scored.

    Every method gets the same number of candidates, its defaults first. Stop it at any time: the same command goes on.
    """
    given = {"trials": trials, "seeds": split_seeds(seeds), "aim": split(aim)}
    tuning = load_search(search, split(methods), changes or [], **given)
    if write:
        check_writable(tuning, write, search)
    found = Trials(tuning, out / tuning.name)
    failed = 0
    with CellProgress(error_console) as progress:
        for problem in found.run(progress):
            failed += bool(problem)
            write_trials(found)
    lines = {row: found.best(row) for row in found.done}
    texts = {row: f"{settings_text(one)}: {judged_text(tuning, row, one)}" for row, one in lines.items()}
    out_console.print(tables.listing({row: escape(text) for row, text in texts.items()}), highlight=False)
    if write:
        write_best(found, write)
    for title, path in {"Trials": found.folder / "trials.md", **({"Best settings": write} if write else {})}.items():
        out_console.print(f"{title}: {escape(str(path.resolve()))}", soft_wrap=True, highlight=False)
    if failed:
        error_console.print(f"{failed} candidates failed", style="red")
        raise typer.Exit(1)
