"""Everything that reads what others wrote, on inputs of every kind: a part of what `make soak` does."""

from pathlib import Path

import pytest

from tests.fuzz.memory import little_memory
from tests.fuzz.targets.every import TARGETS
from tests.fuzz.targets.target import tried

INPUTS = 100


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_inputs_are_read_or_refused_in_a_line(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    prepared = target.prepare(tmp_path)
    for valid in prepared.valid:
        assert tried(prepared, valid), "what is valid is refused"
    with little_memory(2**30):
        for number in range(max(5, int(INPUTS * target.share))):
            data = target.input(prepared.valid, 0, number)
            try:
                tried(prepared, data)
            except BaseException as error:
                error.add_note(f"{target.name}, input {number}: {data[:300]!r}")
                raise
