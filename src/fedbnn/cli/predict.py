"""The command `fedbnn predict`: what a site's own model says of new records."""

from pathlib import Path
from typing import Annotated

import typer

from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import Json, echo_json, out_console, say
from fedbnn.deployment import predict as predicting
from fedbnn.deployment.predict import UNCERTAINTIES, SitePrediction
from fedbnn.report.table import Table, row, table

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
    prediction = predicting.predict(state, source, run, variant)
    if out is not None:
        predicting.write(prediction, out)
    if as_json:
        echo_json(prediction.to_dict())
        return
    out_console.print(Printed(_table(prediction)))
    count = len(prediction.labels)
    if out is not None:
        say(f"All {count}: {out.resolve()}")
    elif count > SHOWN:
        say(f"{count - SHOWN} more; --out FILE.csv writes all of them, with every class")


def _table(prediction: SitePrediction) -> Table:
    rows = []
    for number, record in enumerate(prediction.to_dict()["records"][:SHOWN]):
        sides = [f"{record[kind]:.3f}" for kind in UNCERTAINTIES]
        rows.append(row(str(number), record["class"], f"{max(record['probabilities'].values()):.3f}", *sides))
    caption = f"{prediction.method} at {prediction.site}, run {prediction.run}; uncertainty in nats"
    return table(["record", "class", "probability", *UNCERTAINTIES], rows, caption, words=2)
