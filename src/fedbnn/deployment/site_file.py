"""A site's own file, site.toml: its records, its architecture, its privacy cap. No server can change any of it."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fedbnn.base.devices import ALLOWED, DeviceName
from fedbnn.base.files import expanded
from fedbnn.base.settings import read_toml, settings, with_default
from fedbnn.data.tables.layout import MISSING, Decimal, Delimiter, Encoding, Layout
from fedbnn.deployment.terms import Terms
from fedbnn.models.architectures import ModelSettings
from fedbnn.privacy import Budget


@settings
class RecordsSettings:
    """Where the site's records are.

    Labels are names of the terms' classes, or (npz) whole numbers 0 .. C - 1; in regression they are real numbers.
    """

    path: Path = Field(description="the file")
    source: Literal["npz", "csv", "parquet"] = Field(
        default="npz",
        description="npz: arrays x_train, y_train and, to be scored, x_test, y_test; csv: a table with a header row; "
        "parquet: a table whose columns the terms describe",
    )
    target: str = Field(default="", description="column that holds the class, or in regression the number; tables only")
    columns: tuple[str, ...] = Field(
        default=(),
        description="columns that hold the features, in the order agreed on; tables only; none: by name where the "
        "terms describe columns, else all others",
    )
    units: dict[str, str] = Field(
        default_factory=dict,
        description="units of columns in this file, by the name agreed on; others than the terms say are refused",
    )
    delimiter: Delimiter = with_default(Layout, "delimiter", "auto")
    decimal: Decimal = with_default(Layout, "decimal", ".")
    encoding: Encoding = with_default(Layout, "encoding", "auto")
    missing: tuple[str, ...] = with_default(Layout, "missing", MISSING)
    test_fraction: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="share of the records held out to be scored on, about, each decided by its own content; 0: none; "
        "tables only",
    )

    @property
    def layout(self) -> Layout:
        """How files of text are laid out."""
        return Layout(self.delimiter, self.decimal, self.encoding, self.missing)

    @model_validator(mode="after")
    def _fits_the_source(self) -> "RecordsSettings":
        if self.source == "npz" and (self.target or self.columns):
            raise ValueError("target and columns are for source = 'csv' and 'parquet'; leave them out")
        if self.source != "npz" and not self.target:
            raise ValueError(
                f"target is missing: source = '{self.source}' needs the column that holds the class or the number"
            )
        if repeated := {name for name in self.columns if self.columns.count(name) > 1}:
            raise ValueError(f"columns names {sorted(repeated)[0]!r} more than once")
        if self.target in self.columns:
            raise ValueError(f"columns names the target {self.target!r}, which is no feature")
        return self


@settings
class CapSettings:
    """The most that everything that is ever released from the site's records may cost, in this run and all others."""

    epsilon: float = Field(gt=0, description="the cap; terms may ask for less, never for more")
    delta: float = Field(gt=0, lt=1, description="probability that is exempt; far below 1 / records")
    multiplicity: int = Field(
        default=1, ge=1, description="the largest number of sites that hold one and the same record"
    )

    disjoint: bool = Field(
        default=False,
        description="the site declares that its sets of records, as they change from run to run, are of different "
        "people: each is then counted by itself, unless it is seen to share records with others",
    )

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)


@settings
class SiteSettings:
    """One site. Paths are relative to the folder of its file."""

    name: str = Field(min_length=1, description="as it stands in the terms")
    data: RecordsSettings = Field(description="the site's records; they never leave")
    terms: Path = Field(default=Path("terms.json"), description="the site's copy of what was agreed on")
    alignment: Path = Field(default=Path("alignment.npz"), description="the public inputs that were agreed on")
    state: Path = Field(
        default=Path("state"),
        description="folder of the site's models and ledgers, to be kept as long as its records are",
    )
    device: DeviceName = Field(default="cpu", description=f"where the site computes: {ALLOWED}")
    share_metrics: Literal["auto", "yes", "no"] = Field(
        default="auto",
        description="whether scores and diagnostics may leave; they tell of the records, whatever the mechanism: auto "
        "lets them only where the terms promise no privacy; where they do, yes is refused",
    )
    methods: tuple[str, ...] = Field(
        default=(),
        description="methods from outside ('package.module:Class', or the name that an installed package gives one) "
        "that the terms may name; any other is refused before it is imported",
    )
    signing_key: Path | None = Field(
        default=None,
        description="for secure aggregation: the site's private key (`fedbnn flower signing-key`), which never leaves",
    )
    model: ModelSettings = Field(default_factory=ModelSettings, description="the site's own architecture")
    privacy: CapSettings | None = Field(
        default=None, description="the site's cap; without it, what the terms say is the cap"
    )

    @field_validator("model")
    @classmethod
    def _whole(cls, model: ModelSettings) -> ModelSettings:
        if model.share != 1:
            raise ValueError("share is for configurations; a site has one model, leave it out")
        return model

    def shares(self, terms: Terms) -> bool:
        """Whether metrics may leave under these terms."""
        return self.share_metrics != "no" and terms.chosen().protects(terms.privacy) is None


def read_site(path: Path) -> SiteSettings:
    """The settings of a site.toml, with all paths made absolute."""
    site = read_toml(SiteSettings, path, "; a site is described by a site.toml")
    folder = path.expanduser().resolve().parent

    def found(field: str, given: Path) -> Path:
        return folder / expanded(given, f"{path}: {field} = {str(given)!r}")

    return replace(
        site,
        data=replace(site.data, path=found("data.path", site.data.path)),
        terms=found("terms", site.terms),
        alignment=found("alignment", site.alignment),
        state=found("state", site.state),
        signing_key=site.signing_key and found("signing_key", site.signing_key),
    )
