"""IFCA: FedAvg as one cluster, choices by the least loss, averages by cluster, and clusters that are found."""

import dataclasses

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import BadMessage, Message, check
from fedbnn.methods import IFCA, FedAvg
from fedbnn.methods.averaging import Global
from fedbnn.methods.ifca import best_fit
from fedbnn.models.training import Records
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal, with_client
from tests.quadratic_sample import SIZE, Problem, federated

RNG = Stream((0, "ifca"))
SITES = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))


def test_one_cluster_is_fedavg_bit_for_bit() -> None:
    servers, scores = [], []
    for method, name in ((IFCA(clusters=1, weight_decay=0.1), "personal"), (FedAvg(weight_decay=0.1), "global")):
        federation = Federation(method, SITES, seed=2, participation=0.7)
        record = federation.run(3)[-1]
        servers.append(federation.server.tensors()["weights"].flatten())
        scores.append([found[name].to_dict()["scores"] for found in record.scores.values()])  # type: ignore[index]
    assert torch.equal(*servers)
    assert scores[0] == scores[1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_client_takes_the_model_that_fits_its_records(order: tuple[int, ...]) -> None:
    """One that was trained on them, among others, wherever it stands; and of equals the first."""
    client = SITES[0].client
    weights = [site.client.initial_weights() for site in SITES]
    weights[0], _ = FedAvg(learning_rate=5e-3).train(weights[0], client, 20, RNG)
    models = torch.stack([weights[i] for i in order])
    assert best_fit(client, models) == order.index(0)
    assert best_fit(client, torch.stack([weights[1], weights[0], weights[0]])) == 1


def test_it_trains_the_model_that_it_takes_and_says_which() -> None:
    method, client = IFCA(clusters=3, learning_rate=2e-3), SITES[0].client
    models = first_message(method, SITES).arrays["weights"]
    assert models.shape[0] == 3
    at = best_fit(client, models)
    update = method.client_update(method.client_init(client), client, Message({"weights": models}), 1, RNG)
    alone = FedAvg(learning_rate=2e-3).client_update(
        method.client_init(client), client, Message({"weights": models[at]}), 1, RNG
    )
    assert torch.equal(update.message.arrays["weights"], alone.message.arrays["weights"])
    assert update.message.arrays["cluster"].tolist() == [at] == [update.info["cluster"]]
    assert set(update.message.arrays) == {"weights", "records", "cluster"}


def test_the_server_averages_by_cluster_and_leaves_what_nobody_took() -> None:
    method, roster = IFCA(clusters=3), roster_of(small_sites(4, models=("mlp",)))
    state = method.server_init(roster)
    assert isinstance(state, Global)
    size = state.weights.shape[1]
    replies = {
        client: Message(
            {
                "weights": torch.full((size,), value),
                "records": torch.tensor([records]),
                "cluster": torch.tensor([cluster]),
            }
        )
        for client, (value, records, cluster) in enumerate(
            [(1.0, 1.0, 0.0), (4.0, 2.0, 0.0), (7.0, 5.0, 2.0), (9.0, 15.0, 2.0)]
        )
    }
    for reply in replies.values():
        check(reply, method.expected_upload(roster, 0))
    found = method.server_update(state, replies, roster, RNG).weights
    torch.testing.assert_close(found[0], torch.full((size,), 3.0))
    assert torch.equal(found[1], state.weights[1])
    torch.testing.assert_close(found[2], torch.full((size,), 8.5))


@pytest.mark.parametrize("cluster", [-1.0, 2.0, 1e9, float("nan")])
def test_a_cluster_that_there_is_not_is_refused_at_the_door(cluster: float) -> None:
    method, roster = IFCA(clusters=2), roster_of(SITES)
    update = method.client_update(
        method.client_init(SITES[0].client), SITES[0].client, first_message(method, SITES), 0, RNG
    )
    check(update.message, method.expected_upload(roster, 0))
    with pytest.raises(BadMessage, match="'cluster' holds values"):
        check(Message({**update.message.arrays, "cluster": torch.tensor([cluster])}), method.expected_upload(roster, 0))


def test_models_begin_apart_however_many_clients_there_are() -> None:
    roster = roster_of(SITES)
    models = IFCA(clusters=4).server_init(roster).weights
    assert all((models[i] - models[j]).norm() > 0.1 for i in range(4) for j in range(i))
    assert torch.equal(models[0], FedAvg().server_init(roster).weights)


def test_no_cluster_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"methods\.ifca\.clusters = 0: Input should be greater than or equal to 1$"):
        load_config(None, ["method=ifca", "methods.ifca.clusters=0"])


class Apart(IFCA):
    """Whose models begin at the ends of the line between the clusters' optima."""

    name = "apart"

    def initial(self, roster):  # type: ignore[no-untyped-def]
        return torch.stack([torch.full((SIZE,), -0.1), torch.full((SIZE,), 0.1)])


def test_clusters_of_quadratics_are_found_and_each_gets_its_own_optimum() -> None:
    """Clients of two kinds, f_i = 1/2 ||w - b||^2 with b near plus or minus one; FedAvg ends in the middle."""
    offsets = torch.randn(6, SIZE, generator=RNG.torch()) * 0.1
    signs = (1.0, -1.0, 1.0, -1.0, -1.0, 1.0)
    optima = [torch.full((SIZE,), sign) + offset for sign, offset in zip(signs, offsets, strict=True)]
    problem = Problem([torch.eye(SIZE)] * 6, optima)
    server, _ = federated(Apart(clusters=2, learning_rate=5e-3), problem, 200, steps=2)
    for cluster, sign in ((0, -1.0), (1, 1.0)):
        mine = [b for b, s in zip(optima, signs, strict=True) if s == sign]
        mean = torch.stack(mine).mean(0)
        torch.testing.assert_close(server.tensors()["weights"][cluster], mean, rtol=0, atol=0.1)
    middle, _ = federated(FedAvg(learning_rate=5e-3), problem, 200, steps=2)
    assert float(middle.tensors()["weights"].abs().max()) < 0.3


def test_clients_whose_labels_mean_other_things_are_told_apart() -> None:
    """Half of them call every digit by another name: one model for all cannot be right, two can."""
    sites = small_sites(6, models=("mlp",))
    swapped = []
    for i, site in enumerate(sites):
        turn = 5 * (i % 2)
        train = Records(site.client.train.x, (site.client.train.y + turn) % 10)
        scored = dataclasses.replace(site.evaluation, y=(site.evaluation.y + turn) % 10)
        swapped.append(dataclasses.replace(with_client(site, train=train), evaluation=scored))
    method = IFCA(clusters=2, learning_rate=5e-3)
    federation = Federation(method, swapped)
    last = federation.run(6)[-1]
    chosen = [turn.info["cluster"] for turn in last.turns.values()]
    assert set(chosen) == {0.0, 1.0}
