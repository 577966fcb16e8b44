"""What a client lets out, and at which price: its own settings, whatever a server asks for."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import settings
from fedbnn.base.wording import did_you_mean
from fedbnn.features.maps import AUTO, KINDS
from fedbnn.privacy.cost import Budget
from fedbnn.privacy.mechanism import known_mechanisms
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.secure.noise_shares import Crowd, NoiseShares
from fedbnn.privacy.sums import MARGIN, Noise


@settings
class PrivacySettings:
    """Record-level differential privacy of what leaves a client, for methods that exchange outputs."""

    mechanism: str = Field(
        default="none", description="how what leaves a client is protected (`fedbnn privacy mechanisms` explains each)"
    )
    epsilon: float = Field(
        default=3.0, gt=0, description="the most that all releases from a client's records may cost together, ever"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="probability that is exempt; far below 1 / records")
    releases: int = Field(
        default=0,
        ge=0,
        description="noisy releases among which the budget is divided; 0: as many as the mechanism needs "
        "(mostly one, or one each round)",
    )
    noise: Noise = Field(
        default="discrete",
        description="discrete (discrete Gaussian, drawn exactly) or continuous (Gaussian, rounded to a grid)",
    )
    features: str = Field(
        default=AUTO,
        description="public features of mechanisms that learn on them and of a method's teacher: scattering (images), "
        "fourier (tables), auto, or your own as 'package.module:Class'",
    )
    dimensions: int = Field(default=100, ge=3, description="number of these features, save a teacher's")
    ledgers: str = Field(
        default="",
        description="folder of the ledgers of what was spent, to be kept as long as the records are; "
        "empty: in the run folder, for clients that exist in this run only",
    )
    aggregation: Literal["plain", "secure"] = Field(
        default="plain",
        description="who sees what a client sends: plain (the server) or secure (nobody; the server sees the sum of "
        "all clients, each of which adds only a share of the noise); secure is for dp_moments",
    )
    local_epsilon: float = Field(
        default=8.0,
        gt=0,
        description="with secure aggregation: the most that all releases may cost if it is broken; this is what the "
        "ledger is charged, and epsilon holds as long as the aggregation does",
    )
    corrupt: float = Field(
        default=0.33,
        ge=0,
        lt=1,
        description="with secure aggregation: share of the clients that may work together with the server",
    )
    survivors: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="with secure aggregation: share of the clients that must stay to the end of a round; 0: as few as "
        "is safe; more need less noise each",
    )
    force: bool = Field(default=False, description="run a mechanism also where its noise drowns the signal")

    @field_validator("mechanism")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in known_mechanisms():
            raise ValueError(
                f"unknown{did_you_mean(name, known_mechanisms())} (there are {', '.join(known_mechanisms())})"
            )
        return name

    @field_validator("features")
    @classmethod
    def _known_features(cls, name: str) -> str:
        known = [AUTO, *KINDS]
        if name not in known and ":" not in name:
            hint = did_you_mean(name, known)
            raise ValueError(f"unknown{hint} (there are {', '.join(known)}, or your own as 'package.module:Class')")
        return name

    @model_validator(mode="after")
    def _sums_only(self) -> Self:
        if self.secure and not known_mechanisms()[self.mechanism].adds_up:
            able = ", ".join(name for name, mechanism in known_mechanisms().items() if mechanism.adds_up)
            raise ValueError(
                f"aggregation = 'secure': the server needs more than a sum of mechanism '{self.mechanism}' "
                f"(it is for {able})"
            )
        return self

    @property
    def secure(self) -> bool:
        return self.aggregation == "secure"

    @property
    def on(self) -> bool:
        return self.mechanism != "none"

    @property
    def budget(self) -> Budget:
        """What is promised whatever the server does, and charged."""
        return Budget(self.local_epsilon if self.secure else self.epsilon, self.delta)

    @property
    def joined_budget(self) -> Budget:
        """What is promised as long as secure aggregation holds."""
        return Budget(self.epsilon, self.delta)

    def crowd(self, clients: int) -> Crowd:
        """Among whom a client's numbers are hidden by secure aggregation."""
        return Crowd.of(clients, self.corrupt, self.survivors)

    def shares(self, rounds: int, multiplicity: int, clients: int) -> NoiseShares:
        """What each client adds under secure aggregation."""
        return NoiseShares.of(
            self.delta,
            self.crowd(clients),
            epsilon=self.epsilon,
            local_epsilon=self.local_epsilon,
            releases=self.planned(rounds),
            multiplicity=multiplicity,
        )

    def cap(self, rounds: int, multiplicity: int, clients: int) -> Budget:
        """The most that the ledger may come to: the budget, or less where what is joined would cost too much."""
        if not self.secure:
            return self.budget
        return Budget(min(self.local_epsilon, self.shares(rounds, multiplicity, clients).cap), self.delta)

    def planned(self, rounds: int) -> int:
        """How many releases the budget is for."""
        return self.releases or known_mechanisms()[self.mechanism].releases(rounds)

    def plan(self, rounds: int, multiplicity: int, clients: int = 1) -> Plan:
        """The budget, divided among the releases; a record that several clients hold is charged for each.

        How many clients there are matters for secure aggregation only.
        """
        if self.secure:
            plan = self.shares(rounds, multiplicity, clients).plan
        else:
            plan = Plan.of(self.delta, epsilon=self.epsilon, releases=self.planned(rounds), multiplicity=multiplicity)
        if self.noise == "continuous":
            return plan
        return Plan(plan.noise_multiplier * (1 + MARGIN), plan.releases, plan.delta, plan.multiplicity)

    def check_records(self, name: str, records: int) -> None:
        """Refuse a delta with which one of the records could simply be published."""
        if records and self.delta >= 1 / records:
            raise UserError(
                f"privacy.delta = {self.delta}: client '{name}' has {records} records, and a delta of 1 / {records} "
                "or more protects none of them; choose a smaller one"
            )
