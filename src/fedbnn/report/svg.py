"""A small SVG writer: a drawing, a linear scale, and marks. Colours and fonts come from the page's style sheet."""

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_ARM = [(-1.2, -0.4), (-0.4, -0.4), (-0.4, -1.2)]  # a quarter of the cross; each next one is turned by a right angle
_OUTLINES = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
    "diamond": [(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    "cross": [*_ARM, *((-y, x) for x, y in _ARM), *((-x, -y) for x, y in _ARM), *((y, -x) for x, y in _ARM)],
    "down": [(0.0, 1.2), (1.15, -0.9), (-1.15, -0.9)],
}
MARKERS = ("circle", *_OUTLINES)


@dataclass(frozen=True)
class Scale:
    """Linear map from the values low..high to the positions start..end (which may run backwards)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class Drawing:
    """An <svg> that scales with its place on the page and has an accessible name."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height = width, height
        self.root = Element("svg", {"viewBox": f"0 0 {_number(width)} {_number(height)}"})
        self.root.set("role", "img")
        self.name(label)

    def name(self, label: str) -> None:
        """Sets the accessible name, for what is known only once the chart is drawn."""
        self.root.set("aria-label", printable(label))

    def shape(self, tag: str, style: str, tip: str = "", **attributes: float | str) -> Element:
        """A shape of the CSS class `style`; `tip` shows when the pointer rests on it."""
        element = SubElement(self.root, tag, {"class": style})
        for name, value in attributes.items():
            element.set(name.replace("_", "-"), printable(value) if isinstance(value, str) else _number(value))
        if tip:
            SubElement(element, "title").text = printable(tip)
        return element

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.shape("line", style, x1=x1, y1=y1, x2=x2, y2=y2)

    def bar(self, x: float, y: float, width: float, height: float, style: str, *, tip: str = "") -> None:
        self.shape("rect", style, tip, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0))

    def words(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Text whose baseline is at y and whose start, middle or end is at x."""
        self.shape("text", style, x=x, y=y, text_anchor=anchor).text = printable(text)

    def path(self, points: list[tuple[float, float]], style: str, closed: bool = False, dash: str = "") -> None:
        steps = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        extra = {"stroke_dasharray": dash} if dash else {}
        self.shape("path", style, d=f"M{steps}{'Z' if closed else ''}", **extra)

    def marker(self, kind: str, x: float, y: float, radius: float, style: str, *, tip: str = "") -> None:
        """One of MARKERS, centred at (x, y)."""
        if kind == "circle":
            self.shape("circle", style, tip, cx=x, cy=y, r=radius)
            return
        steps = "L".join(f"{_number(x + dx * radius)} {_number(y + dy * radius)}" for dx, dy in _OUTLINES[kind])
        self.shape("path", style, tip, d=f"M{steps}Z")

    def markup(self) -> Markup:
        return Markup(tostring(self.root, encoding="unicode"))  # noqa: S704  ElementTree has escaped it


def _number(value: float) -> str:
    """At most two decimals: a hundredth of a pixel is finer than any screen."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def printable(text: str) -> str:
    """Without the characters that XML does not allow even when escaped."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
