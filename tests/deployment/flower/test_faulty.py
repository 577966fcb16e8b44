"""Faults on Flower's simulation are those of the local engine: who fails, how, and what is left, bit for bit."""

from pathlib import Path

import torch
from flwr.clientapp import ClientApp

from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.flower.faulty import FaultyStrategy, MortalNode
from fedbnn.deployment.flower.strategy import FederationStrategy
from fedbnn.federation.engines import Site
from fedbnn.federation.faults import FaultSettings
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.server import Server
from fedbnn.methods import FedBNN
from tests.deployment.flower.test_strategy import ROUNDS, World, configured

METHOD = FedBNN(prior_steps=2, mc_samples=2)
FAULTS = FaultSettings(dropout=0.15, straggler=0.2, crash=0.2, corrupt=0.15)
SEED, QUORUM = 11, 2  # with which every kind of fault comes up, and two rounds are held again


class FaultyWorld(World):
    def app(self, site: Site) -> ClientApp:
        node = MortalNode(self.terms, site, self.folder / str(site.client.index), share_metrics=True)
        return make_app(lambda _, question: node.asked_with(question), share_errors=True)

    def new_strategy(self, quorum: int = 1) -> FederationStrategy:
        server = Server(self.config.chosen(), roster_of(self.sites), seed=self.config.seed, quorum=quorum)
        return FaultyStrategy(
            self.terms,
            server,
            Attendance(self.terms, self.told.append),
            faults=FAULTS,
            timeout=10.0,
            tell=self.told.append,
            finished=self.rounds.append,
        )


def test_the_same_sites_fail_as_on_the_local_engine(tmp_path: Path) -> None:
    config = configured(METHOD, f"seed={SEED}")
    world = FaultyWorld(config, tmp_path, quorum=QUORUM)
    world.strategy.run_rounds(world.grid)
    local = Federation(METHOD, world.sites, seed=SEED, faults=FAULTS, quorum=QUORUM)
    expected = local.run(ROUNDS)
    ours, theirs = world.strategy.server.state.tensors(), local.server.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for mine, other in zip(world.rounds, expected, strict=True):
        assert mine.fell_short == other.fell_short
        assert {c: t.rejected for c, t in mine.turns.items()} == {c: t.rejected for c, t in other.turns.items()}
        assert {c: dict(t.info) for c, t in mine.turns.items()} == {c: dict(t.info) for c, t in other.turns.items()}
        for client, scores in other.scores.items():
            assert mine.scores[client]["personal"].to_dict() == scores["personal"].to_dict()
    drawn = [FAULTS.drawn(SEED, one.number, k, range(3)) for one in expected for k in range(one.fell_short + 1)]
    assert {fault for faults in drawn for fault in faults.values()} == set(FAULTS.rates)
    assert [one.fell_short for one in expected] == [1, 0, 2]
