"""Sections of the page, and those that runs of classification and of regression have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fedbnn.federation.evaluation import MEASURES
from fedbnn.report import variants
from fedbnn.report.axes import span
from fedbnn.report.charts.clients import architectures, client_scores
from fedbnn.report.charts.curves import learning_curves
from fedbnn.report.load import Group, Study
from fedbnn.report.series import Series
from fedbnn.report.ticks import nice_ticks

WIDE, NARROW = 440.0, 330.0
"""Widths of a chart that has half the page and of one among small multiples."""


@dataclass(frozen=True)
class Panel:
    """A caption over one chart, or over several that belong together."""

    caption: str
    charts: list[Markup]
    look: Series | None = None


@dataclass(frozen=True)
class Section:
    """A heading, one sentence on how to read the charts, and the charts."""

    anchor: str
    title: str
    reading: str
    panels: list[Panel]
    legend: list[tuple[str, Markup]] = field(default_factory=list)


def learning(study: Study, scores: Sequence[str]) -> Section:
    """How these scores went on over the rounds."""
    panels = []
    for name in scores:
        measure = MEASURES[name]
        told = "" if measure.higher_is_better or measure.aim is not None else " (lower is better)"
        caption = f"{measure.heading}{told}"
        panels.append(Panel(caption, [learning_curves(study.groups, name, caption, measure.unit == "share")]))
    reading = (
        "Each line follows the mean over clients from round 0, the warm-up before the first exchange, to the "
        "last round; vertical axes need not begin at zero."
    )
    if any(len(group.runs) > 1 for group in study.groups):
        reading += " Lines are means over seeds, bands run from the least to the greatest seed."
    legend = [(label_of(group), Series(i).swatch()) for i, group in enumerate(study.groups)]
    legend = legend if len(legend) > 1 else []
    return Section("curves", "Learning curves", reading + which_model(study), panels, legend)


def clients_by_architecture(study: Study, score: str) -> Section:
    """One score of every client."""
    rows = architectures(study.groups)
    values = [v for run in study.runs for v in getattr(run.result.per_client, score)]
    share = MEASURES[score].unit == "share"
    ticks = nice_ticks(*(span(values, 0.1, 0.0, 1.0) if share else span(values, 1e-3)), 5)
    width = width_of(study)
    reading = "Each mark is one client, in the row of its architecture; the upright line is the row's mean."
    panels = panel_a_method(study, lambda group, look: [client_scores(group, look, rows, ticks, width, score)])
    return Section("architectures", "Clients by architecture", reading + which_model(study), panels)


def which_model(study: Study) -> str:
    """A sentence that ends the reading of a section of charts, where it could be in doubt what they are of."""
    words = variants.shown([group.variants for group in study.groups])
    return f" {words}" if words else ""


def label_of(group: Group) -> str:
    return variants.label(group.method, group.variants)


def panel_a_method(study: Study, draw: Callable[[Group, Series], list[Markup]]) -> list[Panel]:
    """A panel a method, which is named over it where there are several."""
    looks = [(group, Series(index)) for index, group in enumerate(study.groups)]
    if len(looks) == 1:
        return [Panel("", draw(*looks[0]))]
    return [Panel(label_of(group), draw(group, look), look) for group, look in looks]


def width_of(study: Study) -> float:
    """Three panels or more stand in three columns, fewer in two."""
    return NARROW if len(study.groups) > 2 else WIDE
