"""Messages in Flower's records: what goes in comes out bit for bit, and nothing else is let in."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnn.deployment.flower.wire import MOST_FACTS, packed, unpacked
from fedbnn.federation.message import PLAIN_NAME, BadMessage, Message

ARRAYS = st.one_of(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    hnp.arrays(np.int64, hnp.array_shapes(min_dims=1, max_dims=2)),
)


@given(st.dictionaries(st.from_regex(PLAIN_NAME, fullmatch=True), ARRAYS, max_size=3))
def test_what_goes_in_comes_out_bit_for_bit(arrays: dict[str, np.ndarray]) -> None:
    message = Message({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    facts = {"round": 3, "terms": "ü"}
    found, told = unpacked(packed(message, facts), message.nbytes)
    assert told == facts
    assert found.arrays.keys() == message.arrays.keys()
    for name, array in message.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].numpy().tobytes() == array.numpy().tobytes()
        assert found.arrays[name].shape == array.shape


def refused(content: RecordDict, most: int = 10**6) -> str:
    with pytest.raises(BadMessage) as caught:
        unpacked(content, most)
    return str(caught.value)


def with_array(array: Array) -> RecordDict:
    content = packed(Message(), {})
    content["arrays"] = ArrayRecord({"phi": array})
    return content


def test_a_message_over_its_size_is_refused_before_it_is_read() -> None:
    content = packed(Message({"phi": torch.zeros(100, 100)}), {})
    assert refused(content, 400) == "it holds 40128 bytes of arrays, agreed were at most 400"


def test_the_header_of_an_array_is_not_believed() -> None:
    """A header that promises a terabyte must not make anybody allocate it."""
    whole = Array(np.zeros(4, dtype=np.float32)).data
    spaces = whole.index(b"(4,), }") + len(b"(4,), }")
    huge = whole[: spaces - 7] + b"(4000000000000,), }" + whole[spaces + 12 :]  # as long as before
    assert len(huge) == len(whole)
    for data in (huge, whole[:-1], whole + b"\0", whole.replace(b"(4,)", b"(9,)"), b"", b"\x93NUMPY\x01\0"):
        assert "'phi'" in refused(with_array(Array("float32", (4,), "numpy.ndarray", data)))


@pytest.mark.parametrize("kind", ["float64", "int32", "complex64", "bool", "U3"])
def test_other_kinds_of_numbers_are_refused(kind: str) -> None:
    assert "agreed are float32 and int64" in refused(with_array(Array(np.zeros(2, dtype=kind))))


def test_python_objects_are_never_unpickled() -> None:
    buffer = np.lib.format.header_data_from_array_1_0(np.zeros(1, dtype=np.float32)) | {"descr": "|O"}
    head = b"\x93NUMPY\x01\x00"
    text = repr(buffer).encode().ljust(118) + b"\n"
    data = head + len(text).to_bytes(2, "little") + text + b"cos\nsystem\n(S'false'\ntR."
    assert "'phi'" in refused(with_array(Array("object", (1,), "numpy.ndarray", data)))


def test_other_records_and_facts_are_refused() -> None:
    assert "agreed were 'arrays' and 'facts'" in refused(RecordDict({"arrays": ArrayRecord()}))
    assert "agreed were" in refused(RecordDict({"arrays": ArrayRecord(), "facts": MetricRecord({"json": 1.0})}))
    for text in ("[]", "{", "[" * 100_000, json.dumps({"x": "a" * MOST_FACTS})):
        content = RecordDict({"arrays": ArrayRecord(), "facts": ConfigRecord({"json": text})})
        assert "its facts are not" in refused(content)
    assert "its facts are not" in refused(RecordDict({"arrays": ArrayRecord(), "facts": ConfigRecord({"json": 1})}))
