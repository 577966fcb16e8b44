"""The command `fedbnn predict`: what a site's own model says of new records."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedbnn.cli.terminal import Json, out_console
from fedbnn.deployment import predict as predicting
from fedbnn.deployment.predict import UNCERTAINTIES, SitePrediction

SHOWN = 10  # records that are printed


def predict(
    state: Annotated[Path, typer.Option("--state", help="The site's state folder, as its site.toml names it.")],
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            help="New records: an .npz with an array x, or a .csv with a header row; values as in the site's files.",
        ),
    ],
    run: Annotated[str | None, typer.Option(help="Key of the run, where the site has several.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all predictions to this .csv, .json or .npz file.")] = None,
    variant: Annotated[
        str | None,
        typer.Option(help="Which model: personal, global or fine_tuned; default: the one the method is judged by."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict at a site: class probabilities, and uncertainty with its epistemic and aleatoric parts (nats).

    Nothing leaves the site: the model and the state are read where they are.
    """
    if out is not None:
        predicting.check_out(out)
    found = predicting.predict(state, source, run, variant)
    if out is not None:
        predicting.write(found, out)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    out_console.print(_table(found))
    count = len(found.labels)
    if out is not None:
        out_console.print(f"All {count}: {escape(str(out.resolve()))}", soft_wrap=True, highlight=False)
    elif count > SHOWN:
        out_console.print(f"{count - SHOWN} more; --out FILE.csv writes all of them, with every class", highlight=False)


def _table(found: SitePrediction) -> Table:
    caption = f"{found.method} at {found.site}, run {found.run}; uncertainty in nats"
    table = Table(caption=escape(caption), caption_justify="left", box=None, pad_edge=False)
    table.add_column("record", justify="right")
    table.add_column("class", style="bold")
    for title in ("probability", *UNCERTAINTIES):
        table.add_column(title, justify="right")
    for number, record in enumerate(found.to_dict()["records"][:SHOWN]):
        sides = [f"{record[kind]:.3f}" for kind in UNCERTAINTIES]
        table.add_row(str(number), escape(record["class"]), f"{max(record['probabilities'].values()):.3f}", *sides)
    return table
