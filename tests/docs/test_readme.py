"""The README's Python example runs as it stands (with fewer rounds), and its map of the tree is true."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs() -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert "rounds=3" in example
    short = example.replace("rounds=3", "rounds=1").replace("clients=20", "clients=4")
    done = subprocess.run([sys.executable, "-c", short], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 3


def test_the_map_names_every_module_and_nothing_else() -> None:
    [tree] = re.findall(r"```\nsrc/fedbnn/\n(.*?)```", README, flags=re.DOTALL)
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ") and line[2] != " "}
    package = ROOT / "src" / "fedbnn"
    hidden = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    assert named == {entry.name for entry in package.iterdir()} - hidden
