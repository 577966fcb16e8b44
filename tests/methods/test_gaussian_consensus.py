import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from fedbnn.methods.gaussian_consensus import LEAST, MOST, gaussian_target, join_gaussians, pool

RULES = ("mean_logits", "mean_probabilities", "sharpened")


def sent(clients: int, points: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(clients, points, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rule", RULES)
def test_one_client_and_clients_who_agree_are_as_sure_as_one(rule: str) -> None:
    one = sent(1)
    torch.testing.assert_close(join_gaussians(one, rule), one[0])
    torch.testing.assert_close(join_gaussians(one.expand(7, -1, -1), rule), one[0])


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 50))
def test_the_order_of_clients_and_points_does_not_matter(rule: str, seed: int) -> None:
    phi = sent(6, seed=seed)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(join_gaussians(phi[order], rule), join_gaussians(phi, rule))
    assert torch.equal(join_gaussians(phi[:, [4, 2]], rule), join_gaussians(phi, rule)[[4, 2]])


def test_by_precision_it_is_the_mean_of_log_densities_but_for_a_constant() -> None:
    phi = sent(4, points=1).double()
    t = torch.linspace(-5, 5, 101, dtype=torch.float64)

    def log_density(one: torch.Tensor) -> torch.Tensor:
        return Normal(one[0], (one[1] / 2).exp()).log_prob(t)

    gap = torch.stack([log_density(one[0]) for one in phi]).mean(0) - log_density(
        join_gaussians(phi, "mean_logits")[0].double()
    )
    assert float(gap.max() - gap.min()) < 1e-4


def test_a_mixture_has_the_moments_of_its_parts() -> None:
    phi = sent(3, points=1).double()
    drawn = torch.cat(
        [
            torch.randn(200000, generator=torch.Generator().manual_seed(i)).double() * (one[0, 1] / 2).exp() + one[0, 0]
            for i, one in enumerate(phi)
        ]
    )
    mean, log_variance = join_gaussians(phi, "mean_probabilities")[0].tolist()
    assert mean == pytest.approx(float(drawn.mean()), abs=0.02)
    assert math.exp(log_variance) == pytest.approx(float(drawn.var()), rel=0.02)


def test_who_knows_little_of_a_point_has_little_to_say_there() -> None:
    sure, unsure = torch.tensor([[1.0, math.log(0.01)]]), torch.tensor([[9.0, math.log(100.0)]])
    joined = join_gaussians(torch.stack([sure, unsure]), "mean_logits")
    assert float(joined[0, 0]) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("rule", RULES)
def test_gamma_goes_from_ones_own_output_to_the_consensus(rule: str) -> None:
    consensus, own = sent(2)
    torch.testing.assert_close(gaussian_target(consensus, own, 1.0, rule), consensus)
    torch.testing.assert_close(gaussian_target(consensus, own, 0.0, rule), own)
    half = pool(torch.stack([consensus, own]), torch.ones(2), rule)
    torch.testing.assert_close(gaussian_target(consensus, own, 0.5, rule), half)


@pytest.mark.parametrize("rule", RULES)
def test_whatever_is_sent_within_bounds_the_consensus_is_finite(rule: str) -> None:
    phi = torch.tensor([[[1e9, 1e9]], [[-1e9, -1e9]], [[0.0, 0.0]]])
    found = join_gaussians(phi, rule)
    assert found.isfinite().all()
    assert LEAST - 1e-4 <= float(found[0, 1]) <= MOST + 1e-4
