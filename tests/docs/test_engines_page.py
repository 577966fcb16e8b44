"""The tables of docs/engines.md are those of the committed measurement, and its bytes are those of messages today."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale, throughput
from benchmarks.engines import BAR, message_sizes, overhead_table, sizes_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


RESULTS = results("engines")


def test_the_page_shows_what_was_measured() -> None:
    assert "\n".join(overhead_table(RESULTS["overhead"])) in PAGE
    assert "\n".join(sizes_table(RESULTS["bytes"])) in PAGE


@pytest.mark.parametrize("part", scale.PARTS)
def test_the_page_shows_the_growth_that_was_measured(part: str) -> None:
    assert "\n".join(scale.table(results("scale"), part)) in PAGE


def test_the_page_shows_the_throughput_that_was_measured_of_the_same_arithmetic() -> None:
    found = results("throughput")
    assert "\n".join(throughput.table(found)) in PAGE
    for one in found:
        assert all(side["weights apart after the first round"] <= throughput.SAME for side in one["sides"].values())


def test_messages_have_the_sizes_that_the_page_gives() -> None:
    pytest.importorskip("flwr")
    now = message_sizes()
    for model, found in RESULTS["bytes"].items():
        for method in ("fedbnn", "fedavg"):
            assert {way: now[model][method][way] for way in ("up", "down")} == {
                way: found[method][way] for way in ("up", "down")
            }
    assert now["vgg9"]["fedavg / fedbnn"] >= BAR
    assert now["vgg9"]["fedavg / fedbnn, Flower"] >= BAR
