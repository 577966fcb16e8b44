"""FedRep: each part moves in its own epochs only, heads never leave, and the split of models and of epochs."""

import dataclasses

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.methods import FedRep
from fedbnn.methods.fedrep import body_and_head, split
from fedbnn.methods.point import Point
from fedbnn.models.architectures import MODELS, ModelSettings, build
from fedbnn.models.network import FlatNetwork
from tests.federation_sample import first_message, small_sites, unequal, with_client

RNG = Stream((0, "fedrep"))
SITES = unequal(small_sites(3, models=("cnn2",), batch_size=5), (12, 7, 3))
CLIENT = SITES[0].client
BODY = body_and_head(CLIENT.network, "cnn2", "fedrep")[0].stop


@example(2, 0.9)
@example(1, 0.5)
@given(st.integers(0, 200), st.floats(0.001, 0.999))
def test_the_epochs_of_both_parts_are_those_of_the_round(passes: int, share: float) -> None:
    head, body = split(passes, share)
    if passes >= 2:
        assert head + body == passes
        assert abs(body - share * passes) <= 1
    assert (min(head, body) >= 1) == (passes >= 1)


def test_the_papers_share_is_ten_epochs_of_the_head_and_five_of_the_body() -> None:
    assert split(15, FedRep().body_share) == (10, 5)


@pytest.mark.parametrize("name", MODELS)
def test_the_head_is_the_layer_that_makes_the_logits(name: str) -> None:
    """Adding to the head's bias, the last of its weights, moves one logit by as much, whatever the record."""
    options = {"width": 0.1} if name == "vgg9" else {}
    network = FlatNetwork(lambda: build(ModelSettings(name, options=options), (1, 8, 8), 4), 0)
    body, head = body_and_head(network, name, "fedrep")
    assert (body.start, body.stop, head.stop) == (0, head.start, network.size)
    last = [one for one in network.module.modules() if isinstance(one, torch.nn.Linear)][-1]
    assert head.stop - head.start == last.in_features * 4 + 4
    network.module.eval()
    x = torch.rand(3, 1, 8, 8)
    before = network(x).detach()
    network.weights[head][-1] += 2.0
    torch.testing.assert_close(network(x).detach() - before, torch.tensor([0.0, 0.0, 0.0, 2.0]).expand(3, 4))


def test_a_model_of_one_layer_has_no_body_and_is_refused() -> None:
    model = ModelSettings("mlp", options={"hidden": []})
    roster = roster_of([with_client(site, model=model) for site in SITES])
    with pytest.raises(UserError, match="'fedrep' shares all trainable layers but the last, and model 'mlp' has only"):
        FedRep().server_init(roster)
    frozen = dataclasses.replace(CLIENT.model, bayesian="last_layer")
    with pytest.raises(UserError, match="give it a hidden layer that is trained"):
        FedRep().server_init(roster_of([with_client(site, model=frozen) for site in SITES]))


def test_the_head_is_fitted_to_the_body_that_came_and_the_body_to_that_head() -> None:
    method = FedRep()
    state, message = method.client_init(CLIENT), first_message(method, SITES)
    fitted = method.fit_head(state, CLIENT, message.arrays["weights"], 1, RNG)
    assert torch.equal(fitted[:BODY], message.arrays["weights"])
    assert not torch.equal(fitted[BODY:], state.weights[BODY:])
    update = method.client_update(state, CLIENT, message, 1, RNG)
    assert torch.equal(update.state.weights[BODY:], fitted[BODY:])
    assert not torch.equal(update.state.weights[:BODY], fitted[:BODY])
    assert torch.equal(update.message.arrays["weights"], update.state.weights[:BODY])


def test_a_turn_does_not_depend_on_the_body_of_before_but_on_the_own_head() -> None:
    method = FedRep()
    message = first_message(method, SITES)
    start = method.client_init(CLIENT).weights
    other_body, other_head = start.clone(), start.clone()
    other_body[:BODY] += 1.0
    other_head[BODY:] += 0.1
    sent = [
        method.client_update(Point(one), CLIENT, message, 1, RNG).message.arrays["weights"]
        for one in (start, other_body, other_head)
    ]
    assert torch.equal(sent[0], sent[1])
    assert not torch.equal(sent[0], sent[2])


def test_the_server_averages_bodies_by_records() -> None:
    method, roster = FedRep(), roster_of(SITES)
    state = method.server_init(roster)
    assert state.weights.shape == (BODY,)
    replies = {
        c: Message({"weights": torch.full((BODY,), value), "records": torch.tensor([n])})
        for c, value, n in ((0, 1.0, 12.0), (2, 6.0, 3.0))
    }
    torch.testing.assert_close(method.server_update(state, replies, roster, RNG).weights, torch.full((BODY,), 2.0))


def test_the_personal_model_is_the_newest_body_with_the_own_head_fitted_to_it() -> None:
    method = FedRep()
    state, message = method.client_init(CLIENT), first_message(method, SITES)
    state = method.client_update(state, CLIENT, message, 0, RNG).state
    newest = Message({"weights": message.arrays["weights"] * 1.1})
    [(variant, scored)] = method.scored(state, CLIENT, newest, RNG).items()
    assert variant == "personal"
    assert torch.equal(scored.weights[:BODY], newest.arrays["weights"])
    assert torch.equal(scored.weights, method.fit_head(state, CLIENT, newest.arrays["weights"], 1, RNG))


def test_it_learns() -> None:
    training = dataclasses.replace(CLIENT.training, local_epochs=20, warmup_epochs=20)
    sites = [with_client(site, training=training) for site in small_sites(3, models=("cnn2",))]
    federation = Federation(FedRep(), sites)
    record = federation.run(2)[-1]
    own = [found["personal"].scores["own_class_accuracy"] for found in record.scores.values()]
    assert sum(own) / 3 > 0.8  # of three classes
