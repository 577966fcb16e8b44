"""Secure aggregation over Flower's messages: every phase a round of Flower's, sites that are lost, a server killed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import Site
from fedbnn.federation.server import MOST_FAILURES
from fedbnn.federation.sites import with_ledgers
from tests.deployment.deployment_sample import small_config
from tests.deployment.flower.test_strategy import World
from tests.deployment.test_secure_aggregation import SECURE, head_of

CONFIG = small_config("fedmd", "rounds=1", *SECURE)


class Lost:
    """Loses the replies of a node to some of the questions that it is asked in training."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.count = lost, -1

    def __call__(self, reply: Message) -> Message | None:
        self.count += 1
        return None if self.count in self.lost else reply


class SecureWorld(World):
    """Sites with a place for their ledgers."""

    def app(self, site: Site) -> ClientApp:
        [placed] = with_ledgers([site], self.folder / "ledgers")
        self.sites = [placed if one.client.index == site.client.index else one for one in self.sites]
        return super().app(placed)

    @property
    def head(self) -> torch.Tensor:
        return self.strategy.server.state.head  # type: ignore[attr-defined]

    def head_from(self, *survivors: int) -> torch.Tensor:
        """From what the ledgers of these sites hold."""
        return head_of([self.sites[client] for client in survivors])


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[..., SecureWorld]:
    return lambda **more: SecureWorld(CONFIG, tmp_path, **more)


def test_the_strategy_goes_through_all_phases(new_world):
    world = new_world()
    world.strategy.run_rounds(world.grid)
    assert torch.equal(world.head, world.head_from(0, 1, 2, 3))
    assert [record.number for record in world.rounds] == [0, 1]
    assert all(len(record.scores) == 4 for record in world.rounds)
    assert not [line for line in world.told if "dropped" in line or "again" in line]
    assert world.rounds[0].turns[0].bytes_up > world.rounds[1].turns[0].bytes_up == 0


@pytest.mark.parametrize("exchange", range(4))
def test_a_site_that_is_lost_in_a_phase_is_left_out(exchange, new_world):
    """Without signers there are four exchanges, of which the third brings the numbers."""
    world = new_world(spoils={2: Lost(*range(exchange, 4))})
    world.strategy.run_rounds(world.grid)
    survivors = [0, 1, 2, 3] if exchange > 2 else [0, 1, 3]
    assert torch.equal(world.head, world.head_from(*survivors))
    assert world.rounds[0].turns[2].rejected == "it did not answer in time"


@pytest.mark.parametrize("exchange", range(4))
def test_an_exchange_that_too_few_answered_is_held_again(exchange, new_world):
    """Two of four replies are lost once; asked again, sites give what they gave, and all are in."""
    world = new_world(spoils={1: Lost(exchange), 2: Lost(exchange)})
    world.strategy.run_rounds(world.grid)
    assert "round 0 is held again: 2 good replies, 3 are needed" in world.told
    assert torch.equal(world.head, world.head_from(0, 1, 2, 3))


def test_a_run_that_too_few_answer_ends_with_a_reason(new_world):
    world = new_world(spoils={client: Lost(*range(2, 20)) for client in (1, 2)})
    with pytest.raises(UserError, match=rf"fewer than 3 good replies {MOST_FAILURES} times"):
        world.strategy.run_rounds(world.grid)


@pytest.mark.parametrize("exchange", range(1, 4))
def test_a_server_that_is_killed_between_phases_goes_on(exchange, new_world, tmp_path):
    world = new_world()
    kept = []

    def went_on() -> None:
        kept.append(1)
        world.strategy.server.save(tmp_path)
        if len(kept) == exchange:
            raise KeyboardInterrupt

    world.strategy._went_on = went_on
    with pytest.raises(KeyboardInterrupt):
        world.strategy.run_rounds(world.grid)
    world.strategy = world.new_strategy()
    world.strategy.server.load(tmp_path, -1)
    world.strategy.run_rounds(world.grid)
    assert torch.equal(world.head, world.head_from(0, 1, 2, 3))
