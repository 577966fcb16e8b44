"""What differential privacy guarantees of a run, in numbers and in plain words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, listed

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
    """

    epsilon: float
    delta: float
    unit: str
    mechanism: str

    @property
    def terms(self) -> str:
        """What the number is to be read with; numbers under different terms do not compare."""
        return f"at δ = {self.delta:g} for one {self.unit}"


def epsilon_text(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        return NONE
    if math.isnan(guarantee.epsilon):
        return MISSING
    if math.isinf(guarantee.epsilon):
        return "∞"
    return f"{guarantee.epsilon:.2f}" if guarantee.epsilon < 100 else f"{guarantee.epsilon:,.0f}"


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
    words = f"{terms(methods)}: what leaves a client is protected by differential privacy at {levels} ({how});"
    words += " smaller is stronger"
    if several_seeds:
        words += ", and of several seeds the weakest guarantee is shown"
    words += "."
    if len(given) < len(methods):
        words += f" “{NONE}” means that nothing is guaranteed; a method that sends nothing needs no guarantee."
    if not comparable([guarantee for _, guarantee in given]):
        words += " Guarantees for different units or δ do not compare."
    return words


def in_words(guarantee: Guarantee | None, sends: bool) -> str:
    """A run's guarantee as a sentence. `sends`: whether anything leaves a client at all."""
    if guarantee is None:
        return "What clients sent is not protected by differential privacy." if sends else "Clients sent nothing."
    if not math.isfinite(guarantee.epsilon):
        return "What clients sent went through a private mechanism, but no bound on ε follows from its settings."
    hidden = "one record" if guarantee.unit == "record" else "all records of one client"
    return (
        f"What clients sent is protected by differential privacy at {guarantee.unit} level ({guarantee.mechanism}): "
        f"whether {hidden} took part changes the chance of anything sent at most by a factor of "
        f"exp(ε), with ε = {epsilon_text(guarantee)}, but for a chance of δ = {guarantee.delta:g}. Smaller is stronger."
    )
