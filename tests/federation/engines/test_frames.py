import io

from hypothesis import given
from hypothesis import strategies as st

from fedbnn.federation.engines import frames

headers = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8) | st.none(), max_size=4)


class Dribble(io.RawIOBase):
    """A pipe that hands out and takes in at most three bytes at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def read(self, size: int = -1) -> bytes:
        part = bytes(self.data[: min(size, 3)])
        del self.data[: len(part)]
        return part

    def write(self, part: object) -> int:
        piece = bytes(part)[:3]  # type: ignore[call-overload]
        self.data += piece
        return len(piece)


@given(st.lists(st.tuples(headers, st.binary(max_size=40)), max_size=4))
def test_frames_survive_pipes_that_give_and_take_in_small_pieces(
    messages: list[tuple[dict[str, object], bytes]],
) -> None:
    pipe = Dribble()
    for header, payload in messages:
        frames.write(pipe, header, payload)  # type: ignore[arg-type]
    for header, payload in messages:
        assert frames.read(pipe) == (header, payload)  # type: ignore[arg-type]
    assert frames.read(pipe) is None  # type: ignore[arg-type]


@given(st.integers(0, 30))
def test_a_stream_that_ends_within_a_frame_is_an_end(cut: int) -> None:
    whole = io.BytesIO()
    frames.write(whole, {"a": 1}, b"0123456789")
    assert frames.read(io.BytesIO(whole.getvalue()[: min(cut, len(whole.getvalue()) - 1)])) is None
