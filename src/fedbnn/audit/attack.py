"""What an attack is: turns in which an adversary asks, and what it reads from each answer.

The adversary sees what is on the wire: the arrays of an answer, the facts beside them where the wire carries any, and
whether there was an answer at all. A trial is one row of numbers: what was read from the arrays of each turn, the size
of their noise over all turns, how many turns failed, and the facts.

Noise whose size depends on the records gives them away as surely as a sum without noise does, so its size is among
what is shown. A failure in one world that is none in the other is also seen. Timing is not looked at.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.federation.message import Message


@dataclass(frozen=True)
class Answer:
    """What leaves in one turn."""

    message: Message
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """What the adversary makes of the arrays of an answer.

    Attributes:
        looks: how far the answer went along directions that the record moves.
        power: mean square of what is not known beforehand: the noise, for the most part.

    """

    looks: list[float]
    power: float


@dataclass(frozen=True)
class Attack:
    """Attributes:

    turns: how often the adversary asks.
    planned: how many of the turns have to be answered; more may be refused.
    answer: (whether the record is there, turn, folder of the ledgers of this trial) -> what leaves.
    read: (turn, arrays) -> what the adversary sees in them.
    looks: of one reading, how many.

    """

    turns: int
    planned: int
    answer: Callable[[bool, int, Path], Answer]
    read: Callable[[int, Message], Reading]
    looks: int

    def trial(self, present: bool, ledgers: Path) -> list[float]:
        """What is seen of new ledgers in one world; zeros for what is refused."""
        looks: list[float] = []
        power, answered, refused, failed, facts = 0.0, 0, 0, 0, [0.0, 0.0]
        for turn in range(self.turns):
            try:
                answer = self.answer(present, turn, ledgers)
            except UserError:
                refused += 1
                looks += [0.0] * self.looks
            except Exception:  # whatever it is: on the wire it is a failure
                failed += 1
                looks += [0.0] * self.looks
            else:
                reading = self.read(turn, answer.message)
                looks += reading.looks
                power, answered = power + reading.power, answered + 1
                facts[0] += len(answer.facts)
                facts[1] += sum(answer.facts.values())
        size = math.log(power / answered) if power > 0 else 0.0
        return [*looks, size, float(refused), float(failed), *facts]

    def check(self, ledgers: Path) -> None:
        """Raise what goes wrong in a planned turn in both worlds: there is nothing to attack."""
        problems: list[Exception | None] = []
        for present in (False, True):
            try:
                for turn in range(self.planned):
                    self.answer(present, turn, ledgers / str(present))
                problems.append(None)
            except Exception as error:
                problems.append(error)
        if problems[0] and problems[1]:
            raise problems[0]
