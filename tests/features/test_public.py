"""What everybody works out from the alignment set alone, and the names of questions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.features import public as module
from fedbnn.features.public import digest_of, public

TABLE = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _nothing_known():
    module._known.clear()


parts = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.sampled_from(["|1", "1", "|", "'", "'a'|'b'", "|torch.float32(1,)|"]),
        st.integers(-3, 3),
        st.floats(allow_nan=False),
        st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0]), max_size=3).map(torch.tensor),
        st.lists(st.integers(0, 2), max_size=3).map(lambda v: torch.tensor(v, dtype=torch.int64)),
    ),
    max_size=3,
)


def described(values):
    """Apart exactly if they are apart in type, order, shape or a single bit."""
    return [
        (str(v.dtype), tuple(v.shape), v.numpy().tobytes()) if isinstance(v, torch.Tensor) else (type(v), repr(v))
        for v in values
    ]


@given(parts, parts)
def test_only_the_same_question_has_the_same_name(one, other):
    assert (digest_of(*one) == digest_of(*other)) == (described(one) == described(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1, 2), (12,)),
        ((1,), ("1",)),
        ((1,), (1.0,)),
        ((torch.zeros(2, 3),), (torch.zeros(3, 2),)),
        ((torch.zeros(2),), (torch.zeros(2, dtype=torch.float64),)),
        ((torch.zeros(2),), (-torch.zeros(2),)),
        ((torch.zeros(1), torch.zeros(1)), (torch.zeros(2),)),
        ((torch.ones(3),), (torch.ones(3) + torch.tensor([0, 0, 2.0**-23]),)),
    ],
)
def test_questions_that_differ_a_little(one, other):
    assert digest_of(*one) != digest_of(*other)
    assert digest_of(*one) == digest_of(*one)


def test_how_an_array_lies_in_memory_does_not_matter():
    x = torch.randn(4, 3, 5, 6)
    for same in (x.clone(memory_format=torch.channels_last), x.requires_grad_(), x.flip(0).flip(0)):
        assert digest_of(same) == digest_of(x)


@pytest.mark.parametrize("alignment", [TABLE, IMAGES], ids=["table", "images"])
def test_features_and_their_second_moment(alignment):
    found = public(alignment, "auto", 9)
    assert found.phi.shape == (len(alignment), 9)
    torch.testing.assert_close(found.phi, found.map(alignment))
    assert (found.phi.double().norm(dim=1) <= 1).all()
    values, vectors = found.moments
    assert (values >= 0).all()
    second = found.phi.double().T @ found.phi.double() / len(alignment)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, second, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-12)


def test_outputs_of_a_head_are_its_class_probabilities():
    found = public(TABLE, "auto", 9)
    assert torch.equal(found.outputs(torch.zeros(9, 4)), torch.full((40, 4), 0.25))
    head = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    logits = found.phi.double() @ head.double()
    expected = logits.exp() / logits.exp().sum(1, keepdim=True)
    torch.testing.assert_close(found.outputs(head).double(), expected, rtol=1e-5, atol=1e-7)


def test_the_same_set_is_worked_out_once_and_another_one_anew(monkeypatch):
    first = public(TABLE, "auto", 9)
    assert public(TABLE.clone(), "auto", 9) is first
    changed = TABLE.clone()
    changed[3, 2] += 1e-3
    others = [
        public(changed, "auto", 9),
        public(TABLE, "fourier", 9),
        public(TABLE, "auto", 11),
        public(TABLE[:39], "auto", 9),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 5
    again = public(TABLE, "auto", 9)
    assert again.digest == first.digest
    assert torch.equal(again.phi, first.phi)
    assert all(torch.equal(one, other) for one, other in zip(again.moments, first.moments, strict=True))


def test_a_few_alignment_sets_in_turn_are_worked_out_once_each():
    few = [TABLE + shift for shift in range(4)]
    first = [public(table, "auto", 9) for table in few]
    assert all(public(table, "auto", 9) is one for table, one in zip(few, first, strict=True))
    public(TABLE - 1, "auto", 9)
    assert len(module._known) == 4
    assert public(few[0], "auto", 9) is not first[0]
    assert public(few[3], "auto", 9) is first[3]


def test_the_number_of_threads_does_not_change_a_bit():
    """Heads depend on it, and a head is part of a question: with other bits, a new one would be charged."""
    table = torch.randn(700, 20, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            module._known.clear()
            found.append(public(table, "auto", 101))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0].phi, found[1].phi)
    for one, other in zip(found[0].moments, found[1].moments, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("alignment", "kind", "problem"),
    [
        (TABLE, "scattering", "privacy.features = 'scattering': scattering needs images"),
        (TABLE[:0], "auto", "privacy.features = 'auto': the alignment set must hold at least one record"),
        (torch.full((3, 2), math.nan), "fourier", "privacy.features = 'fourier': .* finite numbers only"),
    ],
)
def test_a_set_that_gives_no_features_is_the_users_mistake(alignment, kind, problem):
    with pytest.raises(UserError, match=problem) as caught:
        public(alignment, kind, 9)
    assert "\n" not in str(caught.value)
