"""The hand-written pages and the fenced blocks in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
_FENCE = re.compile(
    r"(?:<!-- needs: ([^\n]+?) -->\n)?^```(?: \{ \.)?(\w*)(?: \})?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_INDENTED = re.compile(r"(?:^    fedbnn .*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page; `needs` is what a test has not got, as the comment above it says."""

    language: str
    text: str
    needs: str = ""


def blocks(name: str) -> list[Block]:
    text = (ROOT / name).read_text(encoding="utf-8")
    fenced = [Block(language, body, needs) for needs, language, body in _FENCE.findall(text)]
    return fenced + [Block("sh", found) for found in _INDENTED.findall(_FENCE.sub("", text))]
