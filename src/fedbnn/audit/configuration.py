"""Does a configuration keep its promise? An attack, repeated until it proves something.

In each trial a client with new ledgers plays all rounds, with or without one record, and an adversary tries to tell
which it was from what is on the wire (`exchange_attacks`, `weights_attacks`). How often it succeeds bounds the true mu
from below (`bounds`). Above the claimed mu (`claims`), something is wrong with the noise, the clipping or the
accounting. Below it, this attack proves nothing; that is evidence, and not a proof. If several clients hold a record,
one client's part of the claim is looked at.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedbnn.audit.bounds import LEAST_TRIALS, mu_lower_bound
from fedbnn.audit.claims import Claim, claim_of
from fedbnn.audit.trials import Trial, by_workers, checked, played, prepared_attack
from fedbnn.base.errors import UserError
from fedbnn.runs.config import Config

TRIALS = 40_000
_SAY_EVERY = 1.0  # seconds between what progress hears


@dataclass(frozen=True)
class AuditResult:
    """What is claimed, and what the attack has proved.

    Attributes:
        releases: among how many the budget is divided.
        mu: the claim; of what is not Gaussian, that of the Gaussian with the same total variation.
        epsilon, delta: the budget.
        mu_lower: the true mu is at least that, with this confidence.
        epsilon_lower: what the mechanism would cost, at the same delta, with so little noise that its mu is mu_lower.
        trials: how many there were; the record was there in half of them, by chance.
        seconds: how long they took.

    """

    mechanism: str
    releases: int
    mu: float
    epsilon: float
    delta: float
    mu_lower: float
    epsilon_lower: float
    trials: int
    confidence: float
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the claim is refuted."""
        return self.mu_lower > self.mu

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "caught": self.caught}


@dataclass(frozen=True)
class Standing:
    """How far an audit is.

    Attributes:
        trials, expected: how many are done, and how many there will be as far as can be told.
        left: seconds.
        mu_lower, mu: proved by now, and claimed.

    """

    trials: int
    expected: int
    left: float
    mu_lower: float
    mu: float


def audit(
    config: Config,
    *,
    trials: int = TRIALS,
    minutes: float = 10.0,
    confidence: float = 0.999,
    workers: int = 1,
    facts: bool = False,
    progress: Callable[[Standing], None] | None = None,
) -> AuditResult:
    """Attack the first client of this configuration, `trials` times or for so many minutes, whichever ends first.

    `facts` says whether diagnostics leave beside the arrays. `progress` hears how far it is, about every second; what
    is proved by then ends nothing.
    """
    if trials < LEAST_TRIALS:
        raise UserError(f"trials = {trials}: must be at least {LEAST_TRIALS}")
    if not minutes > 0:
        raise UserError(f"minutes = {minutes}: must be above 0")
    if not 0 < confidence < 1:
        raise UserError(f"confidence = {confidence}: must be between 0 and 1, both excluded")
    if workers < 1:
        raise UserError(f"workers = {workers}: must be at least 1")
    prepared, attack = prepared_attack(config, facts)
    claim = claim_of(config.chosen(), prepared.sites[0].client)
    checked(attack)
    start = time.monotonic()
    rows: list[Trial] = []
    said = start
    with closing(by_workers(config, facts, workers) if workers > 1 else played(attack, config.seed)) as source:
        for trial in source:
            rows.append(trial)
            now = time.monotonic()
            if len(rows) == trials or (now - start > 60 * minutes and len(rows) >= LEAST_TRIALS):
                break
            if progress and now - said > _SAY_EVERY:
                said = now
                progress(_standing(rows, claim, trials, 60 * minutes, now - start, confidence))
    seconds = time.monotonic() - start
    bound = _bound(rows, claim, confidence)
    return AuditResult(
        claim.mechanism,
        claim.releases,
        claim.mu,
        claim.budget.epsilon,
        claim.budget.delta,
        bound,
        claim.epsilon_of(bound),
        len(rows),
        confidence,
        round(seconds, 1),
    )


def _bound(rows: list[Trial], claim: Claim, confidence: float) -> float:
    shown, present = np.array([row.shown for row in rows]), np.array([row.present for row in rows])
    return mu_lower_bound(shown, present, confidence, gaussian=claim.gaussian)


def _standing(
    rows: list[Trial], claim: Claim, trials: int, seconds: float, passed: float, confidence: float
) -> Standing:
    done = len(rows)
    bound = _bound(rows, claim, confidence) if done >= LEAST_TRIALS else 0.0
    expected = min(trials, max(done, round(done * seconds / passed)))
    return Standing(done, expected, min(passed * (trials - done) / done, max(0.0, seconds - passed)), bound, claim.mu)
