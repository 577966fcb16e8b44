"""One typed, validated description of a run: TOML in, JSON out, every field documented once, where it is declared."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from fedbnn.base.devices import ALLOWED, DeviceName
from fedbnn.base.errors import UserError
from fedbnn.base.settings import STRICT, as_json, fields_of, parsed, read_tables, settings
from fedbnn.base.wording import did_you_mean
from fedbnn.data import DataSettings, PartitionSettings
from fedbnn.federation.attack import AttackSettings
from fedbnn.federation.engines.states import IN_MEMORY
from fedbnn.federation.faults import FaultSettings
from fedbnn.federation.method import Method
from fedbnn.federation.server import PATIENCE
from fedbnn.methods import METHODS
from fedbnn.methods.registry import MethodClass, find_method, installed, known_method
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings

PRESETS = Path(__file__).parent / "presets"


@settings
class EvaluationSettings:
    """When and on what personal models are scored."""

    every: int = Field(
        default=1, ge=1, description="score all clients every so many rounds (and always after the last)"
    )
    split: Literal["test", "validation"] = Field(
        default="test", description="records to score on: test, or validation for tuning (needs data.validation)"
    )
    foreign: str = Field(
        default="",
        description="after the last round, also ask every model about inputs of another data set (a name or an .npz "
        "file), or of data.unseen_classes (unseen): does its uncertainty tell them from the client's own classes?",
    )


EngineKind = Literal["local", "flower-sim"]

GONE = {"restart": "prior", "weights": "uniform"}
"""Settings that methods had once, and what they were unless set: runs from then are still known by today's."""


@settings
class EngineSettings:
    """Where clients run. Has no influence on any result, except that another device draws other random numbers."""

    kind: EngineKind = Field(
        default="local",
        description="local (worker processes of our own) or flower-sim (Flower's simulation on Ray; needs the extra "
        "fedbnn[flower])",
    )
    workers: int = Field(
        default=0, ge=0, description="worker processes; 0 means one per core, and one if device is not the CPU"
    )
    debug: bool = Field(default=False, description="run all clients in this process, one after the other")
    in_memory: int = Field(
        default=IN_MEMORY,
        ge=1,
        description="clients whose records and states a worker holds in memory at once; those of the others lie in "
        "files, so that thousands find room",
    )
    device: DeviceName = Field(
        default="cpu",
        description=f"where clients compute: {ALLOWED}; auto is a GPU if there is one. Another device draws other "
        "random numbers and rounds differently: results differ as those of another seed do",
    )


def _tables(classes: Iterable[MethodClass]) -> dict[str, Any]:
    """A table of settings for each method."""
    return {cls.name: (cls, Field(default_factory=cls, description=cls.summary)) for cls in classes}


class _Strict(BaseModel):
    model_config = ConfigDict(**STRICT, frozen=True, protected_namespaces=())


Methods = create_model("Methods", __base__=_Strict, **_tables(METHODS.values()))


@lru_cache
def _file(outside: tuple[MethodClass, ...]) -> type[BaseModel]:
    """What a file may say of methods: of ours, and of these."""
    methods = create_model("Methods", __base__=Methods, **_tables(outside)) if outside else Methods
    return create_model("File", __base__=_Strict, methods=(methods, Field(default_factory=methods)))


def _default_models() -> tuple[ModelSettings, ...]:
    return tuple(ModelSettings(name) for name in ("mlp", "cnn2", "cnn3"))


@settings
class Config:
    """A run. The defaults are the demonstration: handwritten digits, 20 clients, three architectures."""

    method: str = Field(
        default="fedbnn", description="the method to run (see `fedbnn methods`), or your own as 'package.module:Class'"
    )
    seed: int = Field(default=0, ge=0, description="all randomness comes from this number")
    rounds: int = Field(default=12, ge=1, description="exchanges with the server, after the warm-up (round 0)")
    participation: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the clients that take part in a round; others' last upload is reused",
    )
    patience: int = Field(
        default=PATIENCE,
        ge=1,
        description="a client whose replies are refused so many times in a row is set aside for the rest of the run",
    )
    quorum: int = Field(
        default=0,
        ge=0,
        description="good replies a round needs, or as many as are asked if that is less; with fewer it is held again, "
        "two more times at most",
    )
    checkpoint_every: int = Field(default=1, ge=1, description="save all states every so many rounds, to resume from")
    data: DataSettings = Field(default_factory=DataSettings, description="the records")
    partition: PartitionSettings = Field(default_factory=PartitionSettings, description="who holds which records")
    models: tuple[ModelSettings, ...] = Field(
        default_factory=_default_models, min_length=1, description="the architectures and their shares"
    )
    training: TrainingSettings = Field(
        default_factory=TrainingSettings, description="the budget of local training, the same for every method"
    )
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings, description="how models are scored")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="where clients run")
    privacy: PrivacySettings = Field(
        default_factory=PrivacySettings,
        description="what clients let out of fedbnn, fedbnn_paper and fedmd, and at which price",
    )
    attack: AttackSettings = Field(
        default_factory=AttackSettings, description="clients that lie, for simulations; they are never scored"
    )
    faults: FaultSettings = Field(
        default_factory=FaultSettings, description="clients that fail by accident, for simulations on any engine"
    )
    methods: Methods = Field(default_factory=Methods, description="each method's own settings")

    def chosen(self) -> Method[Any, Any]:
        """The method to run, with its settings; one that is not ours and was not known when the file was read has its
        defaults.
        """
        cls = find_method(self.method)
        method: Method[Any, Any] | None = getattr(self.methods, cls.name, None)
        return method if isinstance(method, cls) else cls()

    @property
    def method_name(self) -> str:
        """The method's name alone, also where `method` says where its class is."""
        return find_method(self.method).name

    def with_method(self, name: str, seed: int | None = None) -> "Config":
        """The same run with another method and, if given, another seed."""
        find_method(name)
        return replace(self, method=name, seed=self.seed if seed is None else seed)

    def to_json(self) -> dict[str, Any]:
        """Everything that has an influence on the result; of the methods' settings only the chosen one's."""
        everything: dict[str, Any] = TypeAdapter(Config).dump_python(self, mode="json", exclude={"engine"})
        method = self.chosen()
        everything["methods"] = {method.name: TypeAdapter(type(method)).dump_python(method, mode="json")}
        return everything


def load_config(path: Path | None = None, overrides: Sequence[str] = (), methods: Sequence[str] = ()) -> Config:
    """The configuration of a TOML file or preset (or the defaults), with `dotted.key=value` overrides applied.

    `methods` names those that may have a table of settings beside the one to run and ours, as `compare` needs it.
    """
    return parse_config(raw_config(path, overrides), methods)


def raw_config(path: Path | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What `load_config` parses: only what is said, as nested tables."""
    raw: dict[str, Any] = {}
    if path is not None:
        path = preset(path) or path
        if not path.exists():
            raise UserError(
                f"no configuration file and no preset {path} (presets: {', '.join(presets())}); `fedbnn config` prints "
                "a file to start from"
            )
        raw = _on_preset(read_tables(path))
    for override in overrides:
        _apply(raw, override)
    return raw


def _on_preset(raw: dict[str, Any]) -> dict[str, Any]:
    """Tables that say `preset = "NAME"` on top of those of this preset: a table is joined, anything else replaced."""
    if "preset" not in raw:
        return raw
    named = raw["preset"]
    if not isinstance(named, str) or named not in presets():
        raise UserError(
            f"preset = {named!r} is not one of: {', '.join(presets())}{did_you_mean(str(named), presets())}; leave it "
            "out to begin from the defaults"
        )
    own = {key: value for key, value in raw.items() if key != "preset"}
    return _joined(read_tables(PRESETS / f"{named}.toml"), own)


def _joined(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _joined(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


def presets() -> dict[str, str]:
    """The configurations that come with the package, by name, with the first line of each."""
    files = sorted(PRESETS.glob("*.toml"))
    return {file.stem: file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for file in files}


def preset(path: Path) -> Path | None:
    """The file of the preset of this name; a file of the user's own with the same name goes first."""
    return None if path.is_file() or str(path) not in presets() else PRESETS / f"{path}.toml"


def parse_config(raw: dict[str, Any], methods: Sequence[str] = ()) -> Config:
    """Validate nested tables; the first mistake becomes one line that names the field, the value and the rule.

    `methods` as in `load_config`.
    """
    tables = raw.get("methods", {})
    text = as_json({key: value for key, value in raw.items() if key != "methods"}, "configuration")
    settings_text = as_json({"methods": tables}, "configuration")
    config = parsed(Config, text)
    named = [config.method, *methods, *(name for name in installed() if isinstance(tables, dict) and name in tables)]
    read: Any = parsed(_file(tuple(_outside(named).values())), settings_text)
    return replace(config, methods=read.methods)


def _outside(named: Iterable[str]) -> dict[str, MethodClass]:
    """Those of these methods that are not ours, by the name of their table."""
    found: dict[str, MethodClass] = {}
    for name in named:
        cls = find_method(name)
        if found.setdefault(cls.name, cls) is not cls:
            raise UserError(f"method = '{name}': another method is called '{cls.name}' too; give one another name")
    return {name: cls for name, cls in found.items() if name not in METHODS}


def as_of_today(stored: Any) -> Any:
    """A stored `to_json` as this version writes it: settings that did not exist yet stand at their default, and those
    that are no more are left out where they did.

    What this version cannot read, a setting that is no more for instance, comes back as it is. Nothing is imported
    because a file of a finished run names it: whoever asks has named the same method before.
    """
    if not isinstance(stored, dict) or known_method(str(stored.get("method"))) is None:
        return stored
    try:
        tables = {
            method: {name: value for name, value in table.items() if GONE.get(name) != value}
            for method, table in stored["methods"].items()
        }
        return parse_config({**stored, "methods": tables}).to_json()
    except (UserError, AttributeError, KeyError):  # no configuration of ours
        return stored


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: write it as dotted.key=value, e.g. --set methods.fedbnn.gamma=0.5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # whatever it is, it is no TOML
        value = text
    table = raw
    *path, last = key.strip().split(".")
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {override}: '{name}' is a value, not a table; set it as a whole")
    table[last] = value


def default_toml() -> str:
    """The default configuration, fully commented: what `fedbnn config` prints."""
    return "\n".join(_table(Config(), "")).lstrip("\n") + "\n"


def _table(value: Any, prefix: str) -> Iterator[str]:
    fields = fields_of(type(value))
    tables = []
    for name, field in fields.items():
        inner = getattr(value, name)
        first = inner[0] if isinstance(inner, tuple) and inner else inner
        if fields_of(type(first)):
            tables.append((name, field))
        else:
            yield f"# {field.description}{_allowed(field)}"
            yield f"{name} = {toml_value(inner)}"
    for name, field in tables:
        inner = getattr(value, name)
        dotted = f"{prefix}{name}"
        for number, entry in enumerate(inner if isinstance(inner, tuple) else (inner,)):
            heading = f"[[{dotted}]]" if isinstance(inner, tuple) else f"[{dotted}]"
            yield f"\n# {field.description}" if number == 0 else ""
            yield heading
            lines = list(_table(entry, f"{dotted}."))
            yield from lines if number == 0 else (line for line in lines if not line.startswith("#"))


def _allowed(field: FieldInfo) -> str:
    """The rule of a field in words: its range, or its choices."""
    if get_origin(field.annotation) is Literal:
        return f" (one of: {', '.join(get_args(field.annotation))})"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    rules = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in signs.items()
        if hasattr(rule, name)
    ]
    return f" ({', '.join(rules)})" if rules else ""


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value)
