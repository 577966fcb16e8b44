"""Where what was downloaded or converted is kept for the next run."""

import os
from pathlib import Path


def cache() -> Path:
    """$XDG_CACHE_HOME/fedbnn or ~/.cache/fedbnn."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fedbnn"
