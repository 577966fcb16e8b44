"""Sections as one HTML page that needs nothing else, in light and dark."""

from collections.abc import Sequence

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from fedbnn.reproduce.blocks import Grid, Section
from fedbnn.reproduce.published import SOURCE


def render(title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("fedbnn.reproduce", "."), PackageLoader("fedbnn.report", ".")]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["grid"] = lambda block: isinstance(block, Grid)
    return environment.get_template("results.html.j2").render(
        title=title, about=about, sections=sections, source=SOURCE
    )
