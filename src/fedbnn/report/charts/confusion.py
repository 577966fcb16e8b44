"""Confusion matrix: a square a pair of classes, as dark as the share of the true class that it holds."""

from collections.abc import Sequence

from markupsafe import Markup

from fedbnn.federation.metrics import Confusion
from fedbnn.report.svg import Drawing, printable

WIDTH = 440.0
TOP = 12.0
LEGIBLE = 24.0
"""Squares of at least this size have their share written in them."""
LONGEST = 12


def confusion_matrix(matrix: Confusion, class_names: Sequence[str], method: str) -> Markup:
    counts, classes = matrix.counts, len(matrix.counts)
    reach = 8 + 7 * max(len(_short(name)) for name in class_names)  # of the longest name
    left = reach + 12.0
    size = (WIDTH - left - 14) / classes
    wrong = int(counts.sum() - counts.trace())
    label = f"Confusion of {method}: {wrong:,} of {int(counts.sum()):,} predictions are of another class."
    drawing = Drawing(WIDTH, TOP + size * classes + 0.72 * reach + 44, label)
    bottom = TOP + size * classes
    every = max(1, round(12 / size + 0.49))  # names that do not overlap
    for i, name in enumerate(class_names):
        if i % every == 0:
            drawing.words(left - 6, TOP + size * (i + 0.5) + 4, _short(name), "tick", "end")
            x, y = left + size * (i + 0.5) + 3, bottom + 14
            turned = f"rotate(-45 {x:.2f} {y:.2f})"
            text = drawing.shape("text", "tick", x=x, y=y, text_anchor="end", transform=turned)
            text.text = printable(_short(name))
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            held = count / row.sum() if row.sum() else 0.0
            x, y = left + size * j, TOP + size * i
            tip = f"{class_names[i]} taken for {class_names[j]}: {count:,} of {int(row.sum()):,} ({held:.1%})"
            drawing.bar(x, y, size - 1, size - 1, "empty", tip=tip)
            if count:
                cell = drawing.shape(
                    "rect", "right" if i == j else "wrong", tip, x=x, y=y, width=size - 1, height=size - 1
                )
                cell.set("fill-opacity", f"{0.12 + 0.68 * held:.2f}")
                if size >= LEGIBLE:
                    drawing.words(x + size / 2, y + size / 2 + 4, f"{held * 100:.0f}", "share halo", "middle")
    drawing.words(left + size * classes / 2, bottom + 0.72 * reach + 34, "predicted class", "label", "middle")
    return drawing.markup()


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
