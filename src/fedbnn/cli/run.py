"""The commands `fedbnn run`, `compare` and `report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbnn.cli import completion
from fedbnn.cli.terminal import ConfigFile, Json, Set, echo_json, error_console, out_console, say, split, split_seeds

Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME",
        help="Also log to tensorboard (a folder in the run's) or mlflow (mlflow.db beside it); repeatable.",
        autocompletion=completion.logs,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where an earlier run stopped; `rounds` may be more than before.")
]


def run(
    config: ConfigFile = None,
    changes: Set = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/DATASET-METHOD-seedN.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where clients run: local or flower-sim; short for --set engine.kind=...")
    ] = None,
    resume: Resume = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Run one method and write its run folder, result and report.

    CONFIG is a TOML file (see `fedbnn config`) or a preset (see `fedbnn presets`); without it, the digits federation.
    """
    from fedbnn.cli.progress import TerminalProgress
    from fedbnn.deployment import start
    from fedbnn.runs import experiment
    from fedbnn.runs.config import load_config
    from fedbnn.runs.loggers import make_loggers

    settings = load_config(config, [*(changes or []), *([f"engine.kind={engine}"] if engine else [])])
    folder = out or Path("runs") / f"{settings.data.source}-{settings.method_name}-seed{settings.seed}"
    loggers = make_loggers(log or [], folder)
    experiment.obtain_data(settings)
    with TerminalProgress(error_console) as progress:
        result = start.run(settings, folder, resume=resume, observer=[progress, *loggers])
    _show([result], folder, as_json)


def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare, separated by commas; default: all that this federation allows.",
            autocompletion=completion.methods,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; default: the configuration's.")] = "",
    changes: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison; default runs/DATASET-compare.")] = None,
    resume: Resume = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Run several methods on the same data, seeds and budget; one table, one report. CONFIG as in `run`.

    All methods with their tuned settings: fedbnn compare digits-homogeneous --seeds 0,1,2
    """
    from fedbnn.cli.progress import TerminalProgress
    from fedbnn.runs import experiment
    from fedbnn.runs.config import load_config
    from fedbnn.runs.loggers import make_loggers

    names = None if methods is None else split(methods)
    settings = load_config(config, changes or [], names or [])
    folder = out or Path("runs") / f"{settings.data.source}-compare"
    numbers = split_seeds(seeds) or [settings.seed]
    loggers = make_loggers(log or [], folder)
    experiment.obtain_data(settings)
    with TerminalProgress(error_console) as progress:
        observers = [progress, *loggers]
        results = experiment.compare(settings, names, folder, seeds=numbers, resume=resume, observer=observers)
    _show(results, folder, as_json)


def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run or comparison folder.")]) -> None:
    """Write the HTML report of a run or comparison folder DIR again."""
    from fedbnn.report import write_report

    typer.echo(write_report(folder))


def _show(results: Sequence[dict[str, Any]], folder: Path, as_json: bool) -> None:
    from fedbnn.cli import tables
    from fedbnn.report.load import load
    from fedbnn.report.privacy import briefly

    if as_json:
        echo_json(list(results) if len(results) > 1 else results[0])
        return
    groups = load(folder).groups
    out_console.print(tables.comparison(groups))
    for words in briefly([(group.method, group.guarantee) for group in groups]):
        say(words)
    say(f"Report: {(folder / 'report.html').resolve()}")
