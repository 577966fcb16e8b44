"""The folder of a federation, written from a configuration: a Flower app, the server's part and one part a site.

```
DIR/pyproject.toml, federation/   the Flower app: it names the two halves of fedbnn and holds no code of its own
DIR/server/                       terms.json, alignment.npz, server.toml
DIR/sites/NAME/                   site.toml, terms.json, alignment.npz, records.npz
```
Records are those that `fedbnn run` would deal with the same configuration, so that both can be compared.
"""

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__
from fedbnn.data import FederatedData
from fedbnn.data.dataset import Floats, Targets
from fedbnn.data.federated import Split
from fedbnn.data.tables.coding import ColumnCode
from fedbnn.deployment.alignment import write_alignment
from fedbnn.deployment.terms import RUN_NAME, Terms, alignment_of
from fedbnn.deployment.trial.texts import (
    CAP,
    COLUMN,
    IGNORED,
    MODEL,
    NO_CAP,
    OWN_COLUMNS,
    OWN_NUMBERS,
    PYPROJECT,
    SERVER,
    SIGNING_KEY,
    SIGNS,
    SITE,
)
from fedbnn.federation.engines import Site
from fedbnn.methods import METHODS
from fedbnn.models.architectures import ModelSettings
from fedbnn.privacy.secure.signing import make_signing_key
from fedbnn.runs.config import Config, toml_value
from fedbnn.runs.experiment import Prepared

FOLDER_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,98}[A-Za-z0-9_-])?")


def write_federation(folder: Path, config: Config, run: str = "") -> Terms:
    """Write DIR for this configuration and return its terms; nothing is there before everything is.

    The run's name is the data set's and the method's unless it is given.
    """
    _check_folder(folder)
    run = run or _run_name(config)
    if not re.fullmatch(RUN_NAME, run):
        raise UserError(f"--run {run}: use a-z, 0-9 and dashes, at most 60 characters, no dash in front")
    if config.evaluation.foreign:
        raise UserError(
            f"evaluation.foreign = '{config.evaluation.foreign}' is for `fedbnn run`: sites are scored on their own "
            "records only; leave it empty"
        )
    if config.faults.on:
        raise UserError("faults: they are for simulations, and these sites are real ones; set all rates to 0")
    config.chosen().check_deployed()
    prepared = Prepared.of(config, [config.method])
    data = prepared.data
    terms = Terms.of(config, data, run)
    for name in terms.sites:
        if not FOLDER_NAME.fullmatch(name):
            raise UserError(
                f"client {name!r} cannot name a folder; use letters, digits, spaces, dots and dashes in the names of "
                "clients"
            )
    if len({name.lower() for name in terms.sites}) < len(terms.sites):
        raise UserError("two clients' names differ in upper and lower case only; give them different names")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if terms.privacy.secure:
            terms = replace(terms, signers=_signers(temporary / "sites", terms))
        models = {site.client.model.architecture: site.client.model for site in prepared.sites}
        common = next(iter(models.values())) if config.chosen().one_architecture else None
        if common and common.body:
            raise UserError(
                f"method '{config.method_name}' averages weights at the server, which has no features of body "
                f"'{common.body}': sites on bodies exchange outputs (fedbnn, fedmd)"
            )
        _write_app(temporary, folder.resolve(), terms, data, common)
        for site in prepared.sites:
            _write_site(temporary / "sites" / site.client.name, site, terms, config, data)
        temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return terms


def _check_folder(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is there already and no folder; give another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder, since a site's state may lie in this one")


def _run_name(config: Config) -> str:
    words = f"{Path(config.data.source).stem}-{config.method_name}".lower()
    return re.sub("[^a-z0-9]+", "-", words).strip("-")[:60]


def _write_app(folder: Path, final: Path, terms: Terms, data: FederatedData, common: ModelSettings | None) -> None:
    (folder / "pyproject.toml").write_text(
        PYPROJECT.format(version=toml_value(__version__), server=toml_value(str(final / "server"))),
        encoding="utf-8",
    )
    (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")
    app = folder / "federation"
    app.mkdir()
    (app / "__init__.py").write_text('"""The Flower app: two halves of fedbnn."""\n', encoding="utf-8")
    for half in ("client_app", "server_app"):
        # Flower looks for an assignment to `app` in the text of the module.
        lines = f"from fedbnn.deployment.flower import {half}\n\napp = {half}.app\n"
        (app / f"{half}.py").write_text(lines, encoding="utf-8")
    (folder / "server").mkdir()
    (folder / "server" / "server.toml").write_text(
        SERVER.format(methods=toml_value(_from_outside(terms)), model=_model_table(common)), encoding="utf-8"
    )
    _write_agreed(folder / "server", terms, data)
    (folder / "sites").mkdir(exist_ok=True)


def _model_table(common: ModelSettings | None) -> str:
    """What all sites run; as a comment, where each may run its own."""
    model = common or ModelSettings()
    table = MODEL.format(name=toml_value(model.name), options=toml_value(model.options), more=_more(model))
    return table if common else "\n".join(f"# {line}" for line in table.splitlines())


def _more(model: ModelSettings) -> str:
    """Lines for what else is not at its default."""
    return "".join(f"\n{name} = {toml_value(value)}" for name, value in model.unusual.items())


def _signers(folder: Path, terms: Terms) -> tuple[str, ...]:
    """A key for each site in its own folder, for trying out; the public halves."""
    for name in terms.sites:
        (folder / name).mkdir(parents=True, mode=0o700)
    return tuple(make_signing_key(folder / name / SIGNING_KEY) for name in terms.sites)


def _from_outside(terms: Terms) -> list[str]:
    """The method that parties must allow by name, if it is not one of ours."""
    return [] if terms.method in METHODS else [terms.method]


def _write_agreed(folder: Path, terms: Terms, data: FederatedData) -> None:
    """What every party has a copy of."""
    (folder / "terms.json").write_text(terms.to_json(), encoding="utf-8")
    write_alignment(folder / "alignment.npz", alignment_of(data))


def _write_site(folder: Path, site: Site, terms: Terms, config: Config, data: FederatedData) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    client, promise = site.client, config.chosen().protects(config.privacy)
    cap = NO_CAP
    if promise is not None and promise.unit == "record":
        budget = promise.budget
        cap = CAP.format(
            epsilon=toml_value(budget.epsilon), delta=toml_value(budget.delta), multiplicity=client.multiplicity
        )
    text = SITE.format(
        name=toml_value(client.name),
        device=toml_value(config.engine.device),
        methods=toml_value(_from_outside(terms)),
        signs=SIGNS if terms.signers else "",
        targets=_target_line(terms),
        source=data.dataset.name,
        own=_own_table(terms),
        model=toml_value(client.model.name),
        options=toml_value(client.model.options),
        more=_more(client.model),
        privacy=cap,
    )
    (folder / "site.toml").write_text(text, encoding="utf-8")
    _write_agreed(folder, terms, data)
    np.savez_compressed(
        folder / "records.npz", allow_pickle=False, **records_of(data, client.index, config.evaluation.split)
    )
    if data.calibration_indices:  # for `fedbnn predict --calibration`
        rows = data.calibration_indices[client.index]
        x, y = data.dataset.x_train[rows], data.dataset.y_train[rows]
        np.savez_compressed(folder / "calibration.npz", allow_pickle=False, x=x, y=y)


def records_of(data: FederatedData, index: int, split: Split) -> dict[str, Floats | Targets]:
    """A client's records as loaded, and those it is scored on, if any: of a natural client its own, otherwise all."""
    rows, x, y = data.client_indices[index], data.dataset.x_train, data.dataset.y_train
    _, labels, groups = data.evaluation(split)
    inputs = data.dataset.x_test if split == "test" else x[data.validation_indices]
    scored = np.ones(len(labels), dtype=np.bool_)
    if data.natural and groups is not None:
        scored = np.equal(groups, data.client_names[index])
    held: dict[str, Floats | Targets] = {"x_train": x[rows], "y_train": y[rows]}
    return held | {"x_test": inputs[scored], "y_test": labels[scored]} if scored.any() else held


def _own_table(terms: Terms) -> str:
    """How a site would name a table of its own, as a comment."""
    column = _target_column(terms)
    if terms.coding is None:
        return OWN_NUMBERS.format(column=column, shape=" x ".join(map(str, terms.input_shape)))
    lines = [f"#   {toml_value(column.name)}: {_told(column)}" for column in terms.columns if column.kind != "id"]
    units = [f"{toml_value(column.name)} = {toml_value(column.unit)}" for column in terms.columns if column.unit]
    return OWN_COLUMNS.format(column=column, columns="\n".join(lines), units=", ".join(units))


def _target_column(terms: Terms) -> str:
    """How it would name the column of what is predicted."""
    if terms.target is None:
        return COLUMN.format(name='"diagnosis"', what="class", more="")
    return COLUMN.format(name=toml_value(terms.target.name or "days"), what="number", more=", in the unit agreed on")


def _told(column: ColumnCode) -> str:
    """A column in one line, whatever its texts hold."""
    low, high = ("" if bound is None else f"{bound:g}" for bound in (column.low, column.high))
    facts = [
        column.kind,
        toml_value(column.unit) if column.unit else "",
        f"from {low}" if low else "",
        f"to {high}" if high else "",
        toml_value(column.values) if column.values else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def _target_line(terms: Terms, most: int = 12) -> str:
    """What is predicted, for people to read; one line of it, whatever a name holds."""
    if (target := terms.target) is not None:
        name = f"{toml_value(target.name)}, " if target.name else ""
        return f"a number to predict: {name}about {target.mean:g}, by about {target.sd:g} more or less"
    names = ", ".join(toml_value(name) for name in terms.class_names[:most])
    return f"{terms.classes} classes: {names}{', ...' if terms.classes > most else ''}"
