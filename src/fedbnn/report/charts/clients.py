"""A score of every client, one row an architecture and one dot a client."""

import math

from markupsafe import Markup

from fedbnn.federation.evaluation import MEASURES
from fedbnn.report.axes import Box, horizontal
from fedbnn.report.figures import MISSING, UNITS, Unit, counted, show
from fedbnn.report.load import Group
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing, Scale

LABEL = 18.0
ROW, ROW_ON_WIDE = 62.0, 76.0


def architectures(groups: tuple[Group, ...]) -> list[str]:
    """All architectures in their order of appearance, so that every panel has the same rows."""
    names = (name for group in groups for result in group.results for name in result.per_client.model)
    return list(dict.fromkeys(names))


def client_scores(group: Group, look: Series, rows: list[str], ticks: list[float], width: float, score: str) -> Markup:
    """One score of a method's clients on an axis that all panels share."""
    measure = MEASURES[score]
    unit = UNITS[measure.unit]
    high = ROW_ON_WIDE if width >= 400 else ROW
    drawing = Drawing(width, len(rows) * high + 48, "")
    box = Box(14, 4, width - 20, len(rows) * high + 4)
    x = horizontal(drawing, box, ticks, measure.title, percent=measure.unit == "share", grid=True)
    summary = []
    for row, architecture in enumerate(rows):
        top = box.top + row * high
        dots = [
            (value, name)
            for result in group.results
            for name, model, value in zip(
                result.per_client.name,
                result.per_client.model,
                getattr(result.per_client, score),
                strict=True,
            )
            if model == architecture and math.isfinite(value)
        ]
        mean = math.fsum(value for value, _ in dots) / len(dots) if dots else math.nan
        who = counted(len(dots), "client") if len(group.runs) == 1 else counted(len(dots), "result")
        text = f"{who}, mean {show(mean, unit)}" if dots else MISSING
        summary.append(f"{architecture}: {text}")
        if row:
            drawing.line(box.left, top, box.right, top, "rule")
        drawing.words(box.left, top + 14, _shortened(architecture, width), "name halo")
        drawing.words(box.right, top + 14, text, "tick halo", "end")
        _row(drawing, dots, x, (top + LABEL, top + high), look, unit)
        if dots:
            drawing.line(x(mean), top + LABEL + 4, x(mean), top + high - 4, "mean")
    drawing.name(f"{measure.heading} of the clients of {group.method}. {'; '.join(summary)}.")
    return drawing.markup()


def _row(
    drawing: Drawing, dots: list[tuple[float, str]], x: Scale, lane: tuple[float, float], look: Series, unit: Unit
) -> None:
    radius = 3.8 if len(dots) <= 60 else 2.5
    top, bottom = lane
    middle, reach = (top + bottom) / 2, (bottom - top) / 2 - radius - 2
    placed: list[tuple[float, float]] = []
    for value, name in sorted(dots):
        at = x(value)
        offset = _free(at, placed, 1.9 * radius, reach)
        placed.append((at, offset))
        drawing.marker(
            look.marker,
            at,
            middle + offset,
            radius * 0.9,
            look.mark("spot"),
            tip=f"{name}: {show(value, unit)}",
        )


def _free(at: float, placed: list[tuple[float, float]], apart: float, reach: float) -> float:
    """The least offset from the middle at which a dot touches no earlier one, or else the middle."""
    near = [(px, py) for px, py in placed[-200:] if at - px < apart]
    for level in range(int(2 * reach / apart) * 2 + 1):
        offset = (level + 1) // 2 * apart * (1 if level % 2 else -1)
        if abs(offset) <= reach and all(math.hypot(at - px, offset - py) >= apart * 0.98 for px, py in near):
            return offset
    return 0.0


def _shortened(name: str, width: float) -> str:
    """A user's own "package.module:factory" goes by its factory; what is still too long is cut."""
    short, room = name.rsplit(":", 1)[-1], int(width / 17)
    return short if len(short) <= room else f"{short[: room - 1]}…"
