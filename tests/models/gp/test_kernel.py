import math

import torch

from fedbnn.models.gp.kernel import Kernel, normalise


def test_the_kernel_is_the_formula() -> None:
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    k = Kernel(outputscale=3.0, lengthscale=0.5).cross(a, b)
    torch.testing.assert_close(k, torch.tensor([[3 * math.exp(-2 / 0.5), 3.0]]))


def test_repeated_records_have_a_positive_definite_covariance_at_any_scale() -> None:
    x = normalise(torch.ones(50, 4))
    for scale in (1e-6, 8.0, 1e6):
        kernel = Kernel(outputscale=scale)
        covariance = kernel.covariance(x)
        assert torch.linalg.cholesky_ex(covariance).info == 0
        torch.testing.assert_close(covariance, kernel.cross(x, x), atol=2e-6 * scale, rtol=0)


def test_rows_get_unit_length_and_a_row_of_zeros_neither_length_nor_gradient() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-7, 0.0]], requires_grad=True)
    y = normalise(x)
    torch.testing.assert_close(y.norm(dim=1), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    y[:2].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert torch.equal(x.grad[1], torch.zeros(2))
