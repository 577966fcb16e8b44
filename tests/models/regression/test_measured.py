import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from fedbnn import UserError
from fedbnn.models.regression import Measured, Scale, gaussian_of, records_of
from fedbnn.models.regression.measured import FLOOR, gaussian_cross_entropy
from fedbnn.models.training import Records


def outputs(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def measured(n: int, seed: int = 1) -> Measured:
    g = torch.Generator().manual_seed(seed)
    return Measured(torch.randn(n, 3, generator=g), torch.randn(n, generator=g))


def test_the_loss_of_measured_values_is_the_negative_log_likelihood() -> None:
    records, said = measured(9), outputs(9)
    mean, variance = gaussian_of(said)
    torch.testing.assert_close(records.loss(said), -Normal(mean, variance.sqrt()).log_prob(records.y).mean())


def test_the_loss_of_gaussians_is_their_divergence_but_for_their_entropy() -> None:
    g = torch.Generator().manual_seed(2)
    target = torch.randn(9, 2, generator=g)
    said = outputs(9)
    mean, variance = gaussian_of(said)
    peers, own = Normal(target[:, 0], (target[:, 1] / 2).exp()), Normal(mean, variance.sqrt())
    expected = (kl_divergence(peers, own) + peers.entropy()).mean()
    torch.testing.assert_close(Measured.of_gaussians(torch.zeros(9, 1), target).loss(said), expected)


def test_the_loss_is_least_where_the_network_says_what_the_target_is() -> None:
    target = torch.tensor([[0.3, math.log(0.5)]])
    at = torch.tensor([[0.3, math.log(math.expm1(0.5 - FLOOR))]], requires_grad=True)
    Measured.of_gaussians(torch.zeros(1, 1), target).loss(at).backward()
    assert at.grad is not None
    assert at.grad.abs().max() < 1e-6


def test_no_output_makes_the_variance_vanish() -> None:
    _, variance = gaussian_of(torch.tensor([[0.0, -1e4], [0.0, 1e4], [0.0, 0.0]]))
    assert variance.tolist() == pytest.approx([FLOOR, 1e4 + FLOOR, math.log(2) + FLOOR])
    assert measured(3).loss(torch.tensor([[0.0, -1e4]] * 3)).isfinite()


def test_two_minibatches_as_one_have_the_sum_of_their_losses() -> None:
    own, said = measured(5), outputs(12)
    other = Measured.of_gaussians(torch.zeros(7, 3), torch.randn(7, 2, generator=torch.Generator().manual_seed(3)))
    both = own.beside(other, 0.3)
    torch.testing.assert_close(both.loss(said), own.loss(said[:5]) + 0.3 * other.loss(said[5:]))


def test_rows_are_taken_with_all_that_belongs_to_them() -> None:
    both, said = measured(5).beside(measured(4, seed=8), 2.0), outputs(9)
    index = torch.tensor([7, 0, 3])
    mean, variance = gaussian_of(said[index])
    each = gaussian_cross_entropy(both.y[index], 0.0, mean, variance)
    assert both.weight is not None
    torch.testing.assert_close(both.take(index).loss(said[index]), (each * both.weight[index]).mean())
    assert isinstance(both.to(torch.device("cpu")), Measured)
    assert both.varied("none", torch.Generator()) is both


def test_real_numbers_are_standardised_and_labels_stay_labels() -> None:
    x = torch.zeros(2, 1)
    assert records_of(x, torch.tensor([150.0, 230.0]), Scale(150, 80)).y.tolist() == [0, 1]
    assert type(records_of(x, torch.tensor([0, 1]))) is Records


@pytest.mark.parametrize(
    ("mean", "sd", "field"), [(math.nan, 1, "mean"), (0, 0, "sd"), (0, -1, "sd"), (0, math.inf, "sd")]
)
def test_a_scale_that_is_none_is_refused(mean: float, sd: float, field: str) -> None:
    with pytest.raises(UserError, match=f"data.target_{field} = "):
        Scale(mean, sd)
