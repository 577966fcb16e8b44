"""The table with one row a client."""

from fedbnn.report.figures import MISSING, duration, plain, share, show, size
from fedbnn.report.schema import Result

COLUMNS = (
    "Client",
    "Model",
    "Weights",
    "Records",
    "Classes",
    "Own-class accuracy",
    "All-class accuracy",
    "NLL",
    "Brier",
    "ECE",
    "MCE",
    "Sent a round",
    "Received a round",
    "Time",
)
TEXT_COLUMNS = ("Client", "Model", "Classes")


def client_rows(result: Result) -> list[list[str]]:
    of = result.per_client
    return [
        [
            of.name[i],
            of.model[i],
            f"{of.weights[i]:,}",
            f"{of.records[i]:,}",
            _classes(of.classes[i], result.class_names),
            show(of.own_class_accuracy[i], share),
            show(of.all_class_accuracy[i], share),
            show(of.nll[i], plain),
            show(of.brier[i], plain),
            show(of.ece[i], plain),
            show(of.mce[i], plain),
            show(of.bytes_up[i], size),
            show(of.bytes_down[i], size),
            show(of.seconds[i], duration),
        ]
        for i in range(len(of.name))
    ]


def _classes(held: list[int], names: list[str]) -> str:
    if len(names) > 1 and set(held) == set(range(len(names))):
        return f"all {len(names)}"
    return ", ".join(names[c] if 0 <= c < len(names) else str(c) for c in held) or MISSING
