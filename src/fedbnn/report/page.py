"""The page as data for the template: title, headline numbers, sections of charts, tables."""

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fedbnn.federation.evaluation import DETECTION
from fedbnn.report import headline, privacy, regression, settings, variants
from fedbnn.report.charts.confusion import confusion_matrix
from fedbnn.report.charts.reliability import reliability_diagram
from fedbnn.report.charts.selective import selective_curves
from fedbnn.report.charts.traffic import traffic_bars
from fedbnn.report.charts.uncertainty import shares, uncertainty_mirror
from fedbnn.report.classes import class_table
from fedbnn.report.clients import clients
from fedbnn.report.confidence import overconfidence
from fedbnn.report.figures import counted, listed, share, show
from fedbnn.report.load import Group, Study
from fedbnn.report.schema import AnyResult, RegressionResult, Result
from fedbnn.report.sections import (
    Panel,
    Section,
    clients_by_architecture,
    label_of,
    learning,
    panel_a_method,
    which_model,
    width_of,
)
from fedbnn.report.series import Series
from fedbnn.report.svg import printable
from fedbnn.report.table import Table
from fedbnn.report.traffic import traffic_of, traffic_table

READING = "Accuracy{detection}: higher is better; all else: lower is better."
FINE = (
    "NLL: negative log-likelihood in nats. ECE and MCE: mean and greatest gap of confidence and accuracy, predictions "
    "of all clients pooled."
)

MOST_COLUMNS = 6
"""Settings of more methods than this are told in words: a column a method would not fit the page."""


@cache  # to compile the templates takes longer than to fill them in
def environment(*packages: str) -> Environment:
    """Templates of these packages, in which everything is escaped that is not markup of ours."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in packages]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(study: Study) -> str:
    """The whole page as HTML."""
    return environment("fedbnn.report").get_template("page.html.j2").render(_context(study))


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(study: Study) -> dict[str, Any]:
    first = study.runs[0].result
    traffic = [traffic_of(group) for group in study.groups]
    return {
        "study": study,
        "title": title(study),
        "version": first.fedbnn_version,
        "facts": facts(study),
        "notes": [*notes(study), *_unscored(study), *([] if study.regression else _overconfident(study))],
        "lead": "" if study.comparison else lead(first),
        "reading": _reading(study),
        "fine": regression.FINE if study.regression else FINE,
        **(_results(study) if study.comparison else _run(study.groups[0])),
        "seeds": sorted({len(group.runs) for group in study.groups}),
        "sections": regression.sections(study) if study.regression else _sections(study),
        "classes": None if study.regression else _classes(study),
        "protected": privacy.all_protected([(group.method, group.guarantee) for group in study.groups]),
        "traffic_chart": traffic_bars(traffic),
        "traffic": traffic_table(traffic) if study.comparison else traffic[0].in_words(),
        "shared": settings.shared(study),
        "differing": settings.differing_table(study),
        "differing_in_words": settings.differing_in_words(study) if len(study.groups) > MOST_COLUMNS else [],
        "clients": clients,
        "label": label_of,
        "shown": which_model(study).strip(),
        "counted": counted,
    }


def _reading(study: Study) -> str:
    """Which way each score is better."""
    asked = DETECTION[0] in headline.scores(study.groups)
    if study.regression:
        return regression.READING.format(detection="; AUROC: higher is better" if asked else "")
    return READING.format(detection=" and AUROC" if asked else "")


def _sections(study: Study) -> list[Section]:
    """Those of classification."""
    return [
        learning(study, ("own_class_accuracy", "all_class_accuracy", "nll", "ece")),
        clients_by_architecture(study, "own_class_accuracy"),
        _reliability(study),
        *_selective(study),
        *_confusion(study),
        _uncertainty(study),
    ]


def _run(group: Group) -> dict[str, Any]:
    """The headline of one run."""
    sends = any(result.bytes_up_per_client_round != 0 for result in group.results)
    return {
        "cards": headline.cards(group),
        "scored": variants.explained(group.variants) if variants.named(group.variants) else "",
        "models": headline.models(group),
        "privacy": "" if privacy.protected(group.guarantee) else privacy.in_words(group.guarantee, sends),
    }


def _results(study: Study) -> dict[str, Any]:
    """The headline of a comparison."""
    held = list(dict.fromkeys(variant for group in study.groups for variant in group.variants))
    return {
        "results": headline.comparison(study.groups),
        "scored": variants.explained(held),
        "privacy": privacy.explained(
            [(group.method, group.guarantee) for group in study.groups],
            any(len(group.runs) > 1 for group in study.groups),
        ),
    }


def title(study: Study) -> str:
    datasets = listed(list(dict.fromkeys(run.result.dataset for run in study.runs)))
    methods = [group.method for group in study.groups]
    what = listed(methods) if len(methods) <= 3 else f"{len(methods)} methods compared"
    return f"{what} on {datasets}"


def facts(study: Study) -> list[str]:
    """What was run, in a few words each; what is not the same in all runs is left to `notes`."""
    results = [run.result for run in study.runs]
    first = results[0]
    texts = [
        ("clients", counted(first.clients, "client")),
        ("rounds", counted(first.rounds, "round")),
        ("alignment_points", counted(first.alignment_points, "alignment point")),
        ("split", f"scored on the {first.split} split"),
    ]
    common = [text for name, text in texts if len({getattr(result, name) for result in results}) == 1]
    seeds = sorted({result.seed for result in results})
    return [*common, f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"]


def notes(study: Study) -> list[str]:
    """What a reader has to know: who lied, failed or was set aside, and in which respects runs are not alike."""
    differences = []
    for group in study.groups:
        where = f" ({label_of(group)})" if study.comparison else ""
        if liars := max((result.attackers for result in group.results), key=len):
            differences.append(f"An attack was simulated{where}: {listed(liars)} lied. Scores are those of the others.")
        if aside := list(dict.fromkeys(name for result in group.results for name in result.set_aside)):
            differences.append(f"Set aside{where}, as replies were refused several times in a row: {listed(aside)}.")
        if dropped := sum(result.dropped for result in group.results):
            differences.append(f"Rounds went on without some replies{where}, late, lost or refused: {dropped} in all.")
    names = {
        "dataset": "data set",
        "clients": "number of clients",
        "rounds": "number of rounds",
        "alignment_points": "number of alignment points",
        "split": "split that is scored",
    }
    for name, words in names.items():
        by_value: dict[Any, list[str]] = {}
        for group in study.groups:
            for result in group.results:
                by_value.setdefault(getattr(result, name), []).append(group.method)
        if len(by_value) > 1:
            parts = [f"{value} ({', '.join(dict.fromkeys(of))})" for value, of in by_value.items()]
            differences.append(f"The runs differ in the {words}: {'; '.join(parts)}.")
    if len({tuple(sorted(result.seed for result in group.results)) for group in study.groups}) > 1:
        differences.append("The methods were not run with the same seeds.")
    return differences


def lead(result: AnyResult) -> str:
    """What a run found, in a sentence."""
    if isinstance(result, RegressionResult):
        return regression.lead(result)
    assert isinstance(result, Result)
    right = f"{show(result.own_class_accuracy, share)} of the {result.split} records"
    begun = f"After {counted(result.rounds, 'round')} {variants.subject(result.scored)} is right on"
    if result.everyone_holds_all:
        return f"{begun} {right} that are the client's concern; every client holds records of all classes."
    everything = show(result.all_class_accuracy, share)
    return f"{begun} {right} from classes the client holds, and on {everything} of those from all classes."


def _unscored(study: Study) -> list[str]:
    """Who is in no mean over clients, and why."""
    names = dict.fromkeys(of.name[at] for of in (run.result.per_client for run in study.runs) for at in of.unscored)
    if not names:
        return []
    return [
        f"{listed(list(names))}: unscored, for want of {study.runs[0].result.split} records of their own. They take "
        "part in every exchange; means over clients are over those that are scored."
    ]


def _overconfident(study: Study) -> list[str]:
    """A sentence on each method whose model claims more than it keeps."""
    return [
        words
        for group in study.groups
        if (words := overconfidence(group.reliability, label_of(group) if study.comparison else "The model"))
    ]


def _reliability(study: Study) -> Section:
    width = width_of(study)
    reading = (
        "Bars show how often predictions of a given confidence are right, orange ticks the confidence they "
        "claimed: a tick above its bar is overconfidence, one below underconfidence. The strip counts predictions. "
        "Own-class predictions of all clients are pooled, as they are for ECE and MCE above."
    )
    panels = panel_a_method(study, lambda group, _: [reliability_diagram(group.reliability, group.method, width)])
    return Section("reliability", "Reliability", reading + which_model(study), panels)


def _selective(study: Study) -> list[Section]:
    """Nothing where no run has counted it."""
    curves = [
        (label_of(group), Series(at), of) for at, group in enumerate(study.groups) if (of := group.ranked) is not None
    ]
    if not curves:
        return []
    reading = (
        "How often the model is right where it answers only the records that it is most certain of, by its largest "
        "class probability: each client answers the same share of its own. A model that knows what it does not know "
        "falls to the right. Own-class predictions of all clients are pooled."
    )
    legend = [(name, look.swatch()) for name, look, _ in curves] if len(study.groups) > 1 else []
    panel = Panel("", [selective_curves(curves)])
    return [Section("selective", "Accuracy where it is certain", reading + which_model(study), [panel], legend)]


def _confusion(study: Study) -> list[Section]:
    """Of a run; a comparison has no room for as many matrices."""
    group = study.groups[0]
    if study.comparison or (matrix := group.confusion) is None:
        return []
    reading = (
        "Rows are true classes, columns predicted ones; a square holds the percentage of its row. Own-class "
        "predictions of all clients are pooled."
    )
    chart = confusion_matrix(matrix, group.classified[0].class_names, group.method)
    return [Section("confusion", "Which class is taken for which", reading + which_model(study), [Panel("", [chart])])]


def _classes(study: Study) -> Table | None:
    group = study.groups[0]
    matrix = None if study.comparison else group.confusion
    return None if matrix is None else class_table(matrix, group.classified[0].class_names)


def _uncertainty(study: Study) -> Section:
    width = width_of(study)
    reading = (
        "Right predictions point up and wrong ones down, each as shares of their own kind: a model that knows "
        "what it does not know has its wrong predictions further to the right. AUROC is the chance that a wrong "
        "prediction is more uncertain than a right one of the same client, by its exact value; 0.5 is no better than "
        "a coin. Epistemic uncertainty is the part that more data could remove."
    )
    kinds = {
        "Total": [group.total_uncertainty for group in study.groups],
        "Epistemic": [group.epistemic_uncertainty for group in study.groups],
    }
    most = {kind: max(float(part.max()) for one in of for part in shares(one)) for kind, of in kinds.items()}
    charts = [
        [uncertainty_mirror(of[i], kind, group.method, most[kind], width) for kind, of in kinds.items()]
        for i, group in enumerate(study.groups)
    ]
    panels = (
        panel_a_method(study, lambda _, look: charts[look.index])
        if len(study.groups) > 1
        else [Panel(kind, [chart]) for kind, chart in zip(kinds, charts[0], strict=True)]
    )
    return Section("uncertainty", "Uncertainty of right and wrong predictions", reading + which_model(study), panels)
