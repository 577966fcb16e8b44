"""dp_moments under secure aggregation: the same head as without, from sums that the server never sees."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import InProcess, Reply, Site
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.server import Server
from fedbnn.methods import FedBNN, FedMD
from fedbnn.methods.mechanisms.aggregation import words
from fedbnn.privacy import PrivacySettings, release_gate
from fedbnn.privacy.accountant import gaussian_epsilon
from fedbnn.privacy.head import MOMENTS, contributions, improved
from fedbnn.privacy.ledger import Ledger
from fedbnn.privacy.secure.primitives import signer_of
from fedbnn.privacy.secure.session import Phase, ProtocolError
from fedbnn.privacy.sums import UNIT, grid_sum
from tests.federation_sample import small_sites, with_client

CLIENTS = 5
PLAIN = PrivacySettings("dp_moments", epsilon=3.0, dimensions=12, releases=2)
SECURE = replace(PLAIN, aggregation="secure", local_epsilon=3.0)


def sites_of(privacy: PrivacySettings, folder: Path, **changes: Any) -> list[Site]:
    return small_sites(CLIENTS, models=("mlp",), privacy=privacy, ledgers=folder, **changes)


def with_signers(sites: list[Site], folder: Path) -> list[Site]:
    folder.mkdir(exist_ok=True)
    keys = [bytes([index + 1]) * 32 for index in range(len(sites))]
    for index, key in enumerate(keys):
        (folder / f"{index}.key").write_text(key.hex())
    known = tuple(signer_of(key).hex() for key in keys)
    return [with_client(site, signers=known, signing_key=folder / f"{index}.key") for index, site in enumerate(sites)]


class Losing(InProcess):
    """An engine that loses the replies of some clients from some exchange on, and keeps all others."""

    def __init__(self, lost: Mapping[int, set[int]]) -> None:
        super().__init__()
        self.lost = lost
        self.exchange = -1
        self.away: set[int] = set()
        self.replies: list[dict[int, Reply]] = []
        self.messages: list[Mapping[int, Message]] = []

    def update(self, round_number, messages):
        self.exchange += 1
        messages = {client: message for client, message in messages.items() if client not in self.away}
        self.away |= self.lost.get(self.exchange, set())
        found = {client: reply for client, reply in super().update(round_number, messages) if client not in self.away}
        self.replies.append(found)
        self.messages.append(messages)
        return iter(found.items())


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, Tensor]:
    """No noise; what was released, by order."""
    released: list[Tensor] = []

    def without(total: Tensor, *_: object) -> Tensor:
        released.append(total)
        return total

    monkeypatch.setattr(release_gate, "with_noise", without)
    return released  # type: ignore[return-value]


@pytest.mark.parametrize("signers", [False, True])
@pytest.mark.parametrize("method", [FedMD(digest_steps=2), FedBNN(prior_steps=2, mc_samples=2)], ids=lambda m: m.name)
def test_the_head_is_that_without_aggregation(method, signers, silent, tmp_path):
    """Equal budgets give equal noise, here none at all: head, consensus and every client's network, bit for bit."""
    runs = []
    for privacy in (PLAIN, SECURE):
        sites = sites_of(privacy, tmp_path / privacy.aggregation)
        federation = Federation(method, with_signers(sites, tmp_path / "keys") if signers else sites)
        rounds = federation.run(2)
        runs.append((federation, rounds))
    (plain, before), (secure, after) = runs
    assert plain.server.left == secure.server.left == 0  # type: ignore[attr-defined]
    for name, tensor in plain.server.tensors().items():
        assert torch.equal(tensor, secure.server.tensors()[name]), name
    assert "aggregation" not in secure.server.tensors()
    for one, other in zip(before, after, strict=True):
        for client in range(CLIENTS):
            assert one.scores[client]["personal"].scores == other.scores[client]["personal"].scores
            assert one.turns[client].info == other.turns[client].info


@pytest.mark.parametrize("exchange", range(5))
def test_the_sum_is_that_of_the_survivors(exchange, silent, tmp_path):
    """Client 2 is gone from some exchange of the first round on."""
    sites = with_signers(sites_of(SECURE, tmp_path), tmp_path / "keys")
    engine = Losing({exchange: {2}})
    federation = Federation(FedMD(digest_steps=1), sites, engine=engine)
    federation.step(evaluate=False)
    asked = [sorted(messages) for messages in engine.messages]
    everybody, others = list(range(CLIENTS)), [0, 1, 3, 4]
    assert asked == [everybody if k <= exchange else others for k in range(5)]
    survivors = everybody if exchange > Phase.MASKED else others
    # Sums without noise of the clients that were in, from a plain run of these alone.
    alone = Losing({0: set(everybody) - set(survivors)})
    plain = Federation(FedMD(digest_steps=1), sites_of(PLAIN, tmp_path / "plain"), engine=alone)
    plain.step(evaluate=False)
    assert torch.equal(federation.server.head, plain.server.head)  # type: ignore[attr-defined]


@pytest.mark.parametrize("exchange", range(5))
def test_too_few_clients_end_the_run_with_a_reason(exchange, tmp_path):
    sites = with_signers(sites_of(SECURE, tmp_path), tmp_path / "keys")
    federation = Federation(FedMD(digest_steps=1), sites, engine=Losing({exchange: {2, 3}}))
    with pytest.raises(UserError, match="round 0: fewer than 4 good replies 3 times in a row"):
        federation.step(evaluate=False)


def test_the_server_is_sent_nothing_that_it_could_read(silent, tmp_path):
    """Not one number of any client's sums crosses the wire, and sums of the same records look different each time."""
    engine = Losing({})
    federation = Federation(FedMD(digest_steps=1), sites_of(SECURE, tmp_path), engine=engine)
    federation.step(evaluate=False)
    masked = [reply.message.arrays["answer"] for reply in engine.replies[Phase.MASKED].values()]
    assert len(silent) == CLIENTS
    sent = set(torch.cat(masked).tolist())
    assert sent.isdisjoint(torch.cat(list(silent)).unique().tolist())  # type: ignore[arg-type]
    assert {name for replies in engine.replies for reply in replies.values() for name in reply.message.arrays} == {
        "answer"
    }
    total = torch.stack(list(silent)).sum(0)  # type: ignore[arg-type]
    assert not torch.equal(torch.stack(masked).sum(0), total)


def test_local_training_happens_once_in_a_round(silent, tmp_path):
    engine = Losing({})
    federation = Federation(FedMD(digest_steps=1), sites_of(SECURE, tmp_path), engine=engine)
    [warm_up] = federation.run(0)
    infos = [{client: dict(reply.info) for client, reply in replies.items()} for replies in engine.replies]
    assert all("loss" in info for info in infos[0].values())
    assert all(not info for later in infos[1:] for info in later.values())
    assert warm_up.turns[1].bytes_up == sum(replies[1].message.nbytes for replies in engine.replies)


def test_the_ledger_is_charged_the_local_guarantee_once(tmp_path):
    """epsilon 3 of the sum at local epsilon 100: both releases are on the ledger with a client's own noise alone."""
    privacy = replace(SECURE, local_epsilon=100.0, corrupt=0.2)
    sites = sites_of(privacy, tmp_path)
    Federation(FedMD(digest_steps=1), sites).run(3)
    shares = privacy.shares(12, 1, CLIENTS)
    assert shares.crowd.honest == 3
    for site in sites:
        spending = Ledger.read(site.client.gate.account.ledger)
        assert [charge.cost.mu for charge in spending.entries] == pytest.approx([shares.mu_local] * 2, rel=1e-5)
        assert [charge.joined for charge in spending.entries] == [shares.mu_joined] * 2
        mu_sum = math.sqrt(2) * shares.mu_joined
        assert spending.cost().mu == pytest.approx(mu_sum * math.sqrt(3), rel=1e-5)
        assert gaussian_epsilon(mu_sum, 1e-5) == pytest.approx(3, rel=1e-4)
        told = site.client.gate.guarantee()
        assert told.joined == pytest.approx(3, rel=1e-4)
        assert told.epsilon == pytest.approx(gaussian_epsilon(mu_sum * math.sqrt(3), 1e-5), rel=1e-4)


def test_noise_of_the_sum_is_as_small_as_promised(tmp_path):
    """Each of five clients has a third of the variance that one alone needs, as three certainly are honest and stay."""
    privacy = replace(SECURE, local_epsilon=1000.0, releases=1, dimensions=60, corrupt=0.2)
    sites = sites_of(privacy, tmp_path)
    off = []
    for site in sites:
        gate = site.client.gate
        exact = grid_sum(contributions(gate.public.features(gate.x), gate.y, gate.shape.empty(), gate.shape))
        off.append((gate.sums(gate.shape.empty()) - exact).numpy() * UNIT)
    alone = replace(PLAIN, releases=1).plan(12, 1).noise_multiplier * gate.shape.sensitivity
    near = 5 / math.sqrt(2 * len(off[0]))
    assert np.std(sum(off)) == pytest.approx(alone * math.sqrt(5 / 3), rel=near)
    assert np.std(off[0] + off[1] + off[2]) == pytest.approx(alone, rel=near)


def test_numbers_of_one_sum_never_go_into_a_second(tmp_path):
    """A server that begins anew at the same head gets other noise, which is charged, or nothing."""
    sites = sites_of(replace(SECURE, releases=1), tmp_path)
    for attempt in range(2):
        server = Server(FedMD(digest_steps=1), roster_of(sites))
        engine = InProcess()
        engine.start(server.method, sites, 0)
        for phase in (Phase.KEYS, Phase.SHARES, Phase.MASKED):
            if attempt == 1 and phase == Phase.MASKED:
                with pytest.raises(UserError, match=r"refused: epsilon 3\.000 is spent"):
                    dict(engine.update(0, server.messages(server.asked)))
                return
            replies = dict(engine.update(0, server.messages(server.asked)))
            server.take_in({client: reply.message for client, reply in replies.items()})


def test_a_client_refuses_a_server_that_wants_plain_sums(tmp_path):
    sites = sites_of(SECURE, tmp_path)
    method, client = FedMD(digest_steps=1), sites[0].client
    head = client.gate.shape.empty()
    engine = InProcess()
    engine.start(method, sites, 0)
    for arrays, why in (
        ({"head": head}, "does not say which phase"),
        ({"head": head, "phase": torch.tensor([7])}, "does not say which phase"),
        ({"head": head, "phase": torch.tensor([0.0])}, "does not say which phase"),
        ({"head": head, "phase": torch.tensor([0])}, "without request"),
        ({"head": head, "phase": torch.tensor([2]), "request": words(bytes(8))}, "none has begun"),
    ):
        with pytest.raises(ProtocolError, match=why):
            dict(engine.update(0, {0: Message(arrays)}))
    assert not client.gate.account.ledger.exists()


def test_a_bad_request_is_refused_before_anything_is_charged(tmp_path):
    sites = sites_of(SECURE, tmp_path)
    server = Server(FedMD(digest_steps=1), roster_of(sites))
    engine = InProcess()
    engine.start(server.method, sites, 0)
    for _ in range(2):
        server.take_in({client: reply.message for client, reply in engine.update(0, server.messages(server.asked))})
    [message] = server.messages([0]).values()
    request = message.arrays["request"].clone()
    request[30] ^= 1
    with pytest.raises(ProtocolError, match="letter of client"):
        dict(engine.update(0, {0: Message({**message.arrays, "request": request})}))
    other = {**message.arrays, "head": message.arrays["head"] + 1}
    with pytest.raises(ProtocolError, match="another aggregation"):
        dict(engine.update(0, {0: Message(other)}))
    assert not sites[0].client.gate.account.ledger.exists()


def test_states_in_the_middle_of_a_round_can_be_saved(silent, tmp_path):
    """Server and clients go through files between all exchanges and come to the same head."""
    sites = with_signers(sites_of(SECURE, tmp_path / "ledgers"), tmp_path / "keys")
    method = FedMD(digest_steps=1)
    straight = Federation(method, with_signers(sites_of(PLAIN, tmp_path / "plain"), tmp_path / "keys"))
    straight.step(evaluate=False)
    server = Server(method, roster_of(sites))
    engine = InProcess()
    engine.start(method, sites, 0)
    while server.round_number < 0:
        replies = dict(engine.update(0, server.messages(server.asked)))
        server.take_in({client: reply.message for client, reply in replies.items()})
        for kept in (server, engine):
            kept.save(tmp_path)
        server, engine = Server(method, roster_of(sites)), InProcess()
        engine.start(method, sites, 0)
        engine.load(tmp_path)
        server.load(tmp_path, -1)
        if not server.method.still_asked(server.state):
            break
    assert torch.equal(server.state.head, straight.server.head)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("workers", "noise"), [(0, "continuous"), (1, "discrete")])
def test_the_head_is_made_of_what_the_ledgers_hold(workers, noise, one_worker, tmp_path):
    """With real noise: the sum of all clients' releases, as their own ledgers keep them, gives the head to the bit."""
    privacy = replace(SECURE, local_epsilon=16.0, releases=1, noise=noise)
    sites = sites_of(privacy, tmp_path)
    federation = Federation(FedMD(digest_steps=1), sites, engine=one_worker if workers else InProcess())
    federation.step(evaluate=False)
    kept = [file for site in sites for file in (site.client.gate.account.ledger / "releases").iterdir()]
    assert len(kept) == CLIENTS
    total = sum(np.frombuffer(file.read_bytes(), np.int64) for file in kept)
    gate = sites[0].client.gate
    sd = privacy.plan(12, 1, CLIENTS).noise_multiplier * gate.shape.sensitivity * math.sqrt(CLIENTS)
    head = improved(gate.shape.empty(), torch.from_numpy(total) * UNIT, sd, gate.public.moments, gate.shape, MOMENTS)
    assert torch.equal(federation.server.head, head)  # type: ignore[attr-defined]


def test_one_client_alone_is_told_before_any_work(tmp_path):
    sites = small_sites(1, models=("mlp",), privacy=SECURE, ledgers=tmp_path)
    with pytest.raises(UserError, match="one client alone has nobody"):
        Federation(FedMD(), sites)


def test_participation_must_leave_enough(tmp_path):
    sites = sites_of(SECURE, tmp_path)
    Federation(FedMD(digest_steps=1), sites, participation=0.8)
    with pytest.raises(UserError, match=r"participation = 0.6: 3 of 5 clients .* 4 are needed"):
        Federation(FedMD(digest_steps=1), sites, participation=0.6)
