"""What differential privacy guarantees of a run, in numbers and in plain words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, listed
from fedbnn.report.protection import PROTECTIONS, meaning

_WHOLE = 2.0**53  # from here on a double has no digits left to round
NONE = "none"
"""Stands where a number would be read as a guarantee, were it there."""


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) guarantee as result.json tells it.

    Attributes:
        epsilon: how much the presence of one unit can show, at most; smaller is stronger.
        delta: the chance that is left out of account.
        unit: what is hidden: one "record", or all records of one "client".
        mechanism: how it is done, in a word or two.
        joined: the ε as long as nobody sees more than sums over clients (secure aggregation); None: it makes none.
    """

    epsilon: float
    delta: float
    unit: str
    mechanism: str
    joined: float | None = None

    @property
    def terms(self) -> str:
        """What the number is to be read with; numbers under different terms do not compare."""
        return f"at δ = {self.delta:g} for one {self.unit}"


def epsilon_text(guarantee: Guarantee | None) -> str:
    """ε, rounded up."""
    if guarantee is None:
        return NONE
    return _number(guarantee.epsilon)


def _number(epsilon: float) -> str:
    if math.isnan(epsilon):
        return MISSING
    if math.isinf(epsilon):
        return "∞"
    decimals = 2 if epsilon < 100 else 0
    return f"{rounded_up(epsilon, decimals):,.{decimals}f}"


def rounded_up(value: float, decimals: int) -> float:
    """Never less than the value, but for a millionth of the last digit that is shown."""
    scale = 10.0**decimals
    return math.ceil(value * scale - 1e-6) / scale if value * scale < _WHOLE else value


def rounded_down(value: float, decimals: int) -> float:
    """Never more than the value, but for a millionth of the last digit that is shown."""
    scale = 10.0**decimals
    return math.floor(value * scale + 1e-6) / scale if value * scale < _WHOLE else value


def weakest(guarantees: Sequence[Guarantee | None]) -> Guarantee | None:
    """What holds in every one of several runs: the greatest ε, and nothing where one of them guarantees nothing."""
    given = [guarantee for guarantee in guarantees if guarantee is not None]
    if not given or len(given) < len(guarantees):
        return None
    return max(given, key=lambda one: math.inf if math.isnan(one.epsilon) else one.epsilon)


def terms(methods: Sequence[tuple[str, Guarantee | None]]) -> str:
    """δ and unit of all methods: named once where they agree, else with the methods they belong to."""
    by_terms: dict[str, list[str]] = {}
    for method, guarantee in methods:
        if guarantee is not None:
            by_terms.setdefault(guarantee.terms, []).append(method)
    if len(by_terms) < 2:
        return "".join(f"ε {words}" for words in by_terms)
    return "ε " + ", ".join(f"{words} ({', '.join(of)})" for words, of in by_terms.items())


def comparable(guarantees: Sequence[Guarantee | None]) -> bool:
    return len({guarantee.terms for guarantee in guarantees if guarantee is not None}) == 1


def explained(methods: Sequence[tuple[str, Guarantee | None]], several_seeds: bool) -> str:
    """What the column of ε means, under a table of these methods."""
    given = [(method, guarantee) for method, guarantee in methods if guarantee is not None]
    if not given:
        return ""
    levels = listed(list(dict.fromkeys(f"{guarantee.unit} level" for _, guarantee in given)))
    how = listed([f"{method} by {guarantee.mechanism}" for method, guarantee in given])
    words = f"{terms(methods)}: differential privacy at {levels} ({how}); smaller is stronger"
    if several_seeds:
        words += ", and of several seeds the weakest guarantee is shown"
    words += "."
    if len(given) < len(methods):
        words += f" “{NONE}” means that nothing is guaranteed; a method that sends nothing needs no guarantee."
    if sums := [f"{method} {_number(one.joined)}" for method, one in given if one.joined is not None]:
        words += f" It holds whatever happens; as long as the secure aggregation does, it is smaller: {listed(sums)}."
    if not comparable([guarantee for _, guarantee in given]):
        words += " Guarantees for different units or δ do not compare."
    return words


def in_words(guarantee: Guarantee | None, sends: bool) -> str:
    """A run's guarantee as a sentence. `sends`: whether anything leaves a client at all."""
    if guarantee is None:
        return "What clients sent is not protected by differential privacy." if sends else "Clients sent nothing."
    if not math.isfinite(guarantee.epsilon):
        return "What clients sent went through a private mechanism, but no bound on ε follows from its settings."
    return (
        f"Differential privacy at {guarantee.unit} level ({guarantee.mechanism}), with ε = {epsilon_text(guarantee)}: "
        f"{meaning(guarantee.epsilon, guarantee.delta, guarantee.unit)} Smaller is stronger.{_while_joined(guarantee)}"
    )


def _while_joined(guarantee: Guarantee) -> str:
    if guarantee.joined is None:
        return ""
    return (
        " That holds even if the secure aggregation is broken; as long as nobody sees more than sums over clients, "
        f"ε = {_number(guarantee.joined)}."
    )


Lines = tuple[tuple[str, tuple[str, ...]], ...]
"""Headings, each with its sentences."""


def protected(guarantee: Guarantee | None) -> Lines:
    """What is protected, against whom, and what is not; nothing where that is not known."""
    if guarantee is None or guarantee.mechanism not in PROTECTIONS or not math.isfinite(guarantee.epsilon):
        return ()
    protection = PROTECTIONS[guarantee.mechanism]
    return (
        ("What leaves a client", (protection.sent,)),
        ("What is protected", (meaning(guarantee.epsilon, guarantee.delta, guarantee.unit),)),
        ("Against whom", (protection.against,)),
        ("What ε counts", (f"{protection.counted}{_while_joined(guarantee)}",)),
        ("What is not protected", protection.gaps),
    )


def all_protected(methods: Sequence[tuple[str, Guarantee | None]]) -> list[tuple[str, Lines]]:
    """The same for several methods, those of which the same can be said together."""
    by_lines: dict[Lines, list[str]] = {}
    for method, guarantee in methods:
        if guarantee is not None and (lines := protected(guarantee)):
            by_lines.setdefault(lines, []).append(f"{method} ({guarantee.mechanism})")
    return [(listed(names), lines) for lines, names in by_lines.items()]


def briefly(methods: Sequence[tuple[str, Guarantee | None]]) -> list[str]:
    """What is protected and what is not, two lines for each kind of protection and the methods that have it."""
    by_words: dict[str, list[str]] = {}
    for method, guarantee in methods:
        if guarantee is not None and protected(guarantee):
            by_words.setdefault(PROTECTIONS[guarantee.mechanism].brief, []).append(method)
    return [f"{', '.join(of)}: {words}" if len(methods) > 1 else words for words, of in by_words.items()]
