"""The command `fedbnn predict`: what a site's own model says of new records."""

from pathlib import Path
from typing import Annotated

import typer

from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import Json, echo_json, out_console, say
from fedbnn.deployment import predict as predicting
from fedbnn.deployment.predict import UNCERTAINTIES, Asked, SitePrediction
from fedbnn.report.table import Table, row, table

SHOWN = 10  # records that are printed
PRIORS: dict[Asked, str] = {
    "variant": "as the model takes it",
    "own": "the site's own class shares",
    "uniform": "every class equally likely",
    "estimate": "estimated from these records",
    "given": "as given",
}


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
        typer.Option(
            help="Which model: personal, general, global, global_own_prior or fine_tuned, as far as the method has "
            "it; default: the one it is judged by."
        ),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            help="How likely each class is before its record is seen: own (as among the site's records), uniform, "
            "estimate (as fits the given records best; wants some tens of them), a share for each class in their "
            "order (0.9,0.1) or by name (sick=0.1,well=0.9; others: 0). Default: as the model of --variant takes it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict at a site: class probabilities, and uncertainty with its epistemic and aleatoric parts (nats).

    Nothing leaves the site: the model and the state are read where they are.
    """
    if out is not None:
        predicting.check_out(out)
    prediction = predicting.predict(state, source, run, variant, prior)
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
        sides = [*(f"{record[kind]:.3f}" for kind in UNCERTAINTIES), f"{record['novelty']:.2f}"]
        rows.append(row(str(number), record["class"], f"{max(record['probabilities'].values()):.3f}", *sides))
    caption = (
        f"{prediction.method} at {prediction.site}, run {prediction.run}; uncertainty in nats; "
        f"label prior: {PRIORS[prediction.asked]}; novelty above 1: unlike anything in the alignment set"
    )
    return table(["record", "class", "probability", *UNCERTAINTIES, "novelty"], rows, caption, words=2)
