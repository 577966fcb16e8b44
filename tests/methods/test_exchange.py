"""What the exchange makes of the consensus for a client (`focus`), and who speaks for it (`teacher`)."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client
from fedbnn.methods import FedBNN, FedMD
from fedbnn.methods import parts as module
from fedbnn.methods.consensus import Rule, output_of, target_of
from fedbnn.methods.exchange import ExchangeState
from fedbnn.methods.parts.feature_model import teacher_outputs
from fedbnn.methods.parts.focus import class_weights
from fedbnn.models.bayes import Prediction
from fedbnn.privacy import PrivacySettings
from tests.federation_sample import small_sites

RNG = Stream((0, "test"))
Exchanging = FedBNN | FedMD
RULES: tuple[Rule, ...] = ("mean_logits", "mean_probabilities", "sharpened")
every_method = pytest.mark.parametrize("kind", [FedBNN, FedMD])


@pytest.fixture(scope="module")
def client() -> Client:
    return small_sites(1, models=("mlp",))[0].client


def small(kind: type[Exchanging], **changes: Any) -> Exchanging:
    steps: dict[str, Any] = {"prior_steps": 3, "mc_samples": 2} if kind is FedBNN else {"digest_steps": 3}
    return kind(**steps, **changes)


def drawn(client: Client, seed: int) -> Prediction:
    logits = torch.randn(len(client.alignment), client.classes, generator=torch.Generator().manual_seed(seed))
    return Prediction(logits.softmax(1), logits, torch.zeros(len(logits)))


def unasked() -> Prediction:
    raise AssertionError("the network was asked")


def held_by(client: Client) -> torch.Tensor:
    return torch.zeros(client.classes, dtype=torch.bool).index_fill(0, client.train.y, True)


@every_method
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gamma", [0.4, 1.0])
def test_focus_turns_the_target_and_none_leaves_it(
    kind: type[Exchanging], rule: Rule, gamma: float, client: Client
) -> None:
    own, other = drawn(client, 0), drawn(client, 1)
    phi_bar = output_of(other, rule)
    plain = target_of(phi_bar, output_of(own, rule), gamma, rule)

    message = Message({"phi_bar": phi_bar})

    def found(focus: float) -> torch.Tensor:
        turned = kind(consensus=rule, gamma=gamma, focus=focus).target(message, client, lambda: own)
        assert turned is not None
        return turned

    assert torch.equal(found(0.0), plain)
    assert kind(consensus=rule).target(Message(), client, unasked) is None
    held = held_by(client)
    assert found(1.0)[:, ~held].eq(0).all()
    torch.testing.assert_close(found(1.0)[:, held], plain[:, held] * 10 / 3)  # three classes with four records each
    torch.testing.assert_close(found(0.5), plain * class_weights(client.train.y, client.classes, 0.5))


@pytest.mark.parametrize(
    "method",
    [
        FedBNN(prior_steps=3, mc_samples=2, gamma=1.0, consensus="sharpened", rehearsal=0.5),
        FedMD(digest_steps=3, gamma=1.0),
    ],
    ids=lambda method: method.name,
)
def test_with_full_focus_nothing_is_learned_of_classes_not_held(method: Exchanging, client: Client) -> None:
    state, known = method.client_init(client), drawn(client, 0).probs
    other = torch.where(held_by(client), known, drawn(client, 1).probs)

    def after(focus: float, phi_bar: torch.Tensor) -> torch.Tensor:
        focused = dataclasses.replace(method, focus=focus)
        update = focused.client_update(state, client, Message({"phi_bar": phi_bar}), 1, RNG)  # type: ignore[arg-type]
        return next(iter(update.state.tensors().values()))

    assert torch.equal(after(1.0, known), after(1.0, other))
    assert not torch.equal(after(0.9, known), after(0.9, other))


@every_method
@pytest.mark.parametrize("round_number", [0, 1])
def test_the_reply_is_the_teachers_or_the_mean_of_both(
    kind: type[Exchanging], round_number: int, client: Client
) -> None:
    expected = teacher_outputs(client)
    message = Message({"phi_bar": drawn(client, 0).probs} if round_number else {})
    for teacher in ("network", "features", "both"):
        method = small(kind, consensus="sharpened", teacher=teacher)
        state = method.client_init(client)
        update = method.client_update(state, client, message, round_number, RNG)  # type: ignore[arg-type]
        own = method.predict(update.state, client, client.alignment, RNG.child("upload")).probs  # type: ignore[arg-type]
        phi = update.message.arrays["phi"]
        if teacher == "network":
            assert torch.equal(phi, own)
            assert update.state.teacher_phi is None
            continue
        assert torch.equal(phi, expected if teacher == "features" else (own + expected) / 2)
        torch.testing.assert_close(phi.sum(1), torch.ones(len(phi)))
        assert update.state.teacher_phi is not None
        assert torch.equal(update.state.teacher_phi, expected)


@every_method
def test_a_model_on_features_alone_does_not_ask_the_network(kind: type[Exchanging], client: Client) -> None:
    state, asked = ExchangeState(teacher_phi=drawn(client, 0).probs), drawn(client, 1)
    method = kind(consensus="sharpened", teacher="features")
    reply = method.replied(state, client, Message(), 0, unasked, {}).message  # type: ignore[arg-type]
    assert torch.equal(reply.arrays["phi"], drawn(client, 0).probs)
    both = dataclasses.replace(method, teacher="both").replied(state, client, Message(), 0, lambda: asked, {})  # type: ignore[arg-type]
    assert torch.equal(both.message.arrays["phi"], (asked.probs + drawn(client, 0).probs) / 2)


@every_method
@pytest.mark.parametrize("teacher", ["features", "both"])
def test_logits_cannot_be_taught(kind: type[Exchanging], teacher: Literal["features", "both"]) -> None:
    sites = small_sites(2, models=("mlp",))
    with pytest.raises(UserError, match=rf"^methods\.{kind.name}\.teacher = '{teacher}' gives prob.*mean_logits") as e:
        Federation(kind(consensus="mean_logits", teacher=teacher), sites)
    assert "\n" not in str(e.value)
    Federation(kind(consensus="mean_logits"), sites)


@every_method
def test_features_of_images_are_refused_for_a_table_before_any_work(kind: type[Exchanging], client: Client) -> None:
    table = dataclasses.replace(client, alignment=torch.zeros(5, 4), privacy=PrivacySettings(features="scattering"))
    with pytest.raises(UserError, match=r"privacy\.features = 'scattering' needs images.*\(4,\)"):
        kind(consensus="sharpened", teacher="both").check_client(table)
    kind(consensus="sharpened").check_client(table)
    kind(consensus="sharpened", teacher="both").check_client(dataclasses.replace(table, alignment=client.alignment))


@every_method
@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments", "output_perturbation"])
def test_under_privacy_the_teacher_is_not_asked(
    kind: type[Exchanging], mechanism: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def released(teacher: str, folder: Path) -> tuple[dict[str, torch.Tensor], Any]:
        noise = iter(range(10_000))  # the same for both: what is sent may only differ by it
        monkeypatch.setattr(os, "urandom", lambda n: next(noise).to_bytes(2, "big") * (n // 2) + b"\1" * (n % 2))
        privacy = PrivacySettings(mechanism=mechanism, dimensions=12, force=True)
        [site] = small_sites(1, models=("mlp",), rounds=2, privacy=privacy, ledgers=folder)
        method = small(kind, consensus="sharpened", teacher=teacher)
        message = method.broadcast(method.server_init(roster_of([site])), 0)
        update = method.client_update(
            method.client_init(site.client),  # type: ignore[arg-type]
            site.client,
            message,
            0,
            RNG,
        )
        return update.message.arrays, update.state

    expected, _ = released("network", tmp_path / "network")
    monkeypatch.setattr(module, "teacher_outputs", lambda client: unasked())
    found, state = released("features", tmp_path / "features")
    assert state.teacher_phi is None
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert torch.equal(array, found[name])


@pytest.mark.parametrize(
    "method",
    [
        FedBNN(prior_steps=3, mc_samples=2, consensus="sharpened", teacher="both", rehearsal=0.2),
        FedMD(digest_steps=3, teacher="features"),
    ],
    ids=lambda method: method.name,
)
def test_what_was_taught_is_saved_and_a_resumed_run_equals_one_that_was_never_stopped(
    method: Exchanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = small_sites(2, augment="flip_shift")
    whole, half = Federation(method, sites), Federation(method, sites)
    whole.run(2)
    half.run(1)
    folders = [tmp_path / name for name in ("whole", "half", "resumed")]
    for folder in folders:
        folder.mkdir()
    half.save(folders[1])
    for site in sites:
        file = f"client-{site.client.index:04d}.safetensors"
        assert torch.equal(load_file(folders[1] / file)["teacher_phi"], teacher_outputs(site.client))
    monkeypatch.setattr(
        module, "teacher_outputs", lambda client: unasked()
    )  # it is in the state, and is not fitted again
    resumed = Federation(method, sites)
    resumed.load(folders[1], 1)
    resumed.run(2)
    whole.save(folders[0])
    resumed.save(folders[2])
    names = sorted(file.name for file in folders[0].iterdir())
    assert names == sorted(file.name for file in folders[2].iterdir())
    for name in names:
        one, other = load_file(folders[0] / name), load_file(folders[2] / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
