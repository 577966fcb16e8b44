"""The model on public features: against another optimiser, for images and tables."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.features.public import public
from fedbnn.federation.method import Client
from fedbnn.federation.sites import make_sites
from fedbnn.methods.parts.feature_model import DIMENSIONS, teacher_outputs
from fedbnn.models.softmax import STRENGTH
from tests.federation_sample import small_sites, with_client


def table_client(path: Any, classes: int) -> Client:
    """A client with a table of six columns, whose three classes are clouds that overlap."""
    rng = np.random.default_rng(0)
    y = np.arange(180) % 3
    x = rng.normal(size=(180, 6)) + 1.5 * np.eye(6)[y]
    np.savez(path, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
    data = DataSettings(source="npz", path=str(path), alignment=40)
    partition = PartitionSettings(clients=2, classes_per_client=classes, records_per_class=15)
    return make_sites(federate(load_dataset(data), data, partition, 0))[0].client


def image_client(classes: int) -> Client:
    [site] = small_sites(1, models=("mlp",))
    kept = torch.isin(site.client.train.y, site.client.train.y.unique()[:classes])
    return with_client(site, train=site.client.train.take(kept.nonzero()[:, 0])).client


@pytest.fixture(params=["image-1", "image-2", "image-3", "table-1", "table-2", "table-3"])
def client(request: pytest.FixtureRequest, tmp_path: Any) -> Client:
    kind, classes = request.param.split("-")
    made = image_client(int(classes)) if kind == "image" else table_client(tmp_path / "table.npz", int(classes))
    assert len(made.train.y.unique()) == int(classes)
    return made


def independent(client: Client) -> np.ndarray:
    """argmin over (W, b) of -sum log softmax(x W + b)_y + STRENGTH |W|^2 / 2, asked on the alignment set."""
    found = public(client.alignment, client.privacy.features, DIMENSIONS)
    scale = found.phi.double().std(0, correction=0).mean().item()
    x, points = (one.double().numpy() / scale for one in (found.map(client.train.x), found.phi))
    held, y = np.unique(client.train.y.numpy(), return_inverse=True)
    shape = (x.shape[1] + 1, len(held))
    with_one = np.column_stack([x, np.ones(len(x))])
    penalised = np.append(np.full(x.shape[1], STRENGTH), 0.0)[:, None]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(shape)
        scores = with_one @ w
        loss = -log_softmax(scores, 1)[np.arange(len(y)), y].sum() + (penalised * w**2).sum() / 2
        gradient = with_one.T @ (softmax(scores, 1) - np.eye(len(held))[y]) + penalised * w
        return loss, gradient.ravel()

    with threadpool_limits(1):
        options = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 5000, "maxfun": 10_000}
        best = minimize(objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options).x
    probs = np.zeros((len(points), client.classes))
    probs[:, held] = softmax(np.column_stack([points, np.ones(len(points))]) @ best.reshape(shape), 1)
    return probs


def test_it_is_the_penalised_maximum_of_the_likelihood(client: Client) -> None:
    np.testing.assert_allclose(teacher_outputs(client).numpy(), independent(client), rtol=0, atol=2e-4)


def test_rows_are_distributions_over_the_classes_held(client: Client) -> None:
    found, held = teacher_outputs(client), client.train.y.unique()
    assert found.shape == (len(client.alignment), client.classes)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(len(found)), rtol=0, atol=1e-6)
    others = torch.ones(client.classes, dtype=torch.bool).index_fill(0, held, False)
    assert found[:, others].eq(0).all()
    assert (found[:, held] > 0).all()
    if len(held) == 1:
        assert found[:, held].eq(1).all()


def test_the_order_of_records_does_not_matter_beyond_the_solvers_tolerance() -> None:
    client = image_client(3)
    order = torch.randperm(len(client.train), generator=torch.Generator().manual_seed(0))
    [site] = small_sites(1, models=("mlp",))
    other = with_client(site, train=client.train.take(order)).client
    torch.testing.assert_close(teacher_outputs(client), teacher_outputs(other), rtol=0, atol=1e-4)


def test_it_knows_the_clients_classes_better_than_chance(tmp_path: Any) -> None:
    """Of the alignment points that are nearest to a record of the client, it says that record's class."""
    client = image_client(3)
    distance = torch.cdist(client.alignment.flatten(1), client.train.x.flatten(1))
    near = distance.min(1).values.argsort()[:8]
    assert (teacher_outputs(client)[near].argmax(1) == client.train.y[distance[near].argmin(1)]).float().mean() > 0.7
