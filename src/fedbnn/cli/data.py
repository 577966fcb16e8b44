"""The commands of `fedbnn data`: parse, call one function, print."""

from pathlib import Path
from typing import Annotated

import typer

from fedbnn.base.errors import UserError
from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import ConfigFile, Json, Set, echo_json, out_console, say
from fedbnn.data.check import check_data
from fedbnn.deployment.site_check import check_site
from fedbnn.privacy import Budget
from fedbnn.privacy.chain import write_durably
from fedbnn.report import check_tables
from fedbnn.report.check_page import check_out, write_check
from fedbnn.runs import made_up
from fedbnn.runs.config import load_config

app = typer.Typer(no_args_is_help=True, help="Look at records before anything runs.")


@app.callback()
def _main() -> None:
    pass


@app.command()
def check(
    config: ConfigFile = None,
    site: Annotated[
        Path | None, typer.Option(help="A site's own site.toml instead: its records, at the site, offline.")
    ] = None,
    changes: Set = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with pictures to this .html file.")] = None,
    as_json: Json = False,
) -> None:
    """Show what each client would hold: records, classes, missing values, duplicates, columns that name people.

    It tells of private records, and is for those who may see them. CONFIG as in `run`.
    """
    if site is not None and (config is not None or changes):
        raise UserError("--site is a site's own file: leave CONFIG and --set out")
    if out is not None:
        check_out(out)
    if site is not None:
        found = check_site(site)
    else:
        settings = load_config(config, changes or [])
        found = check_data(settings.data, settings.partition, settings.seed)
    if out is not None:
        write_check(found, out)
    if as_json:
        echo_json(found.to_dict())
        return
    out_console.print(Printed(check_tables.clients(found)))
    if found.columns:
        out_console.print()
        out_console.print(Printed(check_tables.columns(found)))
    for note in found.notes:
        say(f"note: {note}")
    if out is not None:
        say(f"Page: {out.resolve()}")


@app.command()
def alignment(
    out: Annotated[Path, typer.Option(help="The .csv file to write: public from then on.")],
    config: ConfigFile = None,
    epsilon: Annotated[float, typer.Option(help="What it may cost a record of any client.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability that is exempt; far below 1 / records.")] = 1e-5,
    points: Annotated[int, typer.Option(min=1, help="How many records to make up.")] = 400,
    ledgers: Annotated[
        Path | None, typer.Option(help="Folder of the clients' ledgers, to be kept; default: OUT.ledgers.")
    ] = None,
    changes: Set = None,
) -> None:
    """Make up a public table from noisy sums over all clients' records, where there is no public one.

    Every column must be declared with its range or values (data.columns). The run then says data.alignment_source =
    "OUT". What it cost is in the ledgers: `fedbnn privacy spent FOLDER`.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out {out}: its name must end in .csv")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    settings = load_config(config, changes or [])
    folder = ledgers or out.with_suffix(".ledgers")
    copula, codes = made_up.made_up(settings, Budget(epsilon, delta), folder)
    made = made_up.written(codes, copula.sample(points, settings.seed), settings.data.layout)
    write_durably(out, made.encode("utf-8"))
    say(f"{points} made-up records: {out.resolve()} (epsilon {epsilon:g} at delta {delta:g} for each client's records)")
    say(f"Ledgers, to be kept as long as the records are: {folder.resolve()}")
