"""How many bytes cross the wire, and how that compares with exchanging weights."""

import math
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, Spread, cell, counted, show, size
from fedbnn.report.load import Group
from fedbnn.report.table import Table, row, table

BYTES_A_WEIGHT = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in one round, means over clients and seeds.

    Attributes:
        method: whose traffic it is.
        up: bytes sent.
        down: bytes received.
        parameters: weights of the mean client's model.
    """

    method: str
    up: float
    down: float
    parameters: float

    @property
    def weights(self) -> float:
        """Bytes of the mean client's weights in float32: what exchanging weights would need, each way."""
        return self.parameters * BYTES_A_WEIGHT

    def in_words(self) -> str:
        if self.up == 0 and self.down == 0:
            return "Nothing is exchanged: each client learns alone."
        words = f"In a round a client sends {show(self.up, size)} and receives {show(self.down, size)}."
        if not math.isfinite(self.parameters):
            return words
        return (
            f"{words} What exchanging weights would need: {show(self.weights, size)} each way "
            f"({counted(round(self.parameters), 'weight')} a client on average, 4 bytes each): {self.ratio()}."
        )

    def ratio(self) -> str:
        """The weights against what is sent, such as "25 times as much"."""
        if not self.up > 0 or not math.isfinite(self.weights):
            return MISSING
        times = self.weights / self.up
        if 0.95 <= times < 1.05:
            return "about the same"
        return f"{times:,.0f} times as much" if times >= 10 else f"{times:.1f} times as much"


def traffic_of(group: Group) -> Traffic:
    weights = [weight for result in group.results for weight in result.per_client.weights]
    return Traffic(
        method=group.method,
        up=Spread.of([result.bytes_up_per_client_round for result in group.results]).mean,
        down=Spread.of([result.bytes_down_per_client_round for result in group.results]).mean,
        parameters=sum(weights) / len(weights) if weights else math.nan,
    )


def traffic_table(traffic: list[Traffic]) -> Table:
    rows = [row(of.method, *(cell(v, size) for v in (of.up, of.down, of.weights)), of.ratio()) for of in traffic]
    return table(["Method", "Sends", "Receives", "Weights", "Weights against sent"], rows)
