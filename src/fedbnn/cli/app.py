"""The command line: parse, call one function, print. No logic lives here."""

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__
from fedbnn.cli.lazy import lazy_group
from fedbnn.cli.terminal import complain, error_console

COMMANDS = {
    "run": "fedbnn.cli.run:run",
    "compare": "fedbnn.cli.run:compare",
    "report": "fedbnn.cli.run:report",
    "watch": "fedbnn.cli.watch:watch",
    "runs": "fedbnn.cli.runs:app",
    "predict": "fedbnn.cli.predict:predict",
    "export": "fedbnn.cli.export:export",
    "data": "fedbnn.cli.data:app",
    "suggest": "fedbnn.cli.suggest:suggest",
    "tune": "fedbnn.cli.tune:tune",
    "reproduce": "fedbnn.cli.reproduce:reproduce",
    "methods": "fedbnn.cli.lists:methods",
    "models": "fedbnn.cli.lists:models",
    "datasets": "fedbnn.cli.lists:datasets",
    "presets": "fedbnn.cli.lists:presets",
    "config": "fedbnn.cli.lists:config",
    "privacy": "fedbnn.cli.privacy:app",
    "flower": "fedbnn.cli.flower:app",
}
"""Where each command is; it is imported when it is used."""

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    help="Bayesian federated learning among unequal partners: every client its own Bayesian network, joined by "
    "priors in function space.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130


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
    except Exception as error:
        if _is_client_failure(error):
            complain(error)
        else:
            traceback.print_exc()
        sys.exit(1)


def _is_client_failure(error: Exception) -> bool:
    """A failure of a client's half, whose text has its traceback; where engines were never loaded, it is none."""
    engines = sys.modules.get("fedbnn.federation.engines")
    return engines is not None and isinstance(error, engines.ClientFailure)
