"""Heads on public features: what they find together, what each makes of it, and how sure they are where."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.randomness import Stream
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.features.kernel import KernelFeatures
from fedbnn.federation.parties import Client
from fedbnn.federation.sites import make_sites
from fedbnn.methods.head import Head, centred
from fedbnn.models.bayes import Prediction
from fedbnn.models.training import Records
from tests.federation_sample import small_sites
from tests.plain_head import fitted, least

RNG = Stream((0, "test"))
SD, TRUST = 2.0, 0.1


def clients_of(records: Sequence[tuple[Sequence[int], int]], alignment: int = 40) -> list[Client]:
    """Clients that hold so many digits each, of these classes in turn."""
    data = DataSettings(alignment=alignment)
    dealt = federate(load_dataset(data), data, PartitionSettings(clients=1, classes_per_client=10), 0)
    [site] = make_sites(dealt, ["mlp"])
    x, y = site.evaluation.x, site.evaluation.y
    found = []
    for index, (classes, count) in enumerate(records):
        of_class = [(y == c).nonzero()[index :: len(records), 0] for c in classes]
        rows = torch.stack([of_class[n % len(classes)][n // len(classes)] for n in range(count)])
        own = Records(x[rows], y[rows])
        found.append(dataclasses.replace(site.client, index=index, train=own, clients=len(records), identity=None))
    return found


UNLIKE = (([0, 1, 2, 3], 25), ([2, 3, 4, 5, 6], 12), ([6, 7, 8, 9], 6))


def rounds_of(clients: Sequence[Client], rounds: int) -> tuple[Tensor, list[Tensor]]:
    """The mean of what clients send in the end, and what each sends."""
    heads = [Head.of(client, SD, TRUST) for client in clients]
    mean: Tensor | None = None
    sent: list[Tensor] = []
    for _ in range(rounds):
        sent = [head.speak(mean, sent[i] if sent else None) for i, head in enumerate(heads)]
        mean = torch.stack(sent).mean(0)
    assert mean is not None
    return mean, sent


def of_all_records(clients: Sequence[Client]) -> Tensor:
    """What one head fitted to all records says on the alignment set, by Newton's method."""
    features = Head.of(clients[0], SD, TRUST).features
    z = torch.cat([features(client.train.x) for client in clients])
    y = one_hot(torch.cat([client.train.y for client in clients]), 10).double()
    nothing = torch.zeros(10, dtype=torch.float64)
    weights = least(z, y, nothing, features.dimensions / SD**2)
    return centred(features.alignment @ weights[:-1] + weights[-1])


# What heads find together


@pytest.mark.parametrize("records", [UNLIKE, (([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 30),)], ids=["unlike", "alone"])
def test_the_mean_becomes_what_one_head_of_all_records_says(records: Any) -> None:
    clients = clients_of(records)
    expected = of_all_records(clients)
    apart = [float((rounds_of(clients, rounds)[0] - expected).norm() / expected.norm()) for rounds in (1, 10, 150)]
    assert apart[0] > 0.2
    assert apart[1] < 0.4 * apart[0]
    assert apart[2] < 0.01


def test_the_mean_of_heads_that_are_fitted_apart_is_something_else() -> None:
    """What the heads gain by keeping what they hold and the others do not."""
    clients = clients_of(UNLIKE)
    expected = of_all_records(clients)
    alone = torch.stack([of_all_records([client]) for client in clients]).mean(0)
    assert float((alone - expected).norm() / expected.norm()) > 0.2


def test_what_clients_hold_beyond_the_mean_adds_up_to_nothing() -> None:
    mean, sent = rounds_of(clients_of(UNLIKE), 15)
    sites = torch.stack([centred(one.double()) - centred(mean.double()) for one in sent])
    assert float(sites.abs().max()) > 0.5
    assert float(sites.sum(0).abs().max()) < 1e-5 * float(sites.abs().max())


def test_the_order_of_clients_does_not_matter() -> None:
    clients = clients_of(UNLIKE)
    mean, sent = rounds_of(clients, 4)
    other_mean, other_sent = rounds_of([clients[i] for i in (2, 0, 1)], 4)
    torch.testing.assert_close(other_mean, mean, rtol=0, atol=1e-4)
    for position, client in enumerate((2, 0, 1)):
        torch.testing.assert_close(other_sent[position], sent[client], rtol=0, atol=1e-4)


def test_what_is_added_to_all_classes_alike_is_neither_said_nor_heard() -> None:
    [client] = clients_of([([0, 1, 2], 12)])
    head = Head.of(client, SD, TRUST)
    mean = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    sent = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    found = head.speak(mean, sent)
    assert found.dtype == torch.float32
    assert float(found.sum(1).abs().max()) < 1e-4
    shift = torch.linspace(-5, 5, 40).unsqueeze(1)
    torch.testing.assert_close(head.speak(mean + shift, sent - 2 * shift), found, rtol=0, atol=1e-4)


# What a client makes of it


def test_trust_without_end_returns_the_consensus_and_hardly_any_the_clients_own_records() -> None:
    clients = clients_of(UNLIKE)
    mean, _ = rounds_of(clients, 10)
    client = clients[1]
    certain, doubtful = Head.of(client, SD, 1e8), Head.of(client, SD, 1e-12)
    points = certain.features.alignment
    said = centred(certain.fit(mean))
    torch.testing.assert_close(points @ said[:-1] + said[-1], centred(mean.double()), rtol=0, atol=1e-2)
    own = certain.features(client.train.x) @ doubtful.fit(mean)[:-1] + doubtful.fit(mean)[-1]
    shares = client.own_shares
    assert ((own + shares.log()).argmax(1) == client.train.y).all()


@pytest.mark.parametrize("heard", [False, True])
def test_the_head_is_the_maximum_of_its_posterior(heard: bool) -> None:
    clients = clients_of(UNLIKE)
    mean = rounds_of(clients, 3)[0] if heard else None
    for client in clients:
        head = Head.of(client, SD, TRUST)
        points, z = head.features.alignment, head.features(client.train.x)
        expected = fitted(z, client.train.y, points, 10, len(clients), SD, TRUST, mean)
        found = head.fit(mean)
        said = [(points @ w[:-1] + w[-1]).softmax(1) for w in (found, expected)]
        torch.testing.assert_close(*said, rtol=0, atol=1e-4)


# How sure it is


def spread(head: Head, x: Tensor, alone: bool) -> Tensor:
    """The variance of a logit over draws, at each record."""
    weights = torch.zeros(head.features.dimensions + 1, 10, dtype=torch.float64)
    return head.draws(weights, 0.0 if alone else head.records, x, 400, RNG).var(0).mean(1)


def by_hand(head: Head, x: Tensor, alone: bool) -> Tensor:
    """z^T H^-1 z, H as the module's docstring has it."""
    client, n = head.client, len(head.client.train)

    def with_one(z: Tensor) -> Tensor:
        return torch.cat([z, torch.ones(len(z), 1)], 1)

    own, points = with_one(head.features(client.train.x)), with_one(head.features.alignment)
    precision = torch.eye(own.shape[1], dtype=torch.float64) * head.features.dimensions / SD**2 + TRUST * own.T @ own
    if not alone:
        precision += TRUST * client.clients * n * points.T @ points / len(points)
    z = with_one(head.features(x))
    return (z * torch.linalg.solve(precision, z.T).T).sum(1)


@pytest.mark.parametrize("alone", [True, False])
def test_the_variance_of_what_it_says_is_that_of_laplaces_approximation(alone: bool) -> None:
    client = clients_of(UNLIKE)[0]
    head = Head.of(client, SD, TRUST)
    x = torch.cat([client.alignment[:5], client.train.x[:5]])
    torch.testing.assert_close(spread(head, x, alone), by_hand(head, x, alone), rtol=0.15, atol=0)


def test_before_anything_was_learned_a_logit_varies_as_its_prior_says() -> None:
    """On average over the alignment set: sd^2, and 1 / penalty for the bias."""
    client = clients_of([([0, 1], 4)])[0]
    head = Head.of(dataclasses.replace(client, train=client.train.take(torch.arange(0))), SD, TRUST)
    found = spread(head, client.alignment, True).mean()
    assert float(found) == pytest.approx(SD**2 * (1 + 1 / head.features.dimensions), rel=0.1)


def test_the_more_records_the_surer() -> None:
    everything = clients_of([(range(10), 200)])[0]
    x = everything.train.x[-20:]
    for alone in (True, False):
        steps = []
        for count in (1, 5, 20, 80, 180):
            client = dataclasses.replace(everything, train=everything.train.take(torch.arange(count)))
            steps.append(spread(Head.of(client, SD, TRUST), x, alone))
        for fewer, more in itertools.pairwise(steps):
            assert (more < fewer).all()  # of every record, with the same noise
    assert (spread(Head.of(everything, SD, TRUST), x, False) < spread(Head.of(everything, SD, TRUST), x, True)).all()


# Beyond the alignment set


def predicted(head: Head, x: Tensor, count: int = 200) -> Prediction:
    said = head.draws(head.fit(None), 0.0, x, count, RNG) + head.beyond(x, count, RNG)
    return Prediction.from_draws(said.softmax(2))


def test_what_is_added_grows_with_what_is_open_and_with_novelty() -> None:
    """At points of the alignment set nothing, but for those few that are far from all others."""
    client = clients_of([(range(10), 60)], alignment=400)[0]
    head = Head.of(client, 3.5, TRUST)
    assert isinstance(head.features, KernelFeatures)
    novelty = head.standard.novelty(head.standard.alignment)
    added = head.beyond(client.alignment, 2000, RNG)
    assert float(added[:, novelty <= 1].abs().max()) < 1e-5
    strange = 30 * torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for x in (strange, client.train.x[:20]):
        v, left = head.standard.novelty(head.standard(x)).clamp_min(1), head.features.open(x)
        expected = 3.5**2 * (1 - 1 / v) + left
        found = head.beyond(x, 2000, RNG).var(0)
        torch.testing.assert_close(found, expected.unsqueeze(1).expand(-1, 10), rtol=0.2, atol=1e-6)
    assert (head.standard.novelty(head.standard(strange)) > 1).all()


def test_what_is_near_is_told_by_own_records_where_the_alignment_set_is_of_another_kind() -> None:
    client = clients_of([(range(10), 60)], alignment=400)[0]
    assert Head.of(client, SD, TRUST).apart == 1
    noise = 0.2 * torch.randn(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    head = Head.of(dataclasses.replace(client, alignment=noise), 3.5, TRUST)
    novelty = head.standard.novelty(head.standard(client.train.x))
    assert head.apart == novelty.median() > 1.5
    near = novelty <= head.apart
    assert int(near.sum()) == 30
    left = head.features.open(client.train.x)[near].unsqueeze(1).expand(-1, 10)
    torch.testing.assert_close(head.beyond(client.train.x, 2000, RNG).var(0)[near], left, rtol=0.2, atol=1e-6)
    further = 3 * client.train.x
    v = head.standard.novelty(head.standard(further)) / head.apart
    assert bool((v > 1).any())
    expected = 3.5**2 * (1 - 1 / v.clamp_min(1)) + head.features.open(further)
    found = head.beyond(further, 2000, RNG).var(0)
    torch.testing.assert_close(found, expected.unsqueeze(1).expand(-1, 10), rtol=0.2, atol=1e-6)


def test_the_same_draw_is_one_function_of_all_inputs() -> None:
    """Whether inputs come together or apart."""
    client = clients_of([(range(10), 60)])[0]
    head = Head.of(client, SD, TRUST)
    strange = 30 * torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    together = head.beyond(strange, 3, RNG)
    apart = torch.cat([head.beyond(one[None], 3, RNG) for one in strange], 1)
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-4)


def test_inputs_from_elsewhere_are_met_with_doubt() -> None:
    client = clients_of([(range(10), 200)], alignment=400)[0]
    head = Head.of(client, 3.5, TRUST)
    strange = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    usual, foreign = predicted(head, client.train.x[:50]), predicted(head, strange)
    assert float(foreign.epistemic.mean()) > 2 * float(usual.epistemic.mean())


# Tables


def patients(path: Path) -> Client:
    """Age, blood pressure and four more columns; the older, the likelier ill."""
    rng = np.random.default_rng(0)
    age, pressure = rng.normal(55, 9, 400), rng.normal(130, 17, 400)
    x = np.column_stack([age, pressure, rng.normal(size=(400, 3)), rng.integers(0, 2, 400)])
    y = (age + rng.normal(scale=6, size=400) > 55).astype(int)
    np.savez(path / "table.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    data = DataSettings(source="npz", path=str(path / "table.npz"), alignment=100)
    partition = PartitionSettings(clients=2, classes_per_client=2, records_per_class=25)
    return make_sites(federate(load_dataset(data), data, partition, 0))[0].client


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_patient_of_nine_hundred_years_is_far_from_all_others(column: int, tmp_path: Path) -> None:
    client = patients(tmp_path)
    head = Head.of(client, 3.5, TRUST)
    x, column_of_all = client.alignment[:1].repeat(4, 1), client.alignment[:, column]
    x[:, column] = column_of_all.mean() + column_of_all.std() * torch.tensor([0.0, 1.0, 20.0, (900 - 55) / 9])
    novelty = head.standard.novelty(head.standard(x))
    assert (novelty[:2] < 1).all()
    assert novelty[2] > 3
    assert novelty[3] > 50
    found = predicted(head, x, 500)
    sure = Prediction.from_draws(head.draws(head.fit(None), 0.0, x, 500, RNG).softmax(2))
    assert torch.equal(found.draws[:, :2], sure.draws[:, :2])
    if column > 0:  # where labels do not depend on it, a head knows that it does not know
        assert float(found.epistemic[2:].min()) > 2 * float(found.epistemic[:2].max())
    else:  # a straight line goes on: doubt is added to what it says
        assert float(found.epistemic[2]) > 1.2 * float(sure.epistemic[2])
        assert float(found.probs[2].max()) < float(sure.probs[2].max())


@pytest.mark.parametrize("size", [1e4, 1e9, 1e20])
def test_a_wrong_unit_in_a_table_does_not_end_a_turn(size: float, tmp_path: Path) -> None:
    client = patients(tmp_path)
    x = client.train.x.clone()
    x[3] *= size
    head = Head.of(dataclasses.replace(client, train=Records(x, client.train.y)), SD, TRUST)
    sent = head.speak(None, None)
    again = head.speak(sent, sent)
    weights = head.fit(again)
    assert all(bool(one.isfinite().all()) for one in (sent, again, weights))
    assert predicted(head, client.alignment).probs.isfinite().all()


def test_a_record_without_finite_numbers_says_nothing() -> None:
    client = small_sites(1, models=("mlp",))[0].client
    spoilt = client.train.x.clone()
    spoilt[[2, 5], 0, 0, 0] = torch.tensor([math.nan, math.inf])
    rest = torch.tensor([i for i in range(len(spoilt)) if i not in (2, 5)])
    one = Head.of(dataclasses.replace(client, train=Records(spoilt, client.train.y)), SD, TRUST)
    other = Head.of(dataclasses.replace(client, train=client.train.take(rest)), SD, TRUST)
    torch.testing.assert_close(one.speak(None, None), other.speak(None, None), rtol=0, atol=1e-5)
    nothing = Head.of(dataclasses.replace(client, train=Records(spoilt * math.nan, client.train.y)), SD, TRUST)
    assert nothing.speak(None, None).eq(0).all()
    assert nothing.fit(None).isfinite().all()
