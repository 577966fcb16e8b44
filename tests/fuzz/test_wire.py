"""The server's door: whatever bytes a node sends, they are a message or a BadMessage of one line."""

import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.deployment.flower.replies import scores_by, sent_by
from fedbnn.deployment.flower.wire import packed, unpacked
from fedbnn.federation.evaluation import Evaluation
from fedbnn.federation.message import BadMessage
from fedbnn.federation.message import Message as OurMessage
from tests.fuzz import corpus
from tests.fuzz.targets.messages import MOST, content, measured, reply_of, scored


def refusal(read: Callable[[], object]) -> str | None:
    """Why something is refused, in one line; None where it is taken."""
    try:
        read()
    except BadMessage as error:
        text = str(error)
    else:
        return None
    assert text.isprintable()
    assert 0 < len(text) <= 500
    return text


@pytest.mark.parametrize("name", corpus.NPY)
def test_no_header_but_numpys_own_is_read(name: str) -> None:
    tracemalloc.start()
    assert refusal(lambda: sent_by(reply_of(content(corpus.NPY[name])), MOST))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (1, 2, 3), (1,) * 8])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_numpys_own_headers_are_read(shape: tuple[int, ...], kind: type) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(kind)
    found = unpacked(content(corpus.npy(array)), MOST)[0].arrays["phi"].numpy()
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert found.shape == array.shape


def test_changed_bytes_are_an_array_or_refused() -> None:
    good = corpus.npy(np.arange(12, dtype=np.float32).reshape(3, 4))
    taken = 0
    for data in corpus.flips(good, 3_000):
        try:
            [array] = unpacked(content(data), MOST)[0].arrays.values()
        except BadMessage:
            continue
        taken += 1
        assert array.dtype in (torch.float32, torch.int64)
        assert array.nbytes <= len(data)
    assert 0 < taken < 3_000  # changed numbers are still numbers


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    for written in (data, b"\x93NUMPY\x01\x00" + data):
        with pytest.raises(BadMessage):
            unpacked(content(written), MOST)


@pytest.mark.parametrize("name", corpus.FACTS)
def test_no_facts_end_the_reading(name: str) -> None:
    reply = reply_of(content(facts=corpus.FACTS[name]))
    if refusal(lambda: sent_by(reply, MOST)) is None:
        sent = sent_by(reply, MOST)
        assert all(math.isfinite(value) for value in (*sent.info.values(), sent.seconds))
    assert refusal(lambda: scores_by(reply)) or scores_by(reply) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["info", "seconds", "evaluation", "refused", "failed", "text"]), JSON))
def test_any_facts_are_read_or_refused(facts: dict[str, Any]) -> None:
    reply = reply_of(content(facts=json.dumps(facts)))
    refusal(lambda: sent_by(reply, MOST))
    refusal(lambda: scores_by(reply))


@pytest.mark.parametrize("regression", [False, True])
def test_scores_come_out_as_they_went_in_and_those_of_the_other_task_do_not(regression: bool) -> None:
    facts = {"evaluation": {"personal": measured() if regression else scored()}}
    reply = reply_of(packed(OurMessage(), facts))
    found = scores_by(reply, regression=regression)
    with pytest.raises(BadMessage, match="they cannot be read: an evaluation has"):
        scores_by(reply, regression=not regression)
    assert found is not None
    assert {variant: one.to_dict() for variant, one in found.items()} == facts["evaluation"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of nested objects and lists, but only the first two of a list."""
    inner: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        inner = list(range(len(value)))[:2]
    return [path, *(place for key in inner for place in places(value[key], (*path, key)))]


@pytest.mark.parametrize("place", places(scored()), ids=lambda place: ".".join(map(str, place)) or "all")
def test_absurd_values_at_any_place_of_the_scores_are_refused(place: tuple[Any, ...]) -> None:
    """Numbers that no evaluation has, other types, missing and unknown names."""
    absurd = [-1, 1e18, 10**19, True, None, "0.5", [], [[0.5]], {}, {"a": 1}, [0.1] * 2_000]
    for value in absurd:
        told: Any = {"personal": scored()}
        target = told
        *path, last = ("personal", *place)
        for key in path:
            target = target[key]
        target[last] = value
        with pytest.raises(ValueError):  # noqa: PT011 (one of many)
            Evaluation.from_dict(told["personal"])
        with pytest.raises(BadMessage):
            scores_by(reply_of(content(facts=json.dumps({"evaluation": told}))))


@pytest.mark.parametrize("names", [(), ("personal ",), ("\x1b",), tuple(f"a{number}" for number in range(11))])
def test_variants_have_plain_names_and_there_are_few(names: tuple[str, ...]) -> None:
    with pytest.raises(BadMessage):
        scores_by(reply_of(packed(OurMessage(), {"evaluation": dict.fromkeys(names, scored())})))


@pytest.mark.parametrize("name", ["nll", "round", "name", "rejected", "elapsed", "bytes_up", "", "a b", "x" * 61, "ü"])
def test_diagnostics_cannot_pass_for_what_the_server_writes(name: str) -> None:
    with pytest.raises(BadMessage, match="it calls a diagnostic"):
        sent_by(reply_of(packed(OurMessage(), {"info": {name: 1.0}})), MOST)


@pytest.mark.parametrize("name", ["__metadata__", "", "a" * 61, "\x1b[2J", "a b", "ü", "a\n", "_0"])
def test_arrays_have_plain_names(name: str) -> None:
    array = Array(np.zeros(1, dtype=np.float32))
    reply = reply_of(RecordDict({"arrays": ArrayRecord({name: array}), "facts": ConfigRecord({"json": "{}"})}))
    assert "an array is called" in (refusal(lambda: sent_by(reply, MOST)) or "")


def test_many_small_arrays_are_too_many() -> None:
    array = Array(np.zeros(1, dtype=np.float32))
    records = RecordDict({"arrays": ArrayRecord({f"a{n}": array for n in range(1001)}), "facts": ConfigRecord({})})
    with pytest.raises(BadMessage, match="1001 arrays, more than 1000"):
        unpacked(records, MOST)
