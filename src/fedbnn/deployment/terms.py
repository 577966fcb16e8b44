"""What all parties of a run have agreed on: the file terms.json, one copy at the server and one at every site."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, field_validator, model_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import parsed, settings
from fedbnn.data import FederatedData
from fedbnn.data.dataset import Floats, fingerprint_of
from fedbnn.data.tables.coding import Coding, ColumnCode, check_columns
from fedbnn.federation.method import Method
from fedbnn.methods.registry import check_name, find_method, known_method
from fedbnn.models.regression import OUTPUTS, Scale
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.runs.config import Config

RUN_NAME = r"^[a-z0-9][a-z0-9-]{0,59}$"
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]

Signer = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

OWN_FEATURES = "features of your own are known to the local engine only, as no terms may import code"


@settings
class AlignmentTerms:
    """The public inputs on which outputs are compared, by words for people and a hash for machines."""

    source: str = Field(description="where the inputs come from, in words")
    points: int = Field(ge=0, description="how many there are")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="of the inputs as loaded, before they are scaled (see `alignment_hash`)"
    )


@settings
class TargetTerms:
    """The real number that is predicted in regression. All parties learn (target - mean) / sd."""

    name: str = Field(
        max_length=200, pattern=r"^(\S(.*\S)?)?$", description="what it is called, for people; may be empty"
    )
    mean: float = Field(description="about where targets lie, in their own unit; public, never worked out from records")
    sd: float = Field(gt=0, description="about how far they go from there; likewise")

    @property
    def scale(self) -> Scale:
        return Scale(self.mean, self.sd)


@settings
class Terms:
    """A run as all parties know it. A party works only under terms of which it has its own copy."""

    run: str = Field(pattern=RUN_NAME, description="name of this run: a-z, 0-9 and dashes, at most 60 characters")
    method: str = Field(
        description="the method to run (see `fedbnn methods`); one from outside, 'package.module:Class', is imported "
        "only where a party's own file allows it"
    )
    settings: dict[str, Any] = Field(description="the method's own settings; what is not named has its default")
    seed: int = Field(ge=0, description="all randomness but that of private releases comes from this number")
    rounds: int = Field(ge=1, description="exchanges with the server, after the warm-up (round 0)")
    participation: float = Field(gt=0, le=1, description="share of the sites that take part in a round")
    sites: tuple[Name, ...] = Field(min_length=1, description="names of the sites; the first is client 0")
    class_names: tuple[Name, ...] = Field(description="names of the classes 0, 1, ...; in regression none")
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        description="of one record: [channels, height, width] or [features]"
    )
    alignment: AlignmentTerms = Field(description="the public inputs")
    training: TrainingSettings = Field(description="the budget of local training")
    privacy: PrivacySettings = Field(description="what sites let out, and at which price")
    evaluate_every: int = Field(ge=1, description="score all sites every so many rounds (and always after the last)")
    columns: tuple[ColumnCode, ...] = Field(
        default=(),
        description="of a table: its columns by name, and how their cells become inputs; none: inputs are numbers as "
        "they stand in a site's file",
    )
    target: TargetTerms | None = Field(
        default=None, description="in regression, instead of classes: the number to predict, and its public scale"
    )
    multiplicity: int = Field(
        default=1,
        ge=1,
        description="for secure aggregation: the largest number of sites that hold one and the same record; all add "
        "the same noise, so every site's own file must say the same",
    )
    signers: tuple[Signer, ...] = Field(
        default=(),
        description="for secure aggregation: the sites' public keys, as `fedbnn flower signing-key` prints them, in "
        "the order of sites",
    )

    @field_validator("sites", "class_names")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("each name may stand there only once")
        return names

    @field_validator("class_names")
    @classmethod
    def _several(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) == 1:
            raise ValueError("at least 2 are needed, or none where there is a target")
        return names

    @model_validator(mode="after")
    def _one_task(self) -> "Terms":
        if self.class_names and self.target is not None:
            raise ValueError("class_names and target are both given: predict classes, or a number with class_names []")
        if not self.class_names and self.target is None:
            raise ValueError("class_names is empty and target is missing: name the classes, or a number's mean and sd")
        return self

    @model_validator(mode="after")
    def _one_signer_each(self) -> "Terms":
        if self.signers and (len(self.signers) != len(self.sites) or len(set(self.signers)) < len(self.sites)):
            raise ValueError(f"signers must be one key for each of the {len(self.sites)} sites, all different")
        return self

    @field_validator("input_shape")
    @classmethod
    def _image_or_table(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) not in (1, 3):
            raise ValueError("must be [channels, height, width] or [features]")
        return shape

    @model_validator(mode="after")
    def _columns_fit(self) -> "Terms":
        if self.columns:
            check_columns(self.columns)
            if self.input_shape != (count := (sum(len(column.features) for column in self.columns),)):
                raise ValueError(f"input_shape is {list(self.input_shape)}, but columns have {count[0]} features")
        return self

    @field_validator("privacy")
    @classmethod
    def _no_place(cls, privacy: PrivacySettings) -> PrivacySettings:
        if privacy.ledgers:
            raise ValueError("privacy.ledgers must be empty: every site keeps its ledgers in its own state folder")
        if ":" in privacy.features:
            raise ValueError(f"privacy.features = '{privacy.features}': {OWN_FEATURES}")
        return privacy

    @classmethod
    def of(cls, config: Config, data: FederatedData, run: str, signers: Collection[str] = ()) -> "Terms":
        """The terms of a configuration whose data is dealt: site k is client k."""
        method = config.chosen()
        if data.view is not None:
            raise UserError(
                'data.inputs = "features" is known to the local engine only: sites on Flower use raw records'
            )
        if config.attack.on:
            raise UserError(f"attack.kind = '{config.attack.kind}': lies are simulated on the local engine only")
        if ":" in config.privacy.features:
            raise UserError(f"privacy.features = '{config.privacy.features}': {OWN_FEATURES}")
        raw, scale = alignment_of(data), data.dataset.scale
        source = f"{data.alignment_source or data.dataset.name}: {len(raw)} inputs"
        if not data.alignment_source:
            source += " that were held out of all clients"
        try:
            terms = cls(
                run=run,
                method=config.method,
                settings=_settings_of(method),
                seed=config.seed,
                rounds=config.rounds,
                participation=config.participation,
                sites=data.client_names,
                class_names=data.dataset.class_names,
                input_shape=data.dataset.input_shape,
                columns=data.coding.columns if data.coding else (),
                target=None if scale is None else TargetTerms(config.data.target, scale.mean, scale.sd),
                alignment=AlignmentTerms(source, len(raw), alignment_hash(raw)),
                training=config.training,
                privacy=replace(config.privacy, ledgers=""),
                multiplicity=data.multiplicity if config.privacy.secure else 1,
                signers=tuple(signers),
                evaluate_every=config.evaluation.every,
            )
        except UserError as error:  # names come from the data, and may be anything
            raise UserError(f"terms of this data cannot be written: {error}") from None
        return cls.from_json(terms.to_json())

    @classmethod
    def from_json(cls, text: str | bytes, origin: str = "terms", allowed: Collection[str] = ()) -> "Terms":
        """Terms from what `to_json` wrote or a person did; `origin` names the file in what is said of a mistake.

        No method is imported because terms name it: only if it is one of `allowed`. Terms of another method can be read
        and compared, with its settings as they stand there, but `chosen` gives no method.
        """
        terms = parsed(cls, text, origin)
        check_name(terms.method)
        if terms.method in allowed:
            find_method(terms.method)
        if known_method(terms.method) is None:
            return terms
        method = terms.chosen(origin)
        try:
            method.check_task(terms.privacy, regression=terms.regression)
        except UserError as error:
            raise UserError(f"{origin}: {error}") from None
        return replace(terms, settings=_settings_of(method))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = TypeAdapter(Terms).dump_python(self, mode="json")
        if not self.columns:
            del found["columns"]  # terms without any have the digest that they had before there were some
        if self.target is None:
            del found["target"]  # likewise
        return found

    @property
    def regression(self) -> bool:
        return self.target is not None

    @property
    def scale(self) -> Scale | None:
        """Of the target in regression."""
        return None if self.target is None else self.target.scale

    @property
    def classes(self) -> int:
        """How many there are; in regression 0, as `Client` has it."""
        return len(self.class_names)

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record."""
        return self.classes or OUTPUTS

    @property
    def coding(self) -> Coding | None:
        """How a table's cells become inputs, where that was agreed on."""
        return Coding(self.columns) if self.columns else None

    def chosen(self, origin: str = "terms") -> Method[Any, Any]:
        """The method to run, with its settings."""
        cls = known_method(self.method)
        if cls is None:
            raise UserError(
                f"{origin}: method = '{self.method}' is not one of ours, and is imported only if the file of this "
                f"party (site.toml or server.toml) allows it: methods = ['{self.method}']"
            )
        return parsed(cls, json.dumps(self.settings), f"{origin}: settings")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the terms, however their file is laid out."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def key(self) -> str:
        """The name of this run's folder at every party: other terms are another run."""
        return f"{self.run}-{self.digest[:12]}"


def read_terms(path: Path, allowed: Collection[str] = ()) -> Terms:
    """A party's own copy of the terms; `allowed` are methods from outside that it lets run."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"terms = '{path}': there is no such file") from None
    except OSError as error:
        raise UserError(f"terms = '{path}': cannot be read: {error.strerror}") from None
    return Terms.from_json(text, f"terms = '{path}'", allowed)


def alignment_of(data: FederatedData) -> Floats:
    """The alignment set as it was loaded, before it is scaled: what sites get as alignment.npz."""
    return data.loaded_alignment


def alignment_hash(raw: Floats) -> str:
    """Of the alignment set as loaded: names, shape, type and bytes."""
    return fingerprint_of({"alignment": raw})


def _settings_of(method: Method[Any, Any]) -> dict[str, Any]:
    """All settings of a method, also those that have their defaults: the agreement shall not hang on a version's."""
    found: dict[str, Any] = TypeAdapter(type(method)).dump_python(method, mode="json")
    return found
