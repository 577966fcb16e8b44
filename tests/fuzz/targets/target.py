"""What a target is: valid files of a kind, how hostile ones are made of them, and everything that reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fedbnn.base.errors import UserError
from fedbnn.federation.message import BadMessage
from tests.fuzz.mutations import Form, hostile

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Prepared:
    """Ready to read: `valid` inputs, and who reads one."""

    valid: Sequence[bytes]
    readers: Sequence[Read]


@dataclass(frozen=True)
class Target:
    """Bytes that somebody else wrote.

    Attributes:
        reads: what they are, for people.
        form: how hostile ones are made of valid ones.
        prepare: in a folder that is its own.
        share: of as many inputs as others get, where one takes long.
        own_code: it may name code of the user's own to be imported, as a configuration may.

    """

    name: str
    reads: str
    form: Form
    prepare: Callable[[Path], Prepared]
    share: float = 1.0
    own_code: bool = False

    def input(self, valid: Sequence[bytes], seed: int, number: int) -> bytes:
        """The same for the same seed and number."""
        return hostile(Random(f"{seed}/{self.name}/{number}"), valid, self.form)


def outcome(read: Callable[[], object]) -> str:
    """Nothing where it is read, or why it is not, in one line; whatever else is raised goes on to the caller."""
    try:
        read()
    except (UserError, BadMessage) as error:
        text = str(error)
    else:
        return ""
    assert "\n" not in text, f"more than a line: {text!r}"
    assert 0 < len(text) <= 2_000, f"a line of {len(text)} signs"
    return text


def tried(prepared: Prepared, data: bytes) -> bool:
    """Whether anybody takes it; every reader is asked."""
    refused = [bool(outcome(lambda read=read: read(data))) for read in prepared.readers]  # type: ignore[misc]
    return not all(refused)


def from_file(file: Path, *readers: Callable[[Path], object]) -> list[Read]:
    """Readers of a file with this name, into which the bytes are put."""

    def reading(read: Callable[[Path], object]) -> Read:
        def written(data: bytes) -> object:
            file.write_bytes(data)
            return read(file)

        return written

    return [reading(read) for read in readers]
