"""What a client lets out, and at which price: its own settings, whatever a server asks for."""

from pydantic import Field, field_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import settings
from fedbnn.base.wording import did_you_mean
from fedbnn.features.maps import AUTO, KINDS
from fedbnn.privacy.mechanism import MECHANISMS
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.spending import Budget
from fedbnn.privacy.sums import MILLIONTH, Noise


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
        default="continuous",
        description="continuous (Gaussian, rounded to a grid) or discrete (discrete Gaussian, drawn exactly)",
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
    force: bool = Field(default=False, description="run a mechanism also where its noise drowns the signal")

    @field_validator("mechanism")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in MECHANISMS:
            raise ValueError(f"unknown{did_you_mean(name, MECHANISMS)} (there are {', '.join(MECHANISMS)})")
        return name

    @field_validator("features")
    @classmethod
    def _known_features(cls, name: str) -> str:
        known = [AUTO, *KINDS]
        if name not in known and ":" not in name:
            hint = did_you_mean(name, known)
            raise ValueError(f"unknown{hint} (there are {', '.join(known)}, or your own as 'package.module:Class')")
        return name

    @property
    def on(self) -> bool:
        return self.mechanism != "none"

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    def planned(self, rounds: int) -> int:
        """How many releases the budget is for."""
        return self.releases or MECHANISMS[self.mechanism].releases(rounds)

    def plan(self, rounds: int, multiplicity: int) -> Plan:
        """The budget, divided among the releases; a record that several clients hold is charged for each."""
        plan = Plan.of(self.delta, epsilon=self.epsilon, releases=self.planned(rounds), multiplicity=multiplicity)
        if self.noise == "continuous":
            return plan
        return Plan(plan.noise_multiplier * (1 + 2 * MILLIONTH), plan.releases, plan.delta, plan.multiplicity)

    def check_records(self, name: str, records: int) -> None:
        """Refuse a delta with which one of the records could simply be published."""
        if records and self.delta >= 1 / records:
            raise UserError(
                f"privacy.delta = {self.delta}: client '{name}' has {records} records, and a delta of 1 / {records} "
                "or more protects none of them; choose a smaller one"
            )
