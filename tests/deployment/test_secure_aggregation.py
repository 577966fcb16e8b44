"""Secure aggregation among sites with files of their own: signers, restarts in every phase, and what is refused."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedbnn.base.errors import UserError
from fedbnn.deployment.agreement import Refused
from fedbnn.deployment.node import Node
from fedbnn.deployment.state import SiteState
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.server import Server
from fedbnn.privacy.head import MOMENTS, improved
from fedbnn.privacy.secure.primitives import signer_of
from fedbnn.privacy.secure.session import Phase, ProtocolError
from fedbnn.privacy.secure.signing import make_signing_key, read_signing_key
from fedbnn.privacy.sums import UNIT
from tests.deployment.deployment_sample import ask, site_nodes, small_config

SECURE = (
    "partition.clients=4",
    "privacy.mechanism=dp_moments",
    "privacy.aggregation=secure",
    "privacy.dimensions=10",
    "privacy.local_epsilon=12.0",
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "federation"
    terms = write_federation(folder, small_config("fedmd", *SECURE))
    return [folder / "sites" / name / "site.toml" for name in terms.sites]


def new_server(nodes: list[Node]) -> Server:
    terms = nodes[0].terms
    return Server(terms.chosen(), roster_of([node.site for node in nodes]), seed=terms.seed)


def over_the_wire(message: Message) -> Message:
    return Message.from_bytes(message.to_bytes())


def head_of(survivors: Sequence[Site]) -> torch.Tensor:
    """The head from the sum of what these sites' ledgers hold, which is one release each."""
    kept = [list(site.client.gate.account.ledger.glob("releases/*.bin")) for site in survivors]
    assert {len(one) for one in kept} == {1}
    total = sum(np.frombuffer(one[0].read_bytes(), np.int64) for one in kept)
    gate = survivors[0].client.gate
    sd = gate.plan.noise_multiplier * gate.shape.sensitivity * math.sqrt(len(survivors))
    return improved(gate.shape.empty(), torch.from_numpy(total) * UNIT, sd, gate.public.moments, gate.shape, MOMENTS)


def test_sites_restarted_in_every_phase_give_the_exact_sum(files):
    """A new process for every message, each asked twice: the same bytes, and the head is that of the ledgers' sum."""
    server, phases = new_server(site_nodes(files)), []
    while server.round_number < 0:
        messages = {client: over_the_wire(message) for client, message in server.messages(server.asked).items()}
        phases.append(Phase(int(messages[0].arrays["phase"])))
        replies = {}
        for client, message in messages.items():
            replies[client] = ask(Node.from_file(files[client]), "update", 0, message).message
            again = ask(Node.from_file(files[client]), "update", 0, message).message
            assert again.to_bytes() == replies[client].to_bytes()
            assert not server.refusal(client, replies[client])
        server.take_in(replies)
    assert phases == [Phase.KEYS, Phase.SHARES, Phase.MASKED, Phase.VOTES, Phase.REVEALED]
    nodes = site_nodes(files)
    assert torch.equal(server.state.head, head_of([node.site for node in nodes]))
    for node in nodes:
        [charge] = ledger_of(node)
        assert charge["mu"] == node.site.client.gate.plan.mu
        assert "memory" not in node._host_after(node.state.turn()).states[node.site.client.index].tensors()


def ledger_of(node: Node) -> list[dict]:
    text = (node.site.client.gate.account.ledger / "ledger.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == "charge"]


def up_to(phase: Phase, files: list[Path]) -> tuple[Server, list[Node]]:
    """The server about to ask for this phase."""
    nodes = site_nodes(files)
    server = new_server(nodes)
    while server.state.half.phase < phase:
        messages = server.messages(server.asked)
        server.take_in({client: ask(nodes[client], "update", 0, one).message for client, one in messages.items()})
    return server, nodes


@pytest.mark.parametrize("phase", [Phase.SHARES, Phase.MASKED, Phase.VOTES, Phase.REVEALED])
def test_a_phase_is_answered_once_and_never_again_otherwise(files, phase):
    server, nodes = up_to(phase, files)
    [message] = server.messages([0]).values()
    first = ask(nodes[0], "update", 0, message).message
    other = message.arrays["request"].clone()
    other[-1] += 1
    with pytest.raises(Refused, match="round 0 was asked for before, with another message"):
        ask(nodes[0], "update", 0, Message({**message.arrays, "request": other}))
    earlier = {**message.arrays, "phase": torch.tensor([0]), "request": other[:0]}
    with pytest.raises(Refused, match="exchange 0 of round 0 is past"):
        ask(nodes[0], "update", 0, Message(earlier))
    assert ask(Node.from_file(files[0]), "update", 0, message).message.to_bytes() == first.to_bytes()


def test_killed_between_release_and_reply_it_masks_the_same_numbers_again(files, monkeypatch):
    """The ledger has the noisy numbers, the saved phase has the keys: what was lost comes back, bit for bit."""
    server, nodes = up_to(Phase.MASKED, files)
    [message] = server.messages([0]).values()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SiteState, "save_turn", dies)
        with pytest.raises(KeyboardInterrupt):
            ask(nodes[0], "update", 0, message)
    assert len(ledger_of(nodes[0])) == 1
    first = ask(Node.from_file(files[0]), "update", 0, message).message
    assert len(ledger_of(nodes[0])) == 1
    rest = server.messages([1, 2, 3])
    replies = {client: ask(nodes[client], "update", 0, one).message for client, one in rest.items()}
    server.take_in({0: first, **replies})
    while server.round_number < 0:
        messages = server.messages(server.asked)
        server.take_in({c: ask(Node.from_file(files[c]), "update", 0, one).message for c, one in messages.items()})
    nodes = site_nodes(files)
    assert torch.equal(server.state.head, head_of([node.site for node in nodes]))


def test_a_phase_cannot_be_skipped(files):
    server, nodes = up_to(Phase.SHARES, files)
    [message] = server.messages([0]).values()
    with pytest.raises(ProtocolError, match="MASKED was asked for, SHARES is next"):
        ask(nodes[0], "update", 0, Message({**message.arrays, "phase": torch.tensor([2])}))
    ask(nodes[0], "update", 0, message)


def secrets_in(place: Path) -> bool:
    """Whether any saved state holds the memory of an aggregation."""
    return any("memory" in load_file(file) for file in place.rglob("client-*.safetensors"))


def test_secrets_are_forgotten_with_the_last_answer(files):
    server, nodes = up_to(Phase.REVEALED, files)
    [message] = server.messages([0]).values()
    assert secrets_in(nodes[0].state.path)
    ask(nodes[0], "update", 0, message)
    assert not secrets_in(nodes[0].state.path)


def test_a_damaged_state_is_not_replaced_by_one_that_would_answer_a_phase_again(files):
    server, nodes = up_to(Phase.REVEALED, files)
    [voted] = (nodes[0].state.path / "checkpoint").glob("round-*")
    older = voted.with_name("round-00000.2")
    shutil.copytree(voted, older)
    manifest = json.loads((older / "manifest.json").read_text())
    (older / "manifest.json").write_text(json.dumps({**manifest, "part": 2}))
    (voted / "turn.json").write_text("{}")
    [message] = server.messages([0]).values()
    with pytest.raises(UserError, match="an older one would answer a phase of the aggregation a second time"):
        ask(Node.from_file(files[0]), "update", 0, message)


def test_all_sites_count_on_the_same_noise(files):
    """With twice the noise at one site, each would account for more noise of the others than they add."""
    text = files[0].read_text()
    assert "multiplicity = 1" in text
    files[0].write_text(text.replace("multiplicity = 1", "multiplicity = 2"))
    with pytest.raises(UserError, match=r"privacy\.multiplicity = 2: .* agreed was 1"):
        Node.from_file(files[0])
    for file in files:
        changed_terms(file, multiplicity=2)
        file.write_text(file.read_text().replace("multiplicity = 1", "multiplicity = 2"))
    assert {node.site.client.gate.plan.multiplicity for node in site_nodes(files)} == {2}


# Who is who


def changed_terms(file: Path, **changes: object) -> None:
    path = file.parent / "terms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_site_has_its_own_key_and_the_terms_its_public_half(files):
    terms = read_terms(files[0].parent / "terms.json")
    keys = [file.parent / "signing.key" for file in files]
    assert terms.signers == tuple(signer_of(read_signing_key(key)).hex() for key in keys)
    assert len(set(terms.signers)) == 4
    assert all(key.stat().st_mode & 0o777 == 0o600 for key in keys)
    assert not list((files[0].parents[2] / "server").glob("**/*.key"))


def test_a_site_without_its_key_does_not_take_part(files, tmp_path):
    other = tmp_path / "other.key"
    make_signing_key(other)
    text = files[0].read_text()
    for replaced, why in (
        ('signing_key = "../client-1/signing.key"', "is not the key that the terms name for 'client-0'"),
        (f'signing_key = "{other}"', "is not the key that the terms name for 'client-0'"),
        ('signing_key = "nowhere"', "is no key"),
        ("", "signing_key is missing"),
    ):
        files[0].write_text(text.replace('signing_key = "signing.key"', replaced))
        with pytest.raises(UserError, match=why):
            Node.from_file(files[0])


def test_real_sites_need_signers(files):
    changed_terms(files[0], signers=[])
    with pytest.raises(UserError, match="the server could pretend to be all other sites"):
        Node.from_file(files[0])


@pytest.mark.parametrize("signers", [["00" * 32], ["00" * 32] * 4, ["XY" * 32] * 4, ["00"] * 4])
def test_terms_name_one_key_for_each_site(files, signers):
    changed_terms(files[0], signers=signers)
    with pytest.raises(UserError, match="signers"):
        Terms.from_json((files[0].parent / "terms.json").read_text())


def test_the_cap_is_held_against_what_remains_if_the_aggregation_is_broken(files):
    text = files[0].read_text()
    assert "epsilon = 12.0" in text
    files[0].write_text(text.replace("epsilon = 12.0", "epsilon = 11.0"))
    with pytest.raises(Refused, match=r"the terms ask for epsilon = 12, this site's cap is 11"):
        Node.from_file(files[0])


def test_keys_are_never_written_over(tmp_path):
    public = make_signing_key(tmp_path / "key")
    assert signer_of(read_signing_key(tmp_path / "key")).hex() == public
    with pytest.raises(UserError, match="is there already"):
        make_signing_key(tmp_path / "key")
    with pytest.raises(UserError, match="cannot be written"):
        make_signing_key(tmp_path / "nowhere" / "key")
