"""The tables of docs/engines.md are those of the committed measurement, and its bytes are those of messages today."""

import json
from pathlib import Path

import pytest

from benchmarks.engines import BAR, message_sizes, overhead_table, sizes_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "engines.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert "\n".join(overhead_table(RESULTS["overhead"])) in page
    assert "\n".join(sizes_table(RESULTS["bytes"])) in page


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
