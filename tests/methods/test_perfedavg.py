"""Per-FedAvg: the gradient of the adapted loss in closed form, FedAvg as its limit, and what one step does."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.parties import Client
from fedbnn.methods import FedAvg, PerFedAvg
from fedbnn.methods.perfedavg import meta_gradient
from fedbnn.models.network import view_of
from fedbnn.models.training import Records
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal
from tests.quadratic_sample import SCRATCH, SIZE, Problem, Quadratic

RNG = Stream((0, "perfedavg"))
SITES = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))


@pytest.mark.parametrize("curvature", ["first_order", "hessian_free"])
def test_with_steps_of_no_length_it_is_fedavg_bit_for_bit(curvature: str) -> None:
    servers = []
    adapted = PerFedAvg(inner_rate=0.0, curvature=curvature, weight_decay=0.1)  # type: ignore[arg-type]
    for method in (adapted, FedAvg(weight_decay=0.1)):
        federation = Federation(method, SITES, seed=2, participation=0.7)
        record = federation.run(3)[-1]
        servers.append(federation.server.tensors()["weights"])
        for found in record.scores.values():
            first, second = list(found.values())[:2]
            same = first.scores["all_class_nll"] == second.scores["all_class_nll"]
            assert same == (method is adapted)  # personal is global there; here fine-tuned is not
    assert torch.equal(*servers)


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_on_quadratics_the_gradient_is_that_of_the_adapted_loss(alpha: float) -> None:
    """f(w) = 1/2 (w - b)^T A (w - b):  grad F = (I - alpha A) A (I - alpha A) (w - b), without curvature one less."""
    problem = Problem.drawn()
    w = torch.randn(SIZE, generator=RNG.torch())
    for a, b in zip(problem.curvatures, problem.optima, strict=True):
        batch, step = Quadratic(a, b), torch.eye(SIZE) - alpha * a
        free, _ = meta_gradient(SCRATCH, w, batch, batch, batch, alpha, 0.1)
        first, loss = meta_gradient(SCRATCH, w, batch, batch, None, alpha, 0.1)
        torch.testing.assert_close(free, step @ a @ step @ (w - b), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first, a @ step @ (w - b), rtol=1e-4, atol=1e-5)
        after = step @ (w - b)
        torch.testing.assert_close(loss, after @ a @ after / 2)


def adapted_loss(client: Client, w: Tensor, alpha: float) -> Tensor:
    """F_i over all records, by torch.func."""
    shapes = [(name, p.shape) for name, p in client.network.module.named_parameters()]

    def loss(vector: Tensor) -> Tensor:
        offset, parameters = 0, {}
        for name, shape in shapes:
            parameters[name] = view_of(vector, offset, shape)
            offset += shape.numel()
        return functional.cross_entropy(
            functional_call(client.network.module, parameters, (client.train.x,)), client.train.y
        )

    return loss(w - alpha * grad(loss)(w))


def test_differences_come_near_the_true_gradient_of_a_network_and_leaving_them_out_does_not() -> None:
    client, alpha = SITES[0].client, 0.5
    client.network.module.train()
    w = client.initial_weights() * 1.5
    truth = grad(lambda vector: adapted_loss(client, vector, alpha))(w)
    every = Records(client.train.x, client.train.y)
    free, _ = meta_gradient(client.network, w, every, every, every, alpha, 1e-3)
    first, _ = meta_gradient(client.network, w, every, every, None, alpha, 1e-3)
    assert (free - truth).norm() / truth.norm() < 0.01
    assert (first - truth).norm() / truth.norm() > 0.05


def test_the_personal_model_is_one_step_on_all_own_records_from_the_shared_one() -> None:
    method, client = PerFedAvg(inner_rate=0.3), SITES[0].client
    state, message = method.client_init(client), first_message(method, SITES)
    shared = message.arrays["weights"]
    scored = method.scored(state, client, message, RNG)
    assert list(scored) == ["personal", "global"]
    assert torch.equal(scored["global"].weights, shared)
    client.network.weights.copy_(shared)
    client.network.gradient.zero_()
    Records(client.train.x, client.train.y).loss(client.network(client.train.x)).backward()
    torch.testing.assert_close(scored["personal"].weights, shared - 0.3 * client.network.gradient)


def test_a_step_makes_clients_better_on_their_own_classes() -> None:
    """What the method is for: clients of few classes each."""
    sites = small_sites(4, models=("mlp",))
    for record in Federation(PerFedAvg(learning_rate=2e-3, inner_rate=0.1), sites).run(4)[-1:]:
        for found in record.scores.values():
            assert found["personal"].scores["nll"] < found["global"].scores["nll"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("inner_rate=-0.1", "inner_rate = -0.1: Input should be greater than or equal to 0"),
        ("delta=0", "delta = 0: Input should be greater than 0"),
        ("curvature=exact", "curvature = 'exact': Input should be 'first_order' or 'hessian_free'"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(setting: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(None, ["method=perfedavg", f"methods.perfedavg.{setting}"])
    assert f"methods.perfedavg.{why}" in str(caught.value)
    assert "\n" not in str(caught.value)
