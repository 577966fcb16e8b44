"""The command line: parse, call one function, print. No logic lives here."""

import inspect
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.text import Text

from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__
from fedbnn.cli import flower as flower_cli
from fedbnn.cli import predict as predict_cli
from fedbnn.cli import privacy as privacy_cli
from fedbnn.cli import reproduce as reproduce_cli
from fedbnn.cli import runs as runs_cli
from fedbnn.cli import tables
from fedbnn.cli import tune as tune_cli
from fedbnn.cli import watch as watch_cli
from fedbnn.cli.progress import TerminalProgress
from fedbnn.cli.terminal import (
    ConfigFile,
    Json,
    Set,
    complain,
    echo_json,
    error_console,
    out_console,
    say,
    split,
    split_seeds,
)
from fedbnn.data.presence import presence
from fedbnn.deployment import start
from fedbnn.federation.engines import ClientFailure
from fedbnn.methods.registry import summaries
from fedbnn.models.architectures import MODELS
from fedbnn.report import write_report
from fedbnn.report.load import load
from fedbnn.report.privacy import briefly
from fedbnn.runs import experiment
from fedbnn.runs.config import default_toml, load_config, presets
from fedbnn.runs.loggers import make_loggers

app = typer.Typer(
    no_args_is_help=True,
    help="Bayesian federated learning among unequal partners: every client its own Bayesian network, joined by "
    "priors in function space.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(privacy_cli.app, name="privacy")
app.add_typer(flower_cli.app, name="flower")
app.add_typer(runs_cli.app, name="runs")
app.command()(reproduce_cli.reproduce)
app.command()(tune_cli.tune)
app.command()(predict_cli.predict)
app.command()(watch_cli.watch)
INTERRUPTED = 130
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME",
        help="Also log to tensorboard (a folder in the run's) or mlflow (mlflow.db beside it); repeatable.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an earlier run of the same command stopped.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fedbnn {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
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
    settings = load_config(config, [*(changes or []), *([f"engine.kind={engine}"] if engine else [])])
    folder = out or Path("runs") / f"{settings.data.source}-{settings.method_name}-seed{settings.seed}"
    loggers = make_loggers(log or [], folder)
    experiment.obtain_data(settings)
    with TerminalProgress(error_console) as progress:
        result = start.run(settings, folder, resume=resume, observer=[progress, *loggers])
    _show([result], folder, as_json)


@app.command()
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods to compare, separated by commas; default: all that this federation allows."),
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


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run or comparison folder.")]) -> None:
    """Write the HTML report of a run or comparison folder DIR again."""
    typer.echo(write_report(folder))


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, also those of installed packages; your own are 'package.module:Class'."""
    _list("method", summaries(), as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models; your own are 'package.module:factory'."""
    _list("model", {name: (inspect.getdoc(make) or "").splitlines()[0] for name, make in MODELS.items()}, as_json)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the sources of data, and where each was found.

    Public data sets are looked for in the folder $FEDBNN_DATA, then in ~/.cache/fedbnn (or $XDG_CACHE_HOME/fedbnn):
    NAME.npz or the original files, as they are or in a folder NAME. What is not there is downloaded on first use.
    """
    sources = presence()
    if as_json:
        echo_json([asdict(one) for one in sources])
    else:
        where = [(one.where, "green" if one.present else "dim") for one in sources]
        words = [Text.assemble(one.summary, "\n", place) for one, place in zip(sources, where, strict=True)]
        out_console.print(tables.listing(dict(zip((one.source for one in sources), words, strict=True))))


@app.command("presets")
def list_presets(as_json: Json = False) -> None:
    """List the configurations that come with the package; `run` and `compare` take their names."""
    _list("preset", presets(), as_json)


@app.command()
def config() -> None:
    """Print the default configuration as commented TOML, to start your own from."""
    typer.echo(default_toml(), nl=False)


def _list(kind: str, entries: dict[str, str], as_json: bool) -> None:
    if as_json:
        echo_json([{kind: name, "summary": text} for name, text in entries.items()])
    else:
        out_console.print(tables.listing(entries))


def _show(results: Sequence[dict[str, Any]], folder: Path, as_json: bool) -> None:
    if as_json:
        echo_json(list(results) if len(results) > 1 else results[0])
        return
    groups = load(folder).groups
    out_console.print(tables.comparison(groups))
    for words in briefly([(group.method, group.guarantee) for group in groups]):
        say(words)
    say(f"Report: {(folder / 'report.html').resolve()}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: 0 success, 2 the user's mistake, 1 a failure of ours or a client's, 130 stopped by Ctrl-C."""
    try:
        code = app(args=arguments, standalone_mode=False) or 0
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except UserError as error:
        complain(error)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        error_console.print(
            "stopped; --resume goes on after the last finished round, `reproduce`, `tune` and `flower up` by themselves"
        )
        sys.exit(INTERRUPTED)
    except ClientFailure as error:
        complain(error)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
