"""The commands of `fedbnn privacy`: parse, call one function, print."""

from pathlib import Path
from typing import Annotated

import click
import typer

from fedbnn.audit import configuration as auditing
from fedbnn.cli import privacy_tables
from fedbnn.cli.terminal import ConfigFile, Json, Set, complain, echo_json, out_console, proving, say
from fedbnn.deployment.facts import facts_leave
from fedbnn.deployment.statement import statement as statement_of
from fedbnn.deployment.statement import write_statement
from fedbnn.privacy.forecast import forecast
from fedbnn.privacy.mechanism import Sizes, known_mechanisms
from fedbnn.privacy.overview import overview
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import cores

app = typer.Typer(no_args_is_help=True, help="Plan, look up and audit what is spent on privacy.")

SIZES = Sizes()
PRIVATE = click.Choice([name for name, one in known_mechanisms().items() if one.release(SIZES)])


@app.command()
def plan(
    epsilon: Annotated[float | None, typer.Option(help="What all releases may cost together.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise over the sensitivity, of one release.")
    ] = None,
    releases: Annotated[int | None, typer.Option(help="Number of releases.")] = None,
    delta: Annotated[float, typer.Option(help="Probability that is exempt.")] = 1e-5,
    mechanism: Annotated[str, typer.Option(help="What is released.", click_type=PRIVATE)] = "dp_teacher",
    records: Annotated[int, typer.Option(help="Records of a client.")] = SIZES.records,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = SIZES.classes,
    dimensions: Annotated[int, typer.Option(help="Public features.")] = SIZES.dimensions,
    alignment: Annotated[int, typer.Option(help="Points of the alignment set.")] = SIZES.alignment,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = SIZES.clients,
    multiplicity: Annotated[int, typer.Option(help="Clients that hold one and the same record, at most.")] = 1,
    as_json: Json = False,
) -> None:
    """Divide a budget: two of --epsilon, --noise-multiplier and --releases give the third, and what it leaves.

    Without any of the three: epsilon 3 in one release.
    """
    planned = forecast(
        mechanism,
        delta,
        Sizes(records, classes, dimensions, alignment, clients),
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        releases=releases,
        multiplicity=multiplicity,
    )
    if as_json:
        echo_json(planned.to_dict())
    else:
        out_console.print(privacy_tables.forecast(planned), highlight=False)


@app.command()
def mechanisms() -> None:
    """What `privacy.mechanism` can be."""
    for name, mechanism in known_mechanisms().items():
        out_console.print(f"{name:<20} {mechanism.summary}", highlight=False, soft_wrap=True)


@app.command()
def spent(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, a folder of ledgers, or a ledger's own.")
    ],
    delta: Annotated[float, typer.Option(help="Delta at which epsilon is told.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """What was spent, as the ledgers in DIR have it; changes nothing."""
    ledgers = overview(folder, delta)
    if as_json:
        echo_json(ledgers.to_dict())
    else:
        out_console.print(privacy_tables.overview(ledgers), highlight=False)
    for entry in ledgers.broken:
        complain(entry.problem)
    if ledgers.broken:
        raise typer.Exit(1)


@app.command()
def statement(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A site's state folder, a run folder, a folder of ledgers, or a ledger's."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for statement.html and statement.json.")] = Path(),
    delta: Annotated[float, typer.Option(help="Delta at which epsilon is told.")] = 1e-5,
    name: Annotated[str, typer.Option(help="Name of the organisation on the page; without it, the owner's.")] = "",
) -> None:
    """Write a page to sign: what left, when, under which guarantee, what remains, and whom to trust for what.

    The exit code is 1 if a ledger is broken, and the page then says that what was spent is not known.
    """
    made = statement_of(folder, delta, name)
    for file in write_statement(made, out):
        say(str(file))
    for problem in made.broken:
        complain(problem)
    if made.broken:
        raise typer.Exit(1)


@app.command()
def audit(
    config: ConfigFile = None,
    changes: Set = None,
    trials: Annotated[int, typer.Option(help="Attacks; a coin decides whether the record is there.")] = auditing.TRIALS,
    minutes: Annotated[float, typer.Option(help="The audit ends after this time, if that comes first.")] = 10.0,
    confidence: Annotated[float, typer.Option(help="Probability with which the lower bound holds.")] = 0.999,
    workers: Annotated[int, typer.Option(help="Worker processes; 0: one for each core.")] = 0,
    as_json: Json = False,
) -> None:
    """Attack a client of this configuration and see whether its guarantee holds; takes minutes. CONFIG as in `run`.

    The exit code is 1 if the guarantee is refuted.
    """
    settings = load_config(config, changes or [])
    with proving("audit", trials) as progress:
        verdict = auditing.audit(
            settings,
            trials=trials,
            minutes=minutes,
            confidence=confidence,
            workers=workers or cores(),
            facts=facts_leave(settings),
            progress=progress,
        )
    if as_json:
        echo_json(verdict.to_dict())
    else:
        out_console.print(privacy_tables.audit(verdict), highlight=False)
    if verdict.caught:
        raise typer.Exit(1)
