"""Nothing imports this because a node says so."""

raise RuntimeError("imported")
