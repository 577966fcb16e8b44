"""Robust rules against independent formulas, and what they promise: a minority cannot move them out of the rest."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import trim_mean
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedAvg, FedBNN, FedBNNPaper, FedMD
from fedbnn.methods.consensus import join
from fedbnn.methods.head import Head
from fedbnn.methods.robust import (
    LONGEST,
    SLACK,
    Robust,
    _usual,
    agreement,
    calibration,
    geometric,
    joined,
    kept,
    krum,
    median,
    shortened,
    trimmed,
    trusted,
)
from fedbnn.privacy import PrivacySettings
from tests.federation_sample import small_sites

RULES: tuple[Robust, ...] = ("median", "trimmed", "geometric", "uncertain")


def stack(seed: int, clients: int, points: int = 3, classes: int = 4) -> Tensor:
    return torch.randn(clients, points, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds, sizes = st.integers(0, 10_000), st.integers(1, 9)


@given(seeds, sizes)
def test_median_is_numpys(seed: int, clients: int) -> None:
    x = stack(seed, clients)
    np.testing.assert_array_equal(median(x).numpy(), np.median(x.numpy(), 0))


@given(seeds, sizes, st.floats(0, 0.49))
def test_trimmed_is_scipys(seed: int, clients: int, share: float) -> None:
    x = stack(seed, clients)
    np.testing.assert_allclose(trimmed(x, share).numpy(), trim_mean(x.numpy(), share, 0), rtol=1e-12, atol=1e-12)


@given(seeds, st.integers(3, 9))
def test_the_geometric_median_is_as_near_to_all_as_anything(seed: int, clients: int) -> None:
    """Within a five hundredth: beside a client, where the sum of distances has an edge, the last steps are short."""
    points = stack(seed, clients, points=1)[:, 0]

    def far(place: NDArray[np.float64]) -> float:
        return float(np.linalg.norm(points.numpy() - place, axis=1).sum())

    best = minimize(far, points.numpy().mean(0)).fun
    found = far(geometric(points[:, None])[0].numpy())
    assert found <= 1.002 * min(best, *(far(one) for one in points.numpy()))


def test_the_geometric_median_is_scipys_minimum() -> None:
    x = stack(0, 7, points=1)
    points = x[:, 0].numpy()
    best = minimize(lambda m: np.linalg.norm(points - m, axis=1).sum(), points.mean(0), tol=1e-12)
    np.testing.assert_allclose(geometric(x)[0].numpy(), best.x, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@given(seed=seeds, clients=st.integers(2, 8))
def test_the_order_of_clients_has_no_part(rule: Robust, seed: int, clients: int) -> None:
    x = stack(seed, clients)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    sites = stack(seed + 1, clients)
    for logits in (False, True):
        said = x if logits else x.softmax(-1)
        one, other = (joined(said[at], rule, 0.2, sites[at], logits=logits) for at in (slice(None), order))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["median", "trimmed", "geometric"])
@given(seed=seeds, shift=st.floats(-50, 50), scale=st.floats(0.1, 10))
def test_what_is_moved_and_stretched_alike_moves_and_stretches_the_result(
    rule: Robust, seed: int, shift: float, scale: float
) -> None:
    x = stack(seed, 6)
    found = joined(x * scale + shift, rule, 0.2).double()
    torch.testing.assert_close(found, joined(x, rule, 0.2).double() * scale + shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_where_all_say_the_same_that_is_the_result(rule: Robust) -> None:
    x = stack(0, 1).softmax(-1).expand(5, -1, -1)
    torch.testing.assert_close(joined(x, rule, 0.2).double(), x[0], rtol=1e-6, atol=1e-6)


@given(seeds, st.integers(1, 6), st.sampled_from([1e3, -1e3, 3e37, 0.0]))
def test_a_minority_cannot_move_the_median_out_of_what_honest_clients_say(seed: int, liars: int, lie: float) -> None:
    honest = stack(seed, liars + 1)
    x = torch.cat([honest, torch.full((liars, *honest.shape[1:]), lie, dtype=torch.float64)])
    found = median(x)
    assert bool(((found >= honest.amin(0)) & (found <= honest.amax(0))).all())


@given(seeds, st.sampled_from([1e3, -1e3, 3e37]))
def test_what_is_trimmed_bounds_what_is_left(seed: int, lie: float) -> None:
    honest = stack(seed, 7)
    x = torch.cat([honest, torch.full((3, *honest.shape[1:]), lie, dtype=torch.float64)])
    found = trimmed(x, 0.3)
    assert bool(((found >= honest.amin(0)) & (found <= honest.amax(0))).all())


@given(seeds)
def test_the_geometric_median_stays_within_reach_of_the_honest_ones(seed: int) -> None:
    """With a share e < 1/2 of liars, at most 2 (1 - e) / (1 - 2 e) times as far out as they (Pillutla et al. 2022)."""
    honest = stack(seed, 7)
    x = torch.cat([honest, torch.full((3, *honest.shape[1:]), 1e6, dtype=torch.float64)])
    bound = 2 * 0.7 / 0.4 * honest.norm(dim=-1).amax(0)
    assert bool((geometric(x).norm(dim=-1) <= bound).all())


def test_without_trimming_it_is_the_mean() -> None:
    x = stack(0, 6)
    torch.testing.assert_close(trimmed(x, 0.0), x.mean(0))
    torch.testing.assert_close(joined(x, "trimmed", 0.1), x.mean(0).float())  # a tenth of six is nobody


# Uncertain


@given(seeds, st.integers(2, 9))
def test_where_all_are_unsure_it_is_the_mean(seed: int, clients: int) -> None:
    """Near the uniform distribution nobody can disagree by more than it says itself."""
    probs = (0.02 * stack(seed, clients).clamp(-3, 3)).softmax(-1)
    assert bool((agreement(probs) == 1).all())
    assert bool((trusted(probs) == 1).all())
    torch.testing.assert_close(joined(probs, "uncertain", 0.2).double(), probs.mean(0), rtol=1e-6, atol=1e-6)


def test_weights_by_hand() -> None:
    """Three say (0.8, 0.2), one is sure of the other class, one says that it does not know."""
    probs = torch.tensor([[0.8, 0.2]] * 3 + [[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64).unsqueeze(1)
    found = agreement(probs).squeeze(1)
    lie = (1 - 1.0 + SLACK**2) / (0.8**2 + 0.8**2)
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 1.0, lie, 1.0], dtype=torch.float64))
    assert lie < 0.1


@given(seeds, st.floats(0.5, 1))
def test_who_is_surer_of_what_the_others_deny_counts_less(seed: int, sure: float) -> None:
    honest = torch.tensor([[[0.9, 0.1]]] * 5, dtype=torch.float64)
    weights = [
        float(agreement(torch.cat([honest, torch.tensor([[[1 - p, p]]], dtype=torch.float64)]))[-1, 0])
        for p in (sure * 0.5 + 0.25, sure * 0.5 + 0.5)
    ]
    assert weights[1] <= weights[0]


@given(seeds)
def test_the_expected_disagreement_of_a_calibrated_client_is_what_it_states(seed: int) -> None:
    """p = E[m | what it knows]: with m one of several distributions by chance, E|m - p|^2 <= 1 - |p|^2."""
    rng = np.random.default_rng(seed)
    chance, finer = rng.dirichlet(np.ones(5)), rng.dirichlet(0.3 * np.ones(4), 5)
    p = chance @ finer
    assert chance @ ((finer - p) ** 2).sum(1) <= 1 - (p**2).sum() + 1e-12


@given(seeds, st.integers(4, 10))
def test_what_a_calibrated_client_claims_is_borne_out_on_average(seed: int, kinds: int) -> None:
    """E<m - u, p - u> = E|p - u|^2 where p = E[m | what it knows]: exactly, over all that may be."""
    rng = np.random.default_rng(seed)
    groups = [(rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4), 3)) for _ in range(kinds)]
    found = claimed = 0.0
    for chance, finer in groups:
        p = chance @ finer
        found += float(chance @ ((finer - 0.25) @ (p - 0.25)))
        claimed += float(((p - 0.25) ** 2).sum())
    assert found == pytest.approx(claimed)


def test_who_says_the_opposite_is_left_out_though_it_is_not_sure_of_it() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    honest = truth + 0.3 * torch.randn(7, 40, 4, generator=generator, dtype=torch.float64)
    said = torch.cat([honest, -honest[:3]]) * 0.3
    assert bool((agreement(said.softmax(-1)) == 1).all())  # nobody is sure enough to be found out at a point
    assert trusted(said.softmax(-1)).tolist() == [1.0] * 7 + [0.0] * 3
    slopes = calibration(said.softmax(-1))
    assert bool((slopes[:7] > 0.3).all())
    assert bool((slopes[7:] < 0).all())
    torch.testing.assert_close(
        joined(said, "uncertain", 0.2, logits=True),
        joined(said[:7], "uncertain", 0.2, logits=True),
        rtol=0.05,
        atol=0.05,
    )


@pytest.fixture(scope="module")
def heads() -> list[Head]:
    """Those of ten clients with five of the ten digits each."""
    data = DataSettings(alignment=60)
    partition = PartitionSettings(clients=10, classes_per_client=5, records_per_class=8)
    sites = make_sites(federate(load_dataset(data), data, partition, 10), seed=10)
    return [FedBNN().head_of(site.client) for site in sites]


def consensus(heads: list[Head], liars: dict[int, float], rounds: int = 5) -> tuple[Tensor, list[float]]:
    """What heads find together under the rule if some send a multiple of what they would, and who was left at last."""
    phi_bar, own, trust = None, [None] * len(heads), []
    before = torch.zeros(len(heads), 60, 10)
    for _ in range(rounds):
        own = [head.speak(phi_bar, sent) for head, sent in zip(heads, own, strict=True)]
        sent = torch.stack([liars.get(client, 1.0) * one for client, one in enumerate(own)])
        sites = torch.zeros_like(sent) if phi_bar is None else before - phi_bar
        trust = trusted((sent - sites).double().softmax(-1), sent.double().softmax(-1)).tolist()
        phi_bar, before = joined(sent - sites, "uncertain", 0.3, sites, logits=True), sent
    return phi_bar, trust


@pytest.mark.parametrize(("liars", "strength"), [((0, 7, 8), -1.0), ((4, 5, 9), -3.0)])
def test_opposites_are_found_though_no_class_is_known_to_most(
    heads: list[Head], liars: tuple[int, ...], strength: float
) -> None:
    """What is the opposite of a head with half of the classes is right about the other half of them."""
    expected, everybody = consensus([head for at, head in enumerate(heads) if at not in liars], {})
    assert everybody == [1.0] * 7
    found, trust = consensus(heads, dict.fromkeys(liars, strength))
    assert trust == [float(client not in liars) for client in range(10)]
    assert float((found.argmax(1) == expected.argmax(1)).double().mean()) >= 0.9


@given(seeds, st.integers(1, 4))
def test_a_minority_cannot_say_how_much_of_a_claim_is_borne_out(seed: int, liars: int) -> None:
    """b of an honest client lies between what two honest others say, whatever liars send."""
    honest = stack(seed, liars + 2).softmax(-1)
    lies = stack(seed + 1, liars).mul(20).softmax(-1)
    beyond = honest - 0.25
    shares = [float((beyond[0] * one).sum() / beyond[0].square().sum()) for one in beyond[1:]]
    found = float(calibration(torch.cat([honest, lies]))[0])
    assert min(shares) - 1e-12 <= found <= max(shares) + 1e-12


def test_borne_out_by_hand() -> None:
    """Of two classes: (0.8, 0.2) is borne out by (0.9, 0.1) with 4/3, by (0.6, 0.4) with 1/3: the median is 5/6."""
    probs = torch.tensor([[0.8, 0.2], [0.9, 0.1], [0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)[:, None]
    assert calibration(probs[:3])[0] == pytest.approx(5 / 6)
    assert calibration(probs[:1]).tolist() == [1.0]
    assert calibration(probs)[3] == 1.0  # claims nothing


def test_the_usual_spread_is_that_of_the_upper_half() -> None:
    """However far out four of ten are: of six honest ones from 0.5 to 0.6, who is at 0.2 is not one of them."""
    values = torch.tensor([0.6, 0.58, 0.56, 0.54, 0.52, 0.5, 0.2, 0.1, -3.0, -50.0])
    assert _usual(values).tolist() == [1.0] * 6 + [0.0] * 4


def test_half_of_what_is_usual_may_be_missing() -> None:
    """Those who agree to the last digit do not make a liar of who holds something else."""
    assert _usual(torch.tensor([0.9, 0.9, 0.9, 0.9, 0.46, 0.44])).tolist() == [1.0] * 5 + [0.0]


def test_a_judgement_that_leaves_too_few_leaves_all() -> None:
    """What is believed speaks against two of five, and what was sent against two others."""
    sure, wrong = [0.9, 0.1], [0.1, 0.9]
    believed = torch.tensor([sure, sure, sure, wrong, wrong], dtype=torch.float64)[:, None]
    sent = torch.tensor([wrong, wrong, sure, sure, sure], dtype=torch.float64)[:, None]
    assert trusted(believed).tolist() == [1, 1, 1, 0, 0]
    assert trusted(sent).tolist() == [0, 0, 1, 1, 1]
    assert trusted(believed, sent).tolist() == [1.0] * 5


def test_long_logits_are_shortened_to_a_multiple_of_the_usual_length() -> None:
    x = torch.ones(5, 2, 4, dtype=torch.float64)
    x[4] = 1e4
    found = shortened(x)
    torch.testing.assert_close(found[:4], x[:4])
    torch.testing.assert_close(found[4], torch.full((2, 4), LONGEST, dtype=torch.float64))


def test_the_longer_a_site_beyond_that_the_less_it_moves() -> None:
    """Its pull is LONGEST^2 / length there: none comes back."""
    sites = torch.ones(5, 2, 3, dtype=torch.float64)
    pulls = []
    for length in (1.0, LONGEST, 2 * LONGEST, 1e6):
        sites[4] = length
        pulls.append(float(kept(sites)[4].max()))
    assert pulls == pytest.approx([1.0, LONGEST, LONGEST / 2, LONGEST**2 / 1e6])


@pytest.mark.parametrize("rule", RULES)
def test_where_beliefs_agree_sites_keep_their_mean(rule: Robust) -> None:
    """The fixed point of FedBNN's heads: all believe the same, sites add up to nothing."""
    belief = stack(0, 1).expand(6, -1, -1)
    sites = stack(1, 6)
    sites = sites - sites.mean(0)
    found = joined(belief, rule, 0.2, sites, logits=True).double()
    torch.testing.assert_close(found, belief[0], rtol=1e-5, atol=1e-5)


# Krum


@given(seeds, st.integers(4, 8), st.sampled_from([0.0, 0.2, 0.3, 0.4]))
def test_krum_by_hand(seed: int, clients: int, share: float) -> None:
    x = torch.randn(clients, 5, generator=torch.Generator().manual_seed(seed))
    liars = math.ceil(share * clients - 1e-9)
    near = max(1, min(clients - liars - 2, clients - 1))

    def score(one: int) -> float:
        others = (float((x[one].double() - x[o].double()).pow(2).sum()) for o in range(clients) if o != one)
        return min(sum(some) for some in itertools.combinations(sorted(others), near))

    best = sorted(range(clients), key=score)[: clients - liars]
    torch.testing.assert_close(krum(x, share), x[sorted(best)].mean(0))


def test_krum_leaves_out_who_is_far_from_everybody() -> None:
    honest = torch.randn(7, 20, generator=torch.Generator().manual_seed(0))
    lies = 100 * torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(krum(torch.cat([lies, honest]), 0.3), honest.mean(0))


@pytest.mark.parametrize("rule", ["krum", "trimmed"])
def test_fedavg_does_not_believe_a_number_of_records(rule: Any) -> None:
    sites = small_sites(5, models=("mlp",))
    method = FedAvg(robust=rule, liars=0.2)
    roster, state = roster_of(sites), method.server_init(roster_of(sites))
    size = len(state.weights)
    said = [torch.full((size,), float(client)) for client in range(5)]
    replies = {client: Message({"weights": said[client], "records": torch.ones(1)}) for client in range(5)}
    replies[4] = Message({"weights": torch.full((size,), 1e3), "records": torch.tensor([1e9])})
    found = method.server_update(state, replies, roster, None).weights  # type: ignore[arg-type]
    expected = 1.5 if rule == "krum" else 2.0
    torch.testing.assert_close(found, torch.full((size,), expected))


# In an exchange

EXCHANGES: tuple[Callable[..., Any], ...] = (
    lambda **more: FedBNN(prior_steps=2, mc_samples=2, network_every=2, **more),
    lambda **more: FedBNNPaper(prior_steps=2, mc_samples=2, **more),
    lambda **more: FedMD(digest_steps=2, **more),
)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", EXCHANGES)
def test_every_exchange_takes_every_rule(make: Callable[..., Any], rule: Robust) -> None:
    method = make(robust=rule)
    federation = Federation(method, small_sites(4, models=("mlp",)))
    federation.step(evaluate=False)
    state = federation.server.tensors()
    logits = method.rule(PrivacySettings()) == "mean_logits"
    mean = joined(state["phi"], rule, method.trim, torch.zeros_like(state["phi"]), logits=logits)
    torch.testing.assert_close(state["phi_bar"], join(state["phi"], method.rule(PrivacySettings()), 3.0, mean))
    federation.step(evaluate=False)


def test_a_server_knows_what_heads_believe() -> None:
    """f_i = sent_i - (what it sent before - the consensus then): what the head's own fit gave."""
    sites = small_sites(3, models=("mlp",))
    method = FedBNN(prior_steps=1, mc_samples=2, network_every=5, robust="geometric")
    federation = Federation(method, sites)
    federation.step(evaluate=False)
    before = federation.server.tensors()
    federation.step(evaluate=False)
    after = federation.server.tensors()
    torch.testing.assert_close(after["belief"], after["phi"] - before["phi"] + before["phi_bar"])
    sites_sum = (after["phi"] - after["belief"]).double()
    expected = geometric(after["belief"].double()) + kept(sites_sum).mean(0)
    torch.testing.assert_close(after["phi_bar"].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["dp_moments", "dp_teacher"])
def test_robust_rules_and_private_mechanisms_are_refused_together(mechanism: Any) -> None:
    sites = small_sites(3, models=("mlp",), privacy=PrivacySettings(mechanism=mechanism, epsilon=3.0))
    with pytest.raises(UserError, match=rf"methods.fedbnn.robust = 'median' .* privacy.mechanism = '{mechanism}'"):
        FedBNN(robust="median").server_init(roster_of(sites))


def test_by_class_has_no_mean_to_stand_for() -> None:
    with pytest.raises(UserError, match="consensus = 'by_class'"):
        FedMD(robust="median", consensus="by_class").server_init(roster_of(small_sites(3, models=("mlp",))))
