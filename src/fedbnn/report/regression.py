"""What a page says of regression: its sentences, and the sections that classification does not have."""

from fedbnn.report.charts.pit import coverage_curve, pit_histogram
from fedbnn.report.figures import UNITS, counted, share, show
from fedbnn.report.load import Study
from fedbnn.report.schema import RegressionResult
from fedbnn.report.sections import (
    Section,
    clients_by_architecture,
    learning,
    panel_a_method,
    which_model,
    width_of,
)
from fedbnn.report.variants import subject

READING = "Coverage: nearest to 90 % is best; width tells only beside it{detection}; all else: lower is better."
FINE = (
    "NLL: negative log-likelihood in nats. CRPS: continuous ranked probability score, in the target's unit. Coverage "
    "and width: of the central 90 % of what is predicted."
)


def lead(result: RegressionResult) -> str:
    return (
        f"After {counted(result.rounds, 'round')} {subject(result.scored)} is off by "
        f"{show(result.mae, UNITS['target'])} on average, and {show(result.coverage_90, share)} of the {result.split} "
        "records lie within the central 90% of what it predicts."
    )


def sections(study: Study) -> list[Section]:
    return [
        learning(study, ("rmse", "crps", "nll", "coverage_90")),
        clients_by_architecture(study, "crps"),
        _coverage(study),
    ]


def _coverage(study: Study) -> Section:
    width = width_of(study)
    reading = (
        "First: how many targets lie within central intervals of what is predicted, against how many should; "
        "below the diagonal intervals are too narrow. Second: where in its predicted distribution each target "
        "lies; bars are of one height if distributions are right, highest in the middle if they are too wide, and at "
        "the ends if they are too narrow. Predictions of all clients are pooled."
    )
    panels = panel_a_method(
        study,
        lambda group, look: [
            coverage_curve(group.pit, group.method, look, width),
            pit_histogram(group.pit, group.method, width),
        ],
    )
    return Section("coverage", "Do intervals hold what they claim?", reading + which_model(study), panels)
