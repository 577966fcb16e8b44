"""The page of `fedbnn watch` in a real browser: it waits, follows a run to its end, and loads nothing from outside."""

import json
import os
import threading
from pathlib import Path

import pytest

import fedbnn
from fedbnn.federation.loop import Round
from fedbnn.runs.watch import WatchServer
from tests.runs.run_sample import tiny
from tests.runs.watch.browser import MISSING, Browser, browser

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
POINTS = "[...document.querySelectorAll('#chart circle')].length"
NLLS = "[...document.querySelectorAll('#clients tbody tr')].map(row => row.cells[3].textContent)"
CHANGED = "score.dispatchEvent(new Event('change'))"
HOSTILE = "<img src=x onerror=document.title='broken'>"


class Seen(fedbnn.Observer):
    """Holds each round until the page shows it."""

    def __init__(self, page: Browser) -> None:
        self.page = page
        self.rounds: list[str] = []

    def round_done(self, record: Round) -> None:
        words = f"round {record.number} of 2"
        self.page.wait_for(f"document.querySelector('.run .round')?.textContent.startsWith('{words}')")
        assert self.page.wait_for(POINTS) == record.number + 1
        self.rounds.append(words)


def test_the_page_follows_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with WatchServer(folder) as server, browser(tmp_path / "profile") as page:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            page("url", url=server.url)
            page.wait_for("document.body.dataset.state === 'waiting'")
            seen = Seen(page)
            result = fedbnn.run(tiny("rounds=2"), folder, observer=seen)
            assert seen.rounds == [f"round {number} of 2" for number in range(3)]
            page.wait_for("document.body.dataset.state === 'finished'")
            facts = page.run("return document.querySelector('.run .facts').textContent")
            assert facts.startswith(f"own-class accuracy {100 * result['own_class_accuracy']:.1f} %")
            rows = page.run(f"return {NLLS}")
            assert rows == [f"{value:.3f}" for value in result["per_client"]["nll"]]
            page.run(f"const score = document.getElementById('score'); score.value = 'nll'; {CHANGED}")
            assert f"{result['nll']:.3f}" in page.run("return document.querySelector('#chart svg').ariaLabel")

            # Names are text, whoever wrote them.
            text = (folder / "metrics.jsonl").read_text()
            (folder / "metrics.jsonl").write_text(text.replace('"client-0"', json.dumps(HOSTILE)))
            page.wait_for("document.querySelector('#clients td').textContent.includes('<img')")
            assert page.run("return document.images.length") == 0
            assert page.run("return document.title") == "finished: local on digits, seed 0"

            loaded = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
            assert {name.startswith(server.url) for name in loaded} == {True}
            assert page.console() == []
            if kept := os.environ.get("FEDBNN_SCREENSHOT"):
                page.screenshot(Path(kept))
        finally:
            server.shutdown()
            thread.join()
