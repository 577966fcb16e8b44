"""Where there is no terminal, a plain line a round says how far a run is."""

import io
import re
from pathlib import Path

from rich.console import Console

import fedbnn
from fedbnn.cli.progress import TerminalProgress
from tests.runs.run_sample import tiny


def test_a_line_a_round_also_where_nothing_was_scored(tmp_path: Path) -> None:
    out = io.StringIO()
    with TerminalProgress(Console(file=out, width=20)) as progress:
        fedbnn.run(tiny("rounds=3", "evaluation.every=2"), tmp_path / "run", observer=progress)
    lines = out.getvalue().splitlines()
    scored = r", own [\d.]+%, all [\d.]+%"
    patterns = [
        rf"0/3{scored}, [\d.]+ s",
        r"1/3, [\d.]+ s, about [\d.]+ s left",
        rf"2/3{scored}, .* left",
        rf"3/3{scored}, .* s",
    ]
    assert len(lines) == 4
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(f"local: round {pattern}", line), line
    assert "\x1b" not in out.getvalue()
