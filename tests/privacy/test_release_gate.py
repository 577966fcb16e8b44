"""The one way out: what is charged, what is refused, what leaves, and what a server cannot decide."""

import json
import math
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from scipy.stats import kstest, norm
from torch.func import grad, vmap
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.data.identity import identify
from fedbnn.features.maps import FeatureMap
from fedbnn.methods.mechanisms.dp_teacher import private_head
from fedbnn.methods.mechanisms.output_perturbation import perturbed
from fedbnn.privacy import (
    Account,
    Budget,
    Guarantee,
    Ledger,
    PrivacySettings,
    ReleaseGate,
    onto_simplex,
    simplex_sensitivity,
)
from fedbnn.privacy import head as heads
from fedbnn.privacy import release_gate as module
from fedbnn.privacy.cost import total
from fedbnn.privacy.head import Shape
from fedbnn.privacy.sums import UNIT, with_noise

GENERATOR = torch.Generator().manual_seed(0)
ALIGNMENT = torch.randn(40, 5, generator=GENERATOR)
X = torch.randn(30, 5, generator=GENERATOR)
Y = torch.randint(3, (30,), generator=GENERATOR)
ZERO = torch.zeros(7, 3)
KINDS = ("continuous", "discrete")


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledgers"


def a_gate(folder, x=X, y=Y, alignment=ALIGNMENT, classes=3, multiplicity=1, rounds=2, **changes):
    chosen = {"mechanism": "dp_teacher", "dimensions": 7, **changes}
    privacy = PrivacySettings(**chosen)
    account = Account(folder, identify(x.numpy(), [str(label) for label in y.tolist()]), "client", privacy.budget)
    return ReleaseGate(x, y, classes, alignment, privacy, rounds, multiplicity, account)


def head(seed):
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))


def lines(gate):
    file = gate.account.ledger / "ledger.jsonl"
    return file.read_bytes().splitlines() if file.exists() else []


def charges(gate):
    return Ledger.read(gate.account.ledger).entries


def released(gate):
    """All bytes that may have left."""
    return {path.name: path.read_bytes() for path in sorted((gate.account.ledger / "releases").glob("*.bin"))}


class Spy:
    """Stands in for the noise: remembers what it is asked to hide, and how well."""

    def __init__(self, quiet=False):
        self.totals, self.sds, self.kinds, self.quiet = [], [], [], quiet

    def __call__(self, total, sd, noise):
        self.totals.append(total.clone())
        self.sds.append(sd)
        self.kinds.append(noise)
        return total if self.quiet else with_noise(total, sd, noise)


@pytest.fixture
def spy(monkeypatch):
    found = Spy()
    monkeypatch.setattr(module, "with_noise", found)
    return found


def exact_noise(epsilon, delta, releases):
    """sigma / Delta, from Balle and Wang's formula by another root finder."""

    def excess(mu):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return math.sqrt(releases) / brentq(excess, 1e-3, 50, xtol=1e-14)


def assert_normal(z):
    """Six standard errors, and p-values of 1e-8: the system's randomness cannot be seeded."""
    assert abs(z.mean()) < 6 / math.sqrt(len(z))
    assert abs(z.square().mean() - 1) < 6 * math.sqrt(2 / len(z))
    assert abs((z[1:] * z[:-1]).mean()) < 6 / math.sqrt(len(z))
    assert kstest(z.numpy(), "norm").pvalue > 1e-8


def within(difference, sensitivity):
    return sum(n * n for n in difference.flatten().tolist()) <= (Fraction(sensitivity) * 2**32) ** 2


# What leaves


def loss(weights, one, label):
    return functional.cross_entropy((one @ weights)[None], label[None])


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_the_clipped_sum_with_the_noise_that_was_promised(folder, kind):
    """Against gradients by autograd and noise by another formula: 20 releases of 1001 numbers."""
    x, y = torch.randn(50, 5, generator=GENERATOR), torch.randint(10, (50,), generator=GENERATOR)
    gate = a_gate(folder, x, y, classes=10, dimensions=101, releases=20, noise=kind)
    phi = gate.public.map(x).double()
    clip = math.sqrt(0.9)
    sd = exact_noise(3.0, 1e-5, 20) * math.hypot(clip, clip / 3)
    noise = []
    for number in range(20):
        at = 30.0 * torch.randn(101, 10, generator=torch.Generator().manual_seed(number))
        each = vmap(grad(loss), (None, 0, 0))(at.double(), phi, y).flatten(1)
        assert each.norm(dim=1).max() > 1.2 * clip
        each = each * (clip / each.norm(dim=1, keepdim=True)).clamp_max(1)
        expected = torch.cat([-each.sum(0), torch.tensor([50 * clip / 3])])
        sent = gate.sums(at)
        assert sent.dtype == torch.int64
        noise.append((sent.double() * UNIT - expected) / sd)
    assert_normal(torch.cat(noise))
    correlation = torch.corrcoef(torch.stack(noise)) - torch.eye(20)
    assert correlation.abs().max() < 6.5 / math.sqrt(1011)  # 190 pairs
    assert 2.9999 < gate.guarantee().epsilon <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_leave_on_the_simplex_and_with_noise_for_all_of_them(folder, kind):
    """Logits are put on the simplex, by bisection here; the noise is for sqrt(2 m), not for sqrt(2)."""
    alignment = torch.randn(60, 5, generator=GENERATOR)
    gate = a_gate(
        folder,
        alignment=alignment,
        classes=50,
        mechanism="output_perturbation",
        epsilon=8.0,
        releases=2,
        noise=kind,
    )
    sd = exact_noise(8.0, 1e-5, 2) * math.sqrt(2 * 60)
    noise = []
    for number in range(2):
        logits = 5 * torch.randn(60, 50, generator=torch.Generator().manual_seed(number))
        sent = perturbed(gate, logits, None, number)
        assert sent.dtype == torch.float32
        assert sent.shape == (60, 50)
        noise.append((sent.double() - torch.stack([projected(row) for row in logits.double()])) / sd)
    assert_normal(torch.cat(noise).flatten())
    assert abs((noise[0] * noise[1]).mean()) < 6 / math.sqrt(3000)


def projected(row):
    """The nearest point of the simplex: (v - t)_+ with the t at which it sums to one, by bisection."""
    low, high = float(row.max()) - 1, float(row.max())
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if float((row - middle).clamp_min(0).sum()) > 1 else (low, middle)
    return (row - high).clamp_min(0)


def test_a_teacher_is_made_of_as_many_releases_as_planned_and_nothing_else(folder, spy):
    gate = a_gate(folder, releases=3)
    found = private_head(gate)
    assert len(charges(gate)) == len(spy.totals) == 3
    assert torch.equal(private_head(a_gate(folder, releases=3)), found)
    assert len(spy.totals) == 3
    # From the stored bytes alone, in the order of the ledger: nothing else of the records is in it.
    at, sd = torch.zeros(7, 3), exact_noise(3.0, 1e-5, 3) * gate.shape.sensitivity
    stored = released(gate)
    for charge in charges(gate):
        total = np.frombuffer(stored[f"{charge.release}.bin"], np.int64) * UNIT
        at = heads.improved(at, torch.from_numpy(total), sd, gate.public.moments, gate.shape, heads.TEACHER)
    torch.testing.assert_close(at, found, rtol=1e-4, atol=1e-5)


def test_a_teacher_without_much_noise_learns(folder):
    """Labels that the features can tell: from many records and a large budget, nearly all are found."""
    x = torch.randn(3000, 5, generator=GENERATOR)
    y = x[:, :3].argmax(1)
    gate = a_gate(
        folder, x, y, alignment=torch.randn(200, 5, generator=GENERATOR), dimensions=61, epsilon=8.0, releases=3
    )
    found = private_head(gate)
    assert ((gate.public.map(x) @ found).argmax(1) == y).double().mean() > 0.8


# What is charged


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_question_gets_the_same_bytes_and_is_charged_once(folder, kind):
    gate = a_gate(folder, noise=kind)
    first = gate.sums(ZERO)
    before = lines(gate)
    for again in (gate, a_gate(folder, noise=kind)):
        assert torch.equal(again.sums(ZERO.clone()), first)
        assert lines(again) == before
    assert len(charges(gate)) == 1
    assert 2.9999 < gate.guarantee().epsilon <= 3


def test_outputs_are_asked_for_by_round_and_by_what_was_received(folder, spy):
    gate = a_gate(folder, mechanism="output_perturbation", releases=8)
    probs = torch.full((40, 3), 1 / 3)
    received = torch.rand(40, 3, generator=GENERATOR)
    first = perturbed(gate, probs, None, 0)
    # Whatever the model has become meanwhile: the question was answered.
    assert torch.equal(perturbed(gate, probs.roll(1, 1) ** 2, None, 0), first)
    assert len(spy.totals) == 1
    for other, number in ((None, 1), (received, 0), (received, 1), (received + 1e-7, 1)):
        perturbed(gate, probs, other, number)
    assert len(charges(gate)) == len(spy.totals) == 5


CHANGES = [
    {"alignment": ALIGNMENT + 1e-6},
    {"alignment": ALIGNMENT[:39]},
    {"epsilon": 2.999},
    {"delta": 1.01e-5},
    {"dimensions": 9},
    {"features": "fourier"},
    {"noise": "continuous"},
    {"releases": 17},
    {"multiplicity": 2},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_another_question_is_another_release_and_is_charged(folder, changes):
    wide = {"releases": 16, "epsilon": 3.0}
    first = a_gate(folder, **wide).sums(ZERO)
    other = a_gate(folder, **wide | changes)
    second = other.sums(torch.zeros(other.shape.features, 3))
    assert first.shape != second.shape or (first != second).all()
    one, two = charges(other)
    assert one.inputs != two.inputs
    assert min(one.cost.mu, two.cost.mu) > 0.1
    assert Ledger.read(other.account.ledger).cost().mu == pytest.approx(math.hypot(one.cost.mu, two.cost.mu), rel=1e-12)


def test_another_head_is_another_question_to_the_last_bit(folder):
    gate = a_gate(folder, releases=16)
    nearly = ZERO.clone()
    nearly[3, 1] = 1e-45
    for at in (ZERO, nearly, -ZERO, ZERO.double(), head(0)):
        gate.sums(at)
    assert len(charges(gate)) == 5


def test_every_release_up_to_the_cap_and_none_beyond(folder, spy):
    """Refused before records are touched: features, labels and noise are out of reach."""
    gate = a_gate(folder, releases=4)
    for number in range(4):
        gate.sums(head(number))
        assert gate.guarantee().epsilon == pytest.approx(gate.plan.spent(number + 1), rel=1e-9)
    assert gate.guarantee().epsilon <= 3
    before, stored = lines(gate), released(gate)

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("records must not be touched")

        __len__ = __getitem__ = __iter__ = __getattr__

    blind = replace(gate, x=Untouchable(), y=Untouchable())
    for number in range(4):
        assert torch.equal(blind.sums(head(number)), gate.sums(head(number)))
    sure = torch.ones(40, 3) / 3
    for wish in (
        lambda: blind.sums(head(4)),
        lambda: private_head(blind),
        lambda: perturbed(blind, sure, None, 0),
    ):
        with pytest.raises(UserError, match=r"refused: epsilon 3\.000 is spent .* the cap is 3 ") as caught:
            wish()
        assert "\n" not in str(caught.value)
    assert lines(gate) == before
    assert released(gate) == stored
    assert len(spy.totals) == 4


def test_the_charge_is_on_disk_before_records_are_touched(folder, monkeypatch):
    seen = []

    def look(*arguments):
        seen.append([json.loads(line)["kind"] for line in lines(gate)])
        return heads_contributions(*arguments)

    heads_contributions = heads.contributions
    monkeypatch.setattr(heads, "contributions", look)
    gate = a_gate(folder)
    gate.sums(ZERO)
    assert seen == [["ledger", "charge"]]


def test_if_working_it_out_fails_the_charge_stands_and_the_same_question_completes_it(folder, monkeypatch):
    gate = a_gate(folder)
    assert gate.public  # worked out before: it is the records' features that fail
    with monkeypatch.context() as patch:
        patch.setattr(FeatureMap, "__call__", lambda self, x: 1 / 0)
        patch.setattr("fedbnn.features.public._seen", {})
        patch.setattr(module.ReleaseGate, "public", a_gate(folder / "other").public)
        with pytest.raises(ZeroDivisionError):
            gate.sums(ZERO)
    assert 2.9999 < gate.guarantee().epsilon <= 3
    with pytest.raises(UserError, match="refused"):
        a_gate(folder).sums(head(1))
    a_gate(folder).sums(ZERO)
    assert len(charges(gate)) == 1


@pytest.mark.parametrize("lower", [{"epsilon": 1.0}, {"delta": 1e-9}])
def test_a_lower_budget_counts_what_was_spent_under_the_higher(folder, lower):
    a_gate(folder).sums(ZERO)
    with pytest.raises(UserError, match=r"refused: epsilon \d"):
        a_gate(folder, **lower).sums(head(1))


def test_a_higher_budget_counts_it_too(folder):
    a_gate(folder).sums(ZERO)
    richer = a_gate(folder, epsilon=8.0)
    with pytest.raises(UserError, match="refused"):  # all eight would be for this release alone
        richer.sums(ZERO)
    half = a_gate(folder, epsilon=8.0, releases=2)
    half.sums(ZERO)
    assert 3 < half.guarantee().epsilon <= 8
    with pytest.raises(UserError, match="refused"):
        half.sums(head(1))


@pytest.mark.parametrize("multiplicity", [1, 2, 9])
@pytest.mark.parametrize("releases", [1, 4])
def test_a_record_that_several_clients_hold_gets_more_noise_for_the_same_charge(folder, spy, multiplicity, releases):
    """g holders release it g times: all their ledgers together are within the budget."""
    gate = a_gate(folder, multiplicity=multiplicity, releases=releases)
    gate.sums(ZERO)
    alone = exact_noise(3.0, 1e-5, releases) * gate.shape.sensitivity
    assert spy.sds == [pytest.approx(alone * math.sqrt(multiplicity), rel=3e-6)]
    [charge] = charges(gate)
    sensitivity = math.hypot(gate.shape.clip, gate.shape.count_weight)
    assert charge.cost.mu == pytest.approx(math.sqrt(multiplicity) * sensitivity / spy.sds[0], rel=1e-9)
    assert charge.cap == Budget(3.0, 1e-5)


def test_a_guarantee_says_what_is_on_record(folder):
    gate = a_gate(folder, delta=1e-6)
    assert not folder.exists()
    assert gate.guarantee() == Guarantee(0.0, 1e-6, "record", "dp_teacher")
    assert not folder.exists()
    gate.sums(ZERO)
    assert gate.guarantee().epsilon == Ledger.read(gate.account.ledger).spent(1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("holders", [1, 100])
def test_all_releases_of_discrete_noise_together_are_within_the_budget(folder, spy, epsilon, holders):
    """What is charged is the Gaussian's part and how far all numbers of all releases are from it."""
    count = 20_000 // holders
    gate = a_gate(folder, epsilon=epsilon, releases=count, multiplicity=holders, noise="discrete")
    gate.sums(ZERO)
    [charge] = charges(gate)
    assert charge.cost.mu == pytest.approx(math.sqrt(holders) * gate.shape.sensitivity / spy.sds[0], rel=1e-9)
    assert charge.cost.gap == pytest.approx(holders * gate.shape.numbers * 2500 / (8 * (spy.sds[0] / UNIT) ** 2))
    together = total([charge.cost] * count)
    assert together.fits(gate.settings.budget)
    assert together.epsilon(1e-5) == pytest.approx(epsilon, rel=1e-4)


def test_noise_that_cannot_be_drawn_is_refused_and_costs_nothing(folder):
    gate = a_gate(folder, epsilon=1e-6, releases=1000)
    with pytest.raises(UserError, match=r"privacy\.noise = 'discrete': .* cannot be drawn") as caught:
        gate.release("question", 3, 1e3, lambda: torch.zeros(3, dtype=torch.int64))
    assert "\n" not in str(caught.value)
    assert not lines(gate)


# Whose ledger it is


def test_each_set_of_records_has_its_own_ledger_and_all_have_one_budget(folder):
    gates = [
        a_gate(folder),
        a_gate(folder, X + torch.eye(30, 5) * 1e-6),
        a_gate(folder, y=(Y + torch.eye(30).long()[4]) % 3),
        a_gate(folder, X[:29], Y[:29]),
    ]
    assert len({gate.account.fingerprint for gate in gates}) == 4
    gates[0].sums(ZERO)
    assert gates[0].account.ledger.parent == folder
    assert Ledger.read(gates[0].account.ledger).fingerprint == gates[0].account.fingerprint
    assert Ledger.read(gates[0].account.ledger).owner == "client"
    for gate in gates[1:]:
        with pytest.raises(UserError, match=r"refused: epsilon 3\.000 is spent"):
            gate.sums(ZERO)
        assert gate.guarantee() == gates[0].guarantee()


def test_the_same_records_however_they_lie_share_a_ledger(folder):
    again = [(X.flip(0), Y.flip(0)), (X.flip(1), Y), (X.double(), Y)]
    gates = [a_gate(folder), *(a_gate(folder, x, y) for x, y in again)]
    assert len({gate.account.fingerprint for gate in gates}) == 1
    x = torch.rand(6, 3, 8, 8, generator=GENERATOR)
    one, other = (a_gate(folder, images, Y[:6]) for images in (x, x.clone(memory_format=torch.channels_last)))
    assert one.account.fingerprint == other.account.fingerprint


# What a server cannot decide


@pytest.mark.parametrize("scale", [0.0, 1e4, -1e6], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_clients_own_whatever_head_is_sent(folder, spy, scale, kind):
    gate = a_gate(folder, noise=kind)
    gate.sums(scale * torch.eye(7, 3))
    assert spy.sds == [pytest.approx(exact_noise(3.0, 1e-5, 1) * math.sqrt(2 / 3 * 10 / 9), rel=3e-6)]
    assert spy.kinds == [kind]


@pytest.mark.parametrize("shape", [(7, 4), (3, 7), (6, 3), (21,), (7, 3, 1), ()])
def test_a_head_of_another_shape_is_refused_and_costs_nothing(folder, shape):
    gate = a_gate(folder)
    with pytest.raises(UserError, match=r"it must be \(7, 3\)") as caught:
        gate.sums(torch.zeros(shape))
    assert "\n" not in str(caught.value)
    assert not folder.exists()


@pytest.mark.parametrize("value", [1.001e6, -1e30, math.nan, math.inf, -math.inf], ids=str)
def test_a_head_beyond_the_limit_is_refused_and_costs_nothing(folder, value):
    gate, sent = a_gate(folder), head(0)
    sent[3, 1] = value
    with pytest.raises(UserError, match="not finite or above 1e\\+06") as caught:
        gate.sums(sent)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


# Records that are not as they should be


def total_of(x, y, at, alignment=ALIGNMENT):
    """The sum before noise, as it goes through the gate."""
    quiet = Spy(quiet=True)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as place:
        patch.setattr(module, "with_noise", quiet)
        a_gate(Path(place), x, y, alignment).sums(at)
    [total] = quiet.totals
    return total


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_without_finite_numbers_is_as_if_it_were_not_there(value):
    spoiled = X.clone()
    spoiled[4, 2] = value
    kept = torch.arange(30) != 4
    assert torch.equal(total_of(spoiled, Y, head(0)), total_of(X[kept], Y[kept], head(0)))


@pytest.mark.parametrize("label", [-1, 3, 2**62, -(2**63)])
def test_a_label_that_is_no_class_is_as_if_its_record_were_not_there(label):
    y = Y.clone()
    y[4] = label
    kept = torch.arange(30) != 4
    assert torch.equal(total_of(X, y, head(0)), total_of(X[kept], Y[kept], head(0)))


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8)], ids=["table", "images"])
def test_a_client_without_records_sends_noise(shape):
    alignment = torch.rand(20, *shape, generator=GENERATOR)
    total = total_of(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), ZERO, alignment)
    assert not total.any()


def test_more_records_than_are_held_at_once_are_all_in_the_sum(monkeypatch):
    whole = total_of(X, Y, head(0))
    monkeypatch.setattr(module, "_ROWS", 7)
    assert torch.equal(total_of(X, Y, head(0)), whole)
    assert torch.equal(total_of(X[:11], Y[:11], head(0)) + total_of(X[11:], Y[11:], head(0)), whole)


raw = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(width=32),
    st.sampled_from([0.0, 3e38, -3e38, 1e-45, math.nan, math.inf]),
)


@settings(max_examples=40)
@given(
    arrays(np.float32, (4, 5), elements=raw),
    st.lists(st.integers(-1, 3), min_size=4, max_size=4),
    arrays(np.float32, (7, 3), elements=st.floats(-1e6, 1e6, width=32)),
)
def test_neighbours_are_no_further_apart_than_the_sensitivity(x, y, at):
    """With and without the last record, through features, clipping and the grid, in exact arithmetic."""
    x, y, at = torch.from_numpy(x), torch.tensor(y), torch.from_numpy(at)
    assert within(total_of(x, y, at) - total_of(x[:3], y[:3], at), Shape(7, 3).sensitivity)


# Outputs and the simplex


def outputs_total(probs):
    quiet = Spy(quiet=True)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as place:
        patch.setattr(module, "with_noise", quiet)
        gate = a_gate(Path(place), alignment=ALIGNMENT[: len(probs)], classes=probs.shape[1])
        perturbed(gate, probs, None, 0)
    [total], [sd] = quiet.totals, quiet.sds
    return total, sd / gate.plan.noise_multiplier


wild = st.one_of(st.floats(-1, 2), st.floats(), st.sampled_from([1e17, -1e17, 1e30, 1e300, math.nan]))
rows = arrays(np.float64, (6, 3), elements=wild)


@settings(max_examples=40)
@given(rows, rows)
def test_any_two_models_are_no_further_apart_than_the_sensitivity(one, other):
    """Probabilities, logits, NaN: whatever two models put out, in exact arithmetic after the grid."""
    (first, sensitivity), (second, _) = outputs_total(torch.from_numpy(one)), outputs_total(torch.from_numpy(other))
    assert sensitivity == pytest.approx(math.sqrt(2 * 6), rel=2e-6)
    assert within(first - second, sensitivity)


def test_that_sensitivity_is_reached():
    one, other = torch.tensor([[1.0, 0, 0]]).repeat(6, 1), torch.tensor([[0, 1.0, 0]]).repeat(6, 1)
    distance = (outputs_total(one)[0] - outputs_total(other)[0]).double().norm() * UNIT
    assert distance == pytest.approx(simplex_sensitivity(6), rel=1e-9)
    assert simplex_sensitivity(2000) == pytest.approx(63.2, abs=0.05)


@given(arrays(np.float64, (3, 4), elements=st.floats(-50, 50) | st.floats(-1, 1.5)))
def test_projection_is_the_nearest_point_of_the_simplex(values):
    found = onto_simplex(torch.from_numpy(values))
    expected = torch.stack([projected(row) for row in torch.from_numpy(values)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@given(rows)
def test_projection_always_ends_on_the_simplex(values):
    """Also from numbers beside which one is nothing: an error would tell that they are there."""
    found = onto_simplex(torch.from_numpy(values))
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-9)
    finite = np.isfinite(values).all(1)
    assert (found[torch.from_numpy(~finite)] == 1 / 3).all()


def test_projection_leaves_distributions_alone():
    probs = torch.rand(50, 6, generator=GENERATOR).double()
    probs /= probs.sum(1, keepdim=True)
    torch.testing.assert_close(onto_simplex(probs), probs, rtol=0, atol=1e-15)
    assert torch.equal(onto_simplex(torch.eye(4)), torch.eye(4).double())


def test_projection_of_equal_and_of_far_apart_numbers():
    assert torch.equal(onto_simplex(torch.full((1, 4), 1e6)), torch.full((1, 4), 0.25).double())
    assert torch.equal(onto_simplex(torch.tensor([[5.0, 1.0, -1e30]])), torch.tensor([[1.0, 0, 0]]).double())
