"""How engine and worker processes talk: frames of a JSON header and raw bytes over a pipe. No pickle."""

import json
import struct
from typing import IO, Any, NamedTuple

_LENGTHS = struct.Struct("<IQ")


class Frame(NamedTuple):
    """A header, and bytes that go with it (a Message, or nothing)."""

    header: dict[str, Any]
    payload: bytes = b""


def write(stream: IO[bytes], header: dict[str, Any], payload: bytes = b"") -> None:
    text = json.dumps(header).encode()
    for part in (_LENGTHS.pack(len(text), len(payload)) + text, payload):
        rest = memoryview(part)
        while rest:
            rest = rest[stream.write(rest) :]
    stream.flush()


def read(stream: IO[bytes]) -> Frame | None:
    """The next frame, or None when the other side has closed the pipe."""
    lengths = _exactly(stream, _LENGTHS.size)
    if lengths is None:
        return None
    header_length, payload_length = _LENGTHS.unpack(lengths)
    text, payload = _exactly(stream, header_length), _exactly(stream, payload_length)
    if text is None or payload is None:
        return None
    return Frame(json.loads(text), payload)


def _exactly(stream: IO[bytes], length: int) -> bytes | None:
    """`length` bytes, however many reads an unbuffered pipe takes for them; None at the end of the stream."""
    parts = []
    while length > 0:
        part = stream.read(length)
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
