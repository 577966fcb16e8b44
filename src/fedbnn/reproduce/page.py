"""Sections as one HTML page that needs nothing else, in light and dark."""

from collections.abc import Sequence

from fedbnn.report.page import environment
from fedbnn.reproduce.blocks import Section
from fedbnn.reproduce.published import SOURCE


def render(title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    template = environment("fedbnn.reproduce", "fedbnn.report").get_template("results.html.j2")
    return template.render(title=title, about=about, sections=sections, source=SOURCE)
