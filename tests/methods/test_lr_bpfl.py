"""LR-BPFL: corrections of low rank that begin at none, stay at their clients, and learn what others contradict."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.parties import Client
from fedbnn.methods import LRBPFL
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Gaussian, logits_of
from fedbnn.models.low_rank import Corrected
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import first_message, small_sites, with_client

RNG = Stream((0, "lr_bpfl"))
SHAPES = {"mlp": (1, 8, 8), "cnn2": (1, 8, 8), "transformer": (1, 8, 8)}


def without_layers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with nothing that could be corrected."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(classes))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :classes] * self.scale

    return Scale()


def disturbed(model: str, rank: int) -> tuple[nn.Module, Corrected]:
    """A network, and the same with corrections that are not zero."""
    torch.manual_seed(0)
    base = build(ModelSettings(model), SHAPES[model], 5).eval()
    corrected = Corrected(base, rank).eval()
    for factor in (*corrected.left, *corrected.right):
        nn.init.normal_(factor)
    return base, corrected


@pytest.mark.parametrize("model", SHAPES)
def test_a_correction_is_a_mask_of_its_rank_on_every_matrix(model: str) -> None:
    base, corrected = disturbed(model, 2)
    x = torch.randn(6, *SHAPES[model])
    with torch.no_grad():
        found, plain = corrected(x), base(x)
        for name, u, v in zip(corrected.names, corrected.left, corrected.right, strict=True):
            weight = base.get_parameter(name)
            mask = torch.stack([sum(u[o, k] * v[:, k] for k in range(2)) for o in range(len(u))])  # type: ignore[misc]
            assert torch.linalg.matrix_rank(mask) == min(2, *mask.shape)
            weight.mul_(1 + mask.view(weight.shape))
        torch.testing.assert_close(base(x), found, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, found, atol=0.1)
    layers = [m for m in base.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(corrected.names) == len(layers)


@pytest.mark.parametrize("model", ["mlp", "cnn2", "transformer", "gru"])
def test_a_client_begins_uncorrected(model: str) -> None:
    site = small_sites(1, models=(model,))[0]
    client, method = site.client, LRBPFL()
    q = method.client_init(client).q
    network = method.network(client)
    found = logits_of(network, q.mean, site.evaluation.x).clone()
    assert torch.equal(found, logits_of(client.network, client.initial_weights(), site.evaluation.x))
    uncertain = q.sd > 0
    assert not uncertain[: client.network.size].any()
    assert uncertain[client.network.size :].all()
    module = client.network.module
    matrices = [m.weight for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert int(uncertain.sum()) == 2 * sum(len(w) + w[0].numel() for w in matrices)


def test_only_the_shared_network_leaves() -> None:
    [site] = small_sites(1, models=("mlp",))
    client, method = site.client, LRBPFL()
    message = first_message(method, [site])
    state = method.client_init(client)
    update = method.client_update(state, client, message, 0, RNG)
    assert set(update.message.arrays) == {"weights", "records"}
    size = client.network.size
    assert torch.equal(update.message.arrays["weights"], update.state.q.mean[:size])
    other = Gaussian(state.q.theta.clone())
    other.mean[size:] += 0.1
    again = method.client_update(dataclasses.replace(state, theta=other.theta), client, message, 0, RNG)
    assert not torch.equal(again.state.q.mean[size:], update.state.q.mean[size:])


def test_the_global_model_is_the_shared_network_alone_and_sure_of_its_weights() -> None:
    [site] = small_sites(1, models=("cnn2",))
    client, method = site.client, LRBPFL(mc_samples=4)
    message = first_message(method, [site])
    state = method.client_update(method.client_init(client), client, message, 0, RNG).state
    scored = method.scored(state, client, message, RNG)
    x = site.evaluation.x
    found = method.predict(scored["global"], client, x, RNG)
    expected = logits_of(client.network, message.arrays["weights"], x).softmax(1)
    torch.testing.assert_close(found.probs, expected)
    assert float(found.epistemic.max()) < 1e-6
    personal = method.predict(scored["personal"], client, x, RNG)
    assert float(personal.epistemic.max()) > 1e-6
    assert torch.equal(scored["personal"].q.mean[: client.network.size], message.arrays["weights"])


def contradicting(client: Client, swapped: bool) -> Client:
    """Records of two classes, whose labels are exchanged at one of two clients."""
    y = (client.train.y == client.train.y[0]).long()
    records = dataclasses.replace(client.train, y=1 - y if swapped else y)
    training = TrainingSettings(local_epochs=20, warmup_epochs=5, batch_size=6)
    return dataclasses.replace(client, train=records, training=training)


def test_corrections_learn_what_clients_contradict_each_other_in() -> None:
    """The same records with exchanged labels: no shared network can be right for both, two corrected ones are."""
    first = small_sites(1, models=("mlp",))[0]
    sites = [
        with_client(first, **{**vars(contradicting(first.client, bool(k))), "index": k, "name": f"client-{k}"})
        for k in range(2)
    ]
    federation = Federation(LRBPFL(learning_rate=0.01, prior_sd=1.0), sites)
    federation.run(6)
    right = {}
    for k, site in enumerate(sites):
        for variant in ("personal", "global"):
            labels = federation.predict(k, site.client.train.x, variant).labels  # type: ignore[arg-type]
            right[k, variant] = float((labels == site.client.train.y).float().mean())
    assert right[0, "global"] + right[1, "global"] == pytest.approx(1.0)
    assert right[0, "personal"] == right[1, "personal"] == 1.0


def test_a_model_without_such_layers_is_refused() -> None:
    [site] = small_sites(1, models=("mlp",))
    client = dataclasses.replace(site.client, model=ModelSettings("tests.methods.test_lr_bpfl:without_layers"))
    with pytest.raises(UserError, match="method 'lr_bpfl' corrects linear and convolution layers") as caught:
        LRBPFL().check_client(client)
    assert "\n" not in str(caught.value)
    LRBPFL().check_client(site.client)
    LRBPFL().server_init(roster_of([site]))
