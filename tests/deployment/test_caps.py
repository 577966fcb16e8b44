"""A site's cap: what whoever writes the terms can change, and what that gives him."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbnn import UserError
from fedbnn.deployment.node import Node
from fedbnn.deployment.terms import Terms, alignment_hash, read_terms
from fedbnn.federation.message import Message
from fedbnn.methods import DPFedAvg
from fedbnn.privacy import Budget
from fedbnn.privacy.overview import overview
from tests.deployment.deployment_sample import ask, small_config, write_sites

PRIVATE = ("privacy.mechanism=dp_teacher", "privacy.dimensions=10")
CAP = "[privacy]\nepsilon = 3\ndelta = 1e-5"


def site(folder: Path, *changes: str, extra: str = CAP, method: str = "fedbnn") -> Path:
    """A site whose labels are names, as in a table."""
    file = write_sites(folder, small_config(method, *changes), extra)[0]
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    names = {name: arrays[name].astype(np.str_) for name in ("y_train", "y_test")}
    np.savez(file.parent / "records.npz", **arrays | names)
    return file


def rewrite(file: Path, **changes: object) -> None:
    """Other terms, as whoever writes them likes."""
    terms = json.loads((file.parent / "terms.json").read_text())
    for field, value in changes.items():
        part, _, name = field.rpartition("__")
        (terms[part] if part else terms)[name] = value
    (file.parent / "terms.json").write_text(json.dumps(terms))


def released(file: Path) -> float:
    """Epsilon on record after the site was asked for its first release, if it gave one."""
    node = Node.from_file(file)
    method, client = node.terms.chosen(), node.site.client
    arrays = {"weights": client.initial_weights()} if isinstance(method, DPFedAvg) else {}
    ask(node, "update", 0, Message(arrays))
    spent = overview(client.ledgers, 1e-5).epsilon
    assert spent is not None
    return spent


def rotated(file: Path) -> None:
    names = list(read_terms(file.parent / "terms.json").class_names)
    rewrite(file, class_names=names[1:] + names[:1])


def renamed(file: Path) -> None:
    rewrite(file, sites=["another name", "b", "c"])
    text = file.read_text()
    file.write_text(text.replace(text.splitlines()[1], 'name = "another name"'))


def other_alignment(file: Path) -> None:
    with np.load(file.parent / "alignment.npz") as archive:
        x = 2 * archive["x"] + 1
    np.savez(file.parent / "alignment.npz", x=x)
    rewrite(file, alignment__sha256=alignment_hash(x))


def other_order(file: Path) -> None:
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    np.savez(file.parent / "records.npz", **arrays | {name: arrays[name][::-1] for name in ("x_train", "y_train")})
    rewrite(file, run="again")


def a_record_fewer(file: Path) -> None:
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    np.savez(file.parent / "records.npz", **arrays | {name: arrays[name][1:] for name in ("x_train", "y_train")})
    rewrite(file, run="again")


@pytest.mark.parametrize("change", [rotated, renamed, other_alignment, other_order, a_record_fewer])
@pytest.mark.parametrize("extra", [CAP, "", CAP + "\ndisjoint = true"], ids=["cap", "terms", "disjoint"])
def test_no_change_of_terms_or_records_gives_a_fresh_budget(tmp_path, change, extra):
    file = site(tmp_path, *PRIVATE, extra=extra)
    assert 2.99 < released(file) <= 3
    change(file)
    with pytest.raises(UserError, match=r"is refused: epsilon 3\.000 is spent"):
        released(file)
    assert 2.99 < overview(file.parent / "state", 1e-5).epsilon <= 3


def upload(file: Path) -> bytes:
    """What leaves the site at first, from a new start of the run; its ledgers stay."""
    shutil.rmtree(file.parent / "state" / "runs", ignore_errors=True)
    return ask(Node.from_file(file), "update", 0, Message()).message.to_bytes()


@pytest.mark.parametrize("change", [other_order, a_record_fewer])
def test_an_answer_does_not_tell_whether_records_changed_since(tmp_path, change):
    """In the same run it is the one that was given before, in another run a fresh one, whatever the records are now."""
    file = site(tmp_path, *PRIVATE, extra="[privacy]\nepsilon = 8\ndelta = 1e-5")
    terms = (file.parent / "terms.json").read_text()
    first = upload(file)
    assert upload(file) == first
    change(file)  # also the name of the run
    assert upload(file) != first
    spent = overview(file.parent / "state", 1e-5).epsilon
    assert spent > 4.4
    (file.parent / "terms.json").write_text(terms)
    assert upload(file) == first
    assert overview(file.parent / "state", 1e-5).epsilon == spent


def test_terms_are_held_to_their_own_epsilon_under_a_larger_cap(tmp_path):
    """Each other head is another question: without the terms' own budget they go on up to the cap."""
    changes = ("privacy.mechanism=dp_moments", "privacy.dimensions=10", "privacy.epsilon=1.0", "rounds=12")
    file = site(tmp_path, *changes, extra="[privacy]\nepsilon = 8\ndelta = 1e-5")
    node = Node.from_file(file)
    shape = node.site.client.gate.shape
    ask(node, "update", 0, Message({"head": shape.empty()}))
    for number in range(1, 4):
        with pytest.raises(UserError, match=r"the budget of these terms is 1 "):
            ask(node, "update", number, Message({"head": shape.empty() + number}))
    assert overview(node.site.client.ledgers, 1e-5).epsilon <= 1
    rewrite(file, run="another")
    assert 1.3 < released_head(file) < 2  # another run may have its own, within the cap


def released_head(file: Path) -> float:
    node = Node.from_file(file)
    ask(node, "update", 0, Message({"head": torch.ones_like(node.site.client.gate.shape.empty())}))
    return overview(node.site.client.ledgers, 1e-5).epsilon


# DP-FedAvg hangs on the same cap and the same ledgers


def test_dp_fedavg_is_charged_to_the_sites_ledgers(tmp_path):
    file = site(tmp_path, "methods.dp_fedavg.steps=1", method="dp_fedavg")
    first = released(file)
    assert 0.5 < first < 3
    assert released(file) == first  # the same question
    rewrite(file, run="once-more")  # another one, and more than the cap's rest in the end
    node = Node.from_file(file)
    start = node.site.client.initial_weights()
    ask(node, "update", 0, Message({"weights": start}))
    ask(node, "update", 1, Message({"weights": start + 1}))
    with pytest.raises(UserError, match="is refused"):
        ask(node, "update", 2, Message({"weights": start + 2}))
    assert overview(file.parent / "state", 1e-5).epsilon <= 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("methods.dp_fedavg.epsilon=3.5",), "epsilon = 3.5, this site's cap is 3"),
        (("methods.dp_fedavg.level=user", "methods.dp_fedavg.delta=0.01"), "promise nothing about records"),
        (("methods.dp_fedavg.noise=seed",), "noise = 'seed' is for experiments on one machine"),
    ],
)
def test_terms_of_dp_fedavg_that_a_cap_refuses(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        Node.from_file(site(tmp_path, *changes, method="dp_fedavg"))


def test_seeded_noise_is_refused_without_a_cap_too(tmp_path):
    with pytest.raises(UserError, match="only 'system' is allowed here"):
        Node.from_file(site(tmp_path, "methods.dp_fedavg.noise=seed", extra="", method="dp_fedavg"))


def test_the_cap_is_the_first_limit_on_record(tmp_path):
    file = site(tmp_path, *PRIVATE, extra="[privacy]\nepsilon = 5\ndelta = 1e-5")
    released(file)
    [entry] = overview(file.parent / "state", 1e-5).entries
    assert entry.cap == Budget(5.0, 1e-5)
    assert Terms.from_json((file.parent / "terms.json").read_text()).privacy.epsilon == 3
