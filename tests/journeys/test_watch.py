"""Watch a run: over HTTP as a browser does, and in a headless browser where there is one."""

import json
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import fedbnn
from fedbnn.federation.loop import Round
from fedbnn.runs.watch import WatchServer
from tests.runs.run_sample import tiny
from tests.runs.watch.browser import MISSING, Browser, browser


class Looks(fedbnn.Observer):
    """After each round, before the next begins, looks at the page's numbers, and at the page itself."""

    def __init__(self, url: str, page: Browser | None) -> None:
        self.url, self.page = url, page
        self.seen: list[tuple[str, int, int]] = []

    def standing(self) -> dict[str, object]:
        with urllib.request.urlopen(f"{self.url}standing.json", timeout=30) as answer:
            [run] = json.load(answer)
        return run

    def round_done(self, record: Round) -> None:
        run = self.standing()
        assert run["curve"]["round"] == list(range(record.number + 1))
        own = {client: scores["personal"].scores["nll"] for client, scores in record.scores.items()}
        assert {one["client"]: one["nll"] for one in run["clients"]} == own
        self.seen.append((run["state"], run["round_number"], run["rounds"]))
        if self.page is not None:
            words = f"round {record.number} of 2"
            self.page.wait_for(f"document.querySelector('.run .round')?.textContent.startsWith('{words}')")


def test_from_before_its_beginning_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with ExitStack() as stack:
        server = stack.enter_context(WatchServer(folder))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        page = None if MISSING else stack.enter_context(browser(tmp_path / "profile"))
        looks = Looks(server.url, page)
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            html = answer.read().decode()
        assert 'src="page.js"' in html
        for part in ("page.js", "page.css"):
            with urllib.request.urlopen(server.url + part, timeout=30) as answer:
                assert b"http://" not in answer.read().replace(b"http://www.w3.org", b"")  # nothing from elsewhere
        assert looks.standing()["state"] == "waiting"
        if page is not None:
            page("url", url=server.url)
            page.wait_for("document.body.dataset.state === 'waiting'")
        result = fedbnn.run(tiny("rounds=2"), folder, observer=looks)
        assert looks.seen == [("running", number, 2) for number in range(3)]
        last = looks.standing()
        assert (last["state"], last["curve"]["nll"][-1]) == ("finished", result["nll"])
        if page is not None:
            page.wait_for("document.body.dataset.state === 'finished'")
            assert page.console() == []
