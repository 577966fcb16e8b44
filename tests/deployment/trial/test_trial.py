"""What `fedbnn flower up` says of Flower's log."""

import pytest

pytest.importorskip("cryptography")

from fedbnn.deployment.trial.trial import plain


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fedbnn: round 1 of 2: 3 of 3 sites, 2.0 s", "fedbnn: round 1 of 2: 3 of 3 sites, 2.0 s"),
        ("INFO :      round 2 begins", "round 2 begins"),
        ("WARNING :   a site is late", "warning: a site is late"),
        ("ERROR :     ServerApp raised an exception", "error: ServerApp raised an exception"),
        ("INFO :      Starting logstream for run_id `1`", ""),
        ("Successfully installed fedbnn-federation to /x.", ""),
        ("INFO :      ", ""),
        ("DEBUG :     anything", ""),
    ],
)
def test_a_line_is_told_in_plain_words_or_left_out(line: str, said: str) -> None:
    assert plain(line) == said
