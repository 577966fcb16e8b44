"""Do clients keep what [privacy] promises? An attack on the first of them, repeated until it proves something.

In each trial a client with a new ledger plays all rounds twice, with and without one record, and an adversary tries to
tell which was which from the messages alone (`attacks`). How often it succeeds bounds the true mu from below
(`privacy.audit`). Above the claimed mu, something is wrong with the noise, the clipping or the accounting. Below it,
this attack proves nothing; that is evidence, and not a proof. If several clients hold a record, one client's part of
the claim is looked at.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.audit.attacks import attack_on
from fedbnn.audit.bounds import LEAST_TRIALS, mu_lower_bound
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.methods.exchange import Exchange
from fedbnn.privacy import gaussian_epsilon, gaussian_mu
from fedbnn.runs.config import Config
from fedbnn.runs.experiment import Prepared


@dataclass(frozen=True)
class AuditResult:
    """What is claimed, and what the attack has proved.

    Attributes:
        mu, epsilon, delta: the claim.
        mu_lower, epsilon_lower: the true ones are at least that, with this confidence; epsilon at the same delta.
        trials: with the record, and as many without.

    """

    mechanism: str
    mu: float
    epsilon: float
    delta: float
    mu_lower: float
    epsilon_lower: float
    trials: int
    confidence: float

    @property
    def caught(self) -> bool:
        """Whether the claim is refuted."""
        return self.mu_lower > self.mu

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "caught": self.caught}


def audit(
    config: Config,
    *,
    trials: int = 1000,
    confidence: float = 0.999,
    progress: Callable[[int], None] | None = None,
) -> AuditResult:
    """Attack the first client of this configuration; `progress` hears how many trials are done."""
    if trials < LEAST_TRIALS:
        raise UserError(f"trials = {trials}: must be at least {LEAST_TRIALS}")
    if not 0 < confidence < 1:
        raise UserError(f"confidence = {confidence}: must be between 0 and 1, both excluded")
    method, privacy = config.chosen(), config.privacy
    # Whether anything could be learned through the noise is not the question here.
    checked = replace(config, privacy=replace(privacy, force=True))
    client = Prepared.of(checked, [config.method]).sites[0].client
    if not isinstance(method, Exchange):
        raise UserError(f"method '{method.name}' exchanges no outputs: [privacy] promises nothing about it")
    shown: tuple[list[list[float]], list[list[float]]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="fedbnn-audit-") as folder, repeatable(Stream((config.seed, "audit"))):
        attack = attack_on(method, client)
        for trial in range(trials):
            for world, victim in enumerate((attack.without, attack.present)):
                shown[world].append(attack.trial(victim, Path(folder) / f"{trial}-{world}"))
            if progress:
                progress(trial + 1)
    bound = mu_lower_bound(np.array(shown[0]), np.array(shown[1]), confidence)
    return AuditResult(
        privacy.mechanism,
        gaussian_mu(privacy.epsilon, privacy.delta),
        privacy.epsilon,
        privacy.delta,
        bound,
        gaussian_epsilon(bound, privacy.delta),
        trials,
        confidence,
    )
