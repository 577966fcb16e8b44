"""The command `fedbnn predict`: what a model says of new records, a site's own or that of a client in a run folder."""

from pathlib import Path
from typing import Annotated, cast

import typer

from fedbnn.base.errors import UserError
from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import Json, echo_json, out_console, say
from fedbnn.deployment import predict as predicting
from fedbnn.deployment.estimated import SPREADS, SiteEstimate
from fedbnn.deployment.loaded import load
from fedbnn.deployment.predict import UNCERTAINTIES, Asked, SiteAnswer, SitePrediction
from fedbnn.federation.calibrated import Wish
from fedbnn.models.abstention import CONFIDENCE
from fedbnn.models.conformal import Score
from fedbnn.report.table import Table, row, table

SHOWN = 10  # records that are printed
ABSTAINS = "-"
PRIORS: dict[Asked, str] = {
    "variant": "as the model takes it",
    "own": "the site's own class shares",
    "uniform": "every class equally likely",
    "estimate": "estimated from these records",
    "given": "as given",
}


def predict(
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            help="New records: an .npz with an array x, or a .csv with a header row; values as in the run's own files.",
        ),
    ],
    folder: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run folder.")] = None,
    client: Annotated[str | None, typer.Option(help="Name of a client of the run folder.")] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Instead: a site's state folder, as its site.toml names it.")
    ] = None,
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
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Give every record a set of classes that misses the true one at most this often, e.g. 0.1; in "
            "regression an interval."
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option("--abstain-risk", help="Abstain, so that answers are wrong at most this often, e.g. 0.05."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability with which --abstain-risk holds, over the records for calibration.")
    ] = CONFIDENCE,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Let --alpha hold for the records of every class by itself.")
    ] = False,
    score: Annotated[str, typer.Option(help="How sets are made: aps (never empty) or lac (small on average).")] = "aps",
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Labelled records that no training saw: an .npz with x and y, or a .csv with the target column. "
            "Default: those that data.calibration kept back."
        ),
    ] = None,
    own_code: Annotated[
        bool, typer.Option("--own-code", help="Import methods and models that the run folder names; only if trusted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict: class probabilities, and uncertainty with its epistemic and aleatoric parts (nats).

    In regression: a mean, its standard deviation with the same parts, and intervals.

    Of a client of a run folder (RUN --client NAME) or at a site (--state DIR), from which nothing leaves: the model and
    the state are read where they are. Sets (--alpha) and abstention (--abstain-risk) hold for new records that are
    like those for calibration.
    """
    if out is not None:
        predicting.check_out(out)
    wish = Wish(alpha, risk, cast(Score, score), "class" if by_class else "client", confidence)
    if folder is not None and state is None and client is not None and run is None:
        loaded = load(folder, own_code=own_code)
        prediction: SiteAnswer = loaded.predict_file(
            client, source, variant=variant, prior=prior, wish=wish, calibration=calibration
        )
    elif state is not None and folder is None and client is None:
        prediction = predicting.predict(state, source, run, variant, prior, wish, calibration)
    else:
        raise UserError("whose model? Give a run folder and --client NAME, or a site's --state folder (with --run)")
    if out is not None:
        predicting.write(prediction, out)
    if as_json:
        echo_json(prediction.to_dict())
        return
    shown = _estimates(prediction) if isinstance(prediction, SiteEstimate) else _table(prediction)
    out_console.print(Printed(shown))
    for promised in prediction.promises:
        say(promised)
    count = len(prediction.novelty)
    if out is not None:
        say(f"All {count}: {out.resolve()}")
    elif count > SHOWN:
        say(f"{count - SHOWN} more; --out FILE.csv writes all of them{_in_full(prediction)}")


def _in_full(prediction: SiteAnswer) -> str:
    return "" if isinstance(prediction, SiteEstimate) else ", with every class"


def _estimates(prediction: SiteEstimate) -> Table:
    rows = []
    promised = prediction.promised is not None
    for number, record in enumerate(prediction.to_dict()["records"][:SHOWN]):
        intervals = [_interval(record["low"], record["high"])]
        if promised:
            intervals.append(_interval(record["promised_low"], record["promised_high"]))
        numbers = [_number(record[name]) for name in ("mean", *SPREADS)]
        rows.append(row(str(number), ", ".join(record["flags"]), *numbers, *intervals, _novelty(record["novelty"])))
    caption = (
        f"{prediction.method} at {prediction.site}, run {prediction.run}; sd and its parts in the target's unit; "
        "novelty above 1: foreign, unlike anything in the alignment set"
    )
    titles = ["record", "flags", "mean", *SPREADS, "central 90 %", *(["promised"] if promised else []), "novelty"]
    return table(titles, rows, caption, words=2)


def _interval(low: float | None, high: float | None) -> str:
    return "any number" if low is None or high is None else f"{_number(low)} .. {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _table(prediction: SitePrediction) -> Table:
    asked = prediction.sets is not None
    rows = []
    for number, record in enumerate(prediction.to_dict()["records"][:SHOWN]):
        sides = [*(f"{record[kind]:.3f}" for kind in UNCERTAINTIES), _novelty(record["novelty"])]
        answer = ABSTAINS if record.get("abstain") else record["class"]
        words = [answer, *([" ".join(record["set"])] if asked else []), ", ".join(record["flags"])]
        rows.append(row(str(number), *words, f"{max(record['probabilities'].values()):.3f}", *sides))
    caption = (
        f"{prediction.method} at {prediction.site}, run {prediction.run}; uncertainty in nats; "
        f"label prior: {PRIORS[prediction.asked]}; novelty above 1: foreign, unlike anything in the alignment set"
        f"{'' if prediction.abstains is None else f'; {ABSTAINS}: the model abstains'}"
    )
    titles = ["record", "class", *(["set"] if asked else []), "flags", "probability", *UNCERTAINTIES, "novelty"]
    return table(titles, rows, caption, words=4 if asked else 3)


def _novelty(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
