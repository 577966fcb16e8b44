"""Methods must be told apart: on white and on black, in print, and by readers who see few colours."""

import re
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

import fedbnn.report
from fedbnn.report import write_report
from fedbnn.report.series import COLOURS, Series
from tests.report.reader import chart, of_class
from tests.report.samples import TWELVE, write_comparison

STYLE = (Path(fedbnn.report.__file__).parent / "chart.css").read_text("utf-8")
SCHEMES = dict(
    zip(("light", "dark"), re.split(r"@media screen and \(prefers-color-scheme: dark\)", STYLE), strict=True)
)

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SEEN = {
    "all colours": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(scheme: str, name: str) -> np.ndarray:
    """The first value of a colour variable in the style of a scheme, as linear RGB."""
    found = re.search(rf"--{name}: #([0-9a-f]{{6}});", SCHEMES[scheme])
    assert found, f"no --{name} in the {scheme} scheme"
    channels = np.array([int(found[1][i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    lms = np.cbrt(
        np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
        @ np.clip(rgb, 0, 1)
    )
    return (
        np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ lms
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seen", SEEN)
def test_colours_differ_for_everyone(scheme: str, seen: str) -> None:
    looks = [oklab(SEEN[seen] @ linear(scheme, f"s{i}")) for i in range(COLOURS)]
    apart = {(i, j): float(np.linalg.norm(looks[i] - looks[j])) for i, j in combinations(range(COLOURS), 2)}
    assert min(apart.values()) > 0.1, min(apart, key=apart.__getitem__)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_stand_out_from_the_paper(scheme: str) -> None:
    weights = np.array([0.2126, 0.7152, 0.0722])
    paper = weights @ linear(scheme, "paper")
    for index in range(COLOURS):
        low, high = sorted((paper, weights @ linear(scheme, f"s{index}")))
        assert (high + 0.05) / (low + 0.05) >= 3  # WCAG 2.2, 1.4.11


def test_methods_look_different() -> None:
    looks = [Series(index) for index in range(84)]
    assert len({(look.colour, look.dash, look.marker, look.hollow) for look in looks}) == 84


def test_twelve_methods_have_twelve_marks_and_differ_in_two_ways() -> None:
    looks = [Series(index) for index in range(12)]
    assert len({(look.marker, look.hollow) for look in looks}) == 12
    for one, other in combinations(looks, 2):
        mark = (one.marker, one.hollow) != (other.marker, other.hollow)
        assert (one.colour != other.colour) + (one.dash != other.dash) + mark >= 2
    assert all(one.dash != other.dash and one.colour != other.colour for one, other in pairwise(looks))


def test_a_page_of_twelve_methods_draws_all_of_them(tmp_path: Path) -> None:
    page = write_report(write_comparison(tmp_path, TWELVE, [0])).read_text("utf-8")
    drawing = chart(page, "Own-class accuracy against rounds")
    lines = {(line.get("class"), line.get("stroke-dasharray")) for line in of_class(drawing, "line")}
    assert len(lines) == 12
    marks = {(mark.tag, mark.get("class")) for mark in of_class(drawing, "dot")}
    assert len(marks) == 12
    assert len(of_class(drawing, "hollow")) == 6 * 13
    assert page.count('class="swatch"') == 4 * 12  # legend, clients, reliability, uncertainty
    spots = [of_class(chart(page, f"Own-class accuracy of the clients of {method}."), "spot") for method in TWELVE]
    assert {len(of) for of in spots} == {20}


def test_many_lines_get_a_taller_chart(tmp_path: Path) -> None:
    heights = []
    for methods in (TWELVE[:6], TWELVE[:7]):
        page = write_report(write_comparison(tmp_path / str(len(methods)), methods, [0])).read_text("utf-8")
        heights.append(float(chart(page, "NLL").get("viewBox", "").split()[3]))
    assert heights[1] > heights[0]
