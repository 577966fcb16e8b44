"""Halves are pure functions over states, and states are all that there is to keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Client, Roster
from fedbnn.models.regression import of_classes
from fedbnn.testing.sample import SEED, Moment, moments, same, sample_sites

PURE = (
    "a half may depend on its arguments alone: draw from rng.child(...).torch(), write all weights into a network "
    "before you use it, and keep nothing in the method, its class or its module"
)
INPUTS = "a half may not change what it is given: work on clones"
SAVED = "a state is saved as safetensors: every field a tensor or None, none sharing memory with another (clone them)"


def check_pure(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """The same inputs give the same outputs to the last bit, and stay as they are.

    Between two calls, other clients have their turns, scratch networks are scribbled over, and torch's own generator
    goes on: none of it may matter.
    """
    sites = sites or sample_sites(method)
    roster = roster_of(sites)
    for moment in moments(method, sites):
        for site in reversed(sites):
            client = site.client
            given = _tensors(moment, client)
            before = {name: tensor.clone() for name, tensor in given.items()}
            _scribble(roster, client)
            state, sent, info = _turn(method, moment, moment.states[client.index], client)
            where = f"method '{method.name}', client_update in round {moment.number}"
            assert same(given, before), f"{where} changes {_changed(before, given)}: {INPUTS}"
            expected = moment.after[client.index], moment.replies[client.index], moment.infos[client.index]
            assert same(state.tensors(), expected[0].tensors()), f"{where} gives another state the second time: {PURE}"
            assert same(sent, expected[1].arrays), f"{where} sends something else the second time: {PURE}"
            assert info == expected[2], f"{where} gives other diagnostics the second time: {PURE}"
            _check_predictions(method, moment, site)
        _check_server(method, moment, roster)


def check_states(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """States are of the declared classes, and go on after being saved and loaded as if they had not been."""
    sites = sites or sample_sites(method)
    roster = roster_of(sites)
    for moment in moments(method, sites):
        where = f"method '{method.name}', round {moment.number}"
        kind = type(moment.server) if isinstance(moment.server, method.server_state) else method.server_state
        server = _loaded(kind, moment.server, f"{where}: server_state")
        for site in sites:
            client = site.client
            state = _loaded(method.client_state, moment.states[client.index], f"{where}: client_state")
            says = method.broadcast(server, client.index).arrays
            assert same(says, moment.messages[client.index].arrays), (
                f"{where}: a server that was saved and loaded broadcasts something else: {SAVED}"
            )
            after, sent, _ = _turn(method, moment, state, client)
            kept = same(after.tensors(), moment.after[client.index].tensors())
            told = same(sent, moment.replies[client.index].arrays)
            assert (kept, told) == (True, True), (
                f"{where}: a client that was saved and loaded has another turn: {SAVED}"
            )
        now, then = (_joined(method, moment, one, moment.replies, roster) for one in (server, moment.server))
        assert same(now.tensors(), then.tensors()), (
            f"{where}: a server that was saved and loaded makes something else of the replies: {SAVED}"
        )


def check_order(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """The server makes the same of replies in whatever order they come, up to rounding.

    That the order of clients' turns has no influence either is part of `check_pure`, which has them backwards.
    """
    sites = sites or sample_sites(method)
    for moment in moments(method, sites):
        backwards = {client: moment.replies[client] for client in reversed(list(moment.replies))}
        one, other = (
            _joined(method, moment, moment.server, replies, roster_of(sites)).tensors()
            for replies in (moment.replies, backwards)
        )
        near = one.keys() == other.keys() and all(
            torch.allclose(one[name].double(), other[name].double(), rtol=1e-3, atol=1e-4) for name in one
        )
        assert near, (
            f"method '{method.name}', server_update in round {moment.number}: other results if replies come in another "
            "order: use the client's number, which is the reply's key, not its place"
        )


def _turn(
    method: Method[Any, Any], moment: Moment, state: State, client: Client
) -> tuple[State, Mapping[str, Tensor], Mapping[str, float]]:
    rng = Stream((SEED, "update", moment.number, client.index))
    with repeatable(rng):
        update = method.client_update(state, client, moment.messages[client.index], moment.number, rng)
    return update.state, update.message.arrays, update.info


def _joined(
    method: Method[Any, Any], moment: Moment, state: State, replies: Mapping[int, Message], roster: Roster
) -> State:
    rng = Stream((SEED, "server", moment.number))
    with repeatable(rng):
        found: State = method.server_update(state, replies, roster, rng)
    return found


def _check_predictions(method: Method[Any, Any], moment: Moment, site: Site) -> None:
    client, x = site.client, site.evaluation.x[:9]
    state, message = moment.after[client.index], moment.messages[client.index]
    given = {f"state.{name}": tensor for name, tensor in state.tensors().items()} | {"x": x}
    before = {name: tensor.clone() for name, tensor in given.items()}
    rng = Stream((SEED, "evaluate", moment.number, client.index))
    found: list[dict[str, Tensor]] = []
    for _ in range(2):
        client.network.weights.normal_()
        with repeatable(rng):
            scored = method.scored(state, client, message, rng)
            found.append({name: of_classes(method.predict(one, client, x, rng)).probs for name, one in scored.items()})
    where = f"method '{method.name}', scored and predict after round {moment.number}"
    assert same(given, before), f"{where} change {_changed(before, given)}: {INPUTS}"
    assert same(*found), f"{where} give something else the second time: {PURE}"
    for name, probs in found[0].items():
        whole = torch.allclose(probs.sum(1), torch.ones(len(x)), atol=1e-4)
        assert whole, f"{where}: the probabilities of the {name} model do not sum to one"
    for variant in scored:
        trained, asked = method.trained_prior(variant, client), method.asked_prior(variant, client)
        for prior in (trained, trained if asked is None else asked):
            whole = prior.shape == (client.classes,) and abs(float(prior.sum()) - 1) < 1e-4 and float(prior.min()) >= 0
            assert whole, f"method '{method.name}': a label prior of the {variant} model is not a share for each class"


def _check_server(method: Method[Any, Any], moment: Moment, roster: Roster) -> None:
    given = {f"state.{name}": tensor for name, tensor in moment.server.tensors().items()}
    for client, reply in moment.replies.items():
        given |= {f"replies.{client}.{name}": array for name, array in reply.arrays.items()}
    before = {name: tensor.clone() for name, tensor in given.items()}
    first = _joined(method, moment, moment.server, moment.replies, roster)
    torch.rand(1)
    for client in range(roster.clients):
        roster.network(client).weights.normal_()
    second = _joined(method, moment, moment.server, moment.replies, roster)
    where = f"method '{method.name}', server_update in round {moment.number}"
    assert same(given, before), f"{where} changes {_changed(before, given)}: {INPUTS}"
    assert same(first.tensors(), second.tensors()), f"{where} gives another state the second time: {PURE}"


def _tensors(moment: Moment, client: Client) -> dict[str, Tensor]:
    """All that a client's turn is given."""
    state, message = moment.states[client.index].tensors(), moment.messages[client.index].arrays
    return {
        "client.train.x": client.train.x,
        "client.train.y": client.train.y,
        "client.alignment": client.alignment,
        **{f"state.{name}": tensor for name, tensor in state.items()},
        **{f"message.{name}": array for name, array in message.items()},
    }


def _scribble(roster: Roster, client: Client) -> None:
    torch.rand(1)
    for network in (client.network, roster.network(client.index)):
        network.weights.normal_()
        network.gradient.normal_()


def _changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    return ", ".join(name for name in before if not torch.equal(before[name], now[name]))


def _loaded(kind: type[State], state: State, where: str) -> State:
    assert type(state) is kind, f"{where} = {kind.__name__}, but the state is a {type(state).__name__}"
    try:
        loaded = load(save(state.tensors()))
        again = kind(**{name: value.clone() for name, value in loaded.items()})
    except Exception as error:
        raise AssertionError(f"{where}: cannot be saved and loaded ({error}): {SAVED}") from error
    assert same(again.tensors(), state.tensors()), f"{where}: saved and loaded it is another: {SAVED}"
    return again
