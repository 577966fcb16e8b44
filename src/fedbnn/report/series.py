"""How each method looks: one colour, dash and marker, the same in every chart of the page."""

from dataclasses import dataclass

from markupsafe import Markup

from fedbnn.report.svg import MARKERS, Drawing

COLOURS = 7
"""Colours of the page. They differ in lightness as well as in hue, to be told apart also by the colour-blind."""

DASHES = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Series:
    """The look of the index-th method. No two of the first 84 share colour, dash and marker."""

    index: int

    @property
    def colour(self) -> str:
        """A CSS class that sets the variable --s to one colour of the page's palette."""
        return f"s{self.index % COLOURS}"

    @property
    def dash(self) -> str:
        return DASHES[self.index % len(DASHES)]

    @property
    def marker(self) -> str:
        return MARKERS[self.index % len(MARKERS)]

    @property
    def hollow(self) -> bool:
        """Every second run through the markers is drawn in outline, so that twelve methods have twelve marks."""
        return self.index // len(MARKERS) % 2 == 1

    def mark(self, kind: str) -> str:
        """The CSS classes of a mark of this kind ("dot" on a line, "spot" for a client)."""
        return f"{kind} {self.colour}{' hollow' if self.hollow else ''}"

    def swatch(self) -> Markup:
        """The sample of line and marker beside a name in a legend."""
        drawing = Drawing(34, 14, "")
        drawing.root.attrib.pop("aria-label")
        drawing.root.attrib.pop("role")
        drawing.root.set("aria-hidden", "true")
        drawing.root.set("class", "swatch")
        drawing.path([(1, 7), (33, 7)], f"line {self.colour}", dash=self.dash)
        drawing.marker(self.marker, 17, 7, 4, self.mark("dot"))
        return drawing.markup()
