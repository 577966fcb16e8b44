import json
import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.federation.message import (
    ABSURD,
    MOST_SENT,
    MOST_WHOLE,
    BadMessage,
    Distributions,
    Integers,
    Message,
    Numbers,
    check,
    check_sent,
)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def messages(draw):
    arrays = {}
    for name in draw(st.lists(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), unique=True)):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        shape = draw(shapes)
        if draw(st.booleans()):
            arrays[name] = torch.randn(shape, generator=generator)
        else:
            arrays[name] = torch.randint(-(2**40), 2**40, shape, generator=generator)
    return Message(arrays)


@given(messages())
def test_bytes_and_back(message):
    back = Message.from_bytes(message.to_bytes())
    assert back.arrays.keys() == message.arrays.keys()
    for name, array in message.arrays.items():
        assert back.arrays[name].dtype == array.dtype
        assert back.arrays[name].shape == array.shape
        assert torch.equal(back.arrays[name], array)
    assert back.nbytes == message.nbytes == sum(a.numel() * a.element_size() for a in message.arrays.values())
    assert len(message.to_bytes()) >= message.nbytes


def test_special_values_keep_their_bits():
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45])
    back = Message.from_bytes(Message({"x": x}).to_bytes()).arrays["x"]
    assert torch.equal(back.view(torch.int32), x.view(torch.int32))


def test_views_that_are_not_contiguous():
    x = torch.arange(24.0).reshape(2, 3, 4)
    back = Message.from_bytes(Message({"t": x.permute(2, 0, 1), "s": x[:, ::2]}).to_bytes())
    assert torch.equal(back.arrays["t"], x.permute(2, 0, 1))
    assert torch.equal(back.arrays["s"], x[:, ::2])


def test_nbytes_counts_the_numbers_only():
    assert Message().nbytes == 0
    assert Message({"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.int64)}).nbytes == 3 * 5 * 4 + 2 * 8


def test_get():
    x = torch.ones(2)
    assert Message({"x": x}).get("x") is x
    assert Message({"x": x}).get("y") is None


def block(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\x00" * 64,
        b"\xff" * 64,
        block(b"not json"),
        block({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),  # too short
        block({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),  # another shape
        block({"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        Message({"x": torch.ones(5)}).to_bytes()[:-1],
        Message({"x": torch.ones(5)}).to_bytes() + b"more",
    ],
)
def test_garbage_is_a_bad_message(data):
    with pytest.raises(BadMessage, match="not a message"):
        Message.from_bytes(data)


def test_a_dtype_without_counterpart_is_a_bad_message():
    with pytest.raises(BadMessage):
        Message.from_bytes(block({"x": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]}}, b"1"))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        message = Message.from_bytes(data)
    except BadMessage:
        return
    assert isinstance(message, Message)


AGREED = {"phi": (3, 2), "weight": (1,)}


def good():
    return {"phi": torch.ones(3, 2), "weight": torch.ones(1)}


def refusal(arrays):
    with pytest.raises(BadMessage) as caught:
        check(Message(arrays), AGREED)
    return str(caught.value)


def test_the_agreed_message_is_let_in():
    check(Message(good()), AGREED)
    check(Message(), {})


def test_a_missing_name():
    text = refusal({"phi": torch.ones(3, 2)})
    assert "['phi']" in text
    assert "['phi', 'weight']" in text


def test_an_extra_name():
    assert "'secret'" in refusal(good() | {"secret": torch.ones(1)})
    with pytest.raises(BadMessage):
        check(Message({"phi": torch.ones(1)}), {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_another_dtype(dtype):
    assert refusal(good() | {"phi": torch.ones(3, 2, dtype=dtype)}) == f"'phi' is {dtype}, agreed was torch.float32"


@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, 2, 1), (4, 2), ()])
def test_another_shape(shape):
    assert refusal(good() | {"phi": torch.ones(shape)}) == f"'phi' has shape {shape}, agreed was (3, 2)"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
def test_values_that_are_not_finite(value, place):
    phi = torch.ones(3, 2)
    phi[place] = value
    assert refusal(good() | {"phi": phi}) == "'phi' holds values that are not finite"


WHOLE = {"sums": Integers((3,), 2**40)}


def refused_whole(array):
    with pytest.raises(BadMessage) as caught:
        check(Message({"sums": array}), WHOLE)
    return str(caught.value)


@pytest.mark.parametrize("value", [0, 2**40, -(2**40)])
def test_agreed_whole_numbers_are_let_in(value):
    check(Message({"sums": torch.tensor([value, 1, -1])}), WHOLE)
    check(Message({"sums": torch.tensor([value, 1, -1]), **good()}), WHOLE | AGREED)


@pytest.mark.parametrize("value", [2**40 + 1, -(2**40) - 1, 2**63 - 1, -(2**63), -(2**63) + 1])
def test_whole_numbers_beyond_what_was_agreed(value):
    assert refused_whole(torch.tensor([0, value, 0])) == f"'sums' holds values beyond {2**40}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_of_another_dtype(dtype):
    assert refused_whole(torch.ones(3, dtype=dtype)) == f"'sums' is {dtype}, agreed was torch.int64"


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_whole_numbers_of_another_shape(shape):
    text = refused_whole(torch.zeros(shape, dtype=torch.int64))
    assert text == f"'sums' has shape {shape}, agreed was (3,)"


def test_whole_numbers_where_others_were_agreed():
    assert refusal(good() | {"phi": torch.ones(3, 2, dtype=torch.int64)}).endswith("agreed was torch.float32")
    with pytest.raises(BadMessage, match=r"it holds \['others'\], agreed were \['sums'\]"):
        check(Message({"others": torch.zeros(3, dtype=torch.int64)}), WHOLE)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3))
def test_whole_numbers_survive_the_wire_and_are_judged_by_their_size(values):
    back = Message.from_bytes(Message({"sums": torch.tensor(values)}).to_bytes())
    assert back.arrays["sums"].tolist() == values
    if max(map(abs, values)) <= 2**40:
        check(back, WHOLE)
    else:
        refused_whole(back.arrays["sums"])


def test_equal_arrays_give_equal_bytes_in_any_order_and_layout():
    arrays = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(2, dtype=torch.int64), "c": torch.zeros(3)}
    turned = {name: arrays[name] for name in ("c", "a", "b")} | {"b": arrays["b"].t().contiguous().t()}
    assert Message(turned).to_bytes() == Message(arrays).to_bytes()


# Ranges


def refused(form, array):
    try:
        check(Message({"a": array}), {"a": form})
    except BadMessage as error:
        return str(error)
    return ""


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_are_let_in_within_their_range_and_no_others(value):
    array = torch.tensor([0.0, value])
    assert bool(refused(Numbers((2,)), array)) == (abs(float(array[1])) > ABSURD)
    assert bool(refused((2,), array)) == (abs(float(array[1])) > MOST_SENT)
    assert bool(refused(Numbers((2,), 0.0, 5.0), array)) == (not 0 <= float(array[1]) <= 5)


@given(st.integers(0, 1000), st.integers(2, 1000), st.floats(0, 60))
def test_every_softmax_is_on_the_simplex(seed, classes, scale):
    logits = torch.randn(3, classes, generator=torch.Generator().manual_seed(seed)) * scale
    for probs in (logits.softmax(1), logits.double().softmax(1).float(), torch.stack([logits.softmax(1)] * 7).mean(0)):
        assert refused(Distributions((3, classes)), probs) == ""


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([0.5, 0.4], "do not add up to 1"),
        ([0.0, 0.0], "do not add up to 1"),
        ([1.2, -0.2], "not from -0.001 to 1.001"),
        ([1e38, -1e38], "not from -0.001 to 1.001"),
        ([math.nan, 1.0], "not finite"),
    ],
)
def test_what_is_off_the_simplex_is_refused(row, why):
    assert why in refused(Distributions((2, 2)), torch.tensor([[0.5, 0.5], row]))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
def test_a_mean_of_what_is_let_in_is_taken_back(value, whole):
    """The server's question before it sends is the site's: whatever is within an upload's bounds passes as a mean."""
    array = torch.tensor([value])
    if not refused(Numbers((1,)), array):
        check_sent(Message({"mean": torch.stack([array] * 3).mean(0)}))
    message = Message({"whole": torch.tensor([whole])})
    if abs(whole) > MOST_WHOLE:
        with pytest.raises(BadMessage, match="beyond"):
            check_sent(message)
    else:
        check_sent(message)
