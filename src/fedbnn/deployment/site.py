"""From a site's own file to a client: its records, scaled as everybody's, and its architecture."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.csv_source import Table, class_name, numbers_of
from fedbnn.data.dataset import Floats, Labels, Targets, check_records
from fedbnn.data.holdout import own_holdout
from fedbnn.data.identity import Identity, identify
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import Array, inputs_of
from fedbnn.data.tables.coding import Coding
from fedbnn.data.targets import measured, target_texts
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.site_file import RecordsSettings, SiteSettings
from fedbnn.deployment.site_table import read_columns, reader_of, report_oddities
from fedbnn.deployment.terms import Terms
from fedbnn.federation.engines import Site
from fedbnn.federation.parties import Client
from fedbnn.federation.sites import check_augmentation, on_features
from fedbnn.models.network import check_outputs
from fedbnn.models.regression import records_of
from fedbnn.models.training import channels_last
from fedbnn.privacy.secure.primitives import signer_of
from fedbnn.privacy.secure.signing import read_signing_key

log = logging.getLogger(__name__)


class Half(NamedTuple):
    """Records as loaded, their targets, and the text of each: of a class, what the site's own file calls it."""

    x: Floats
    y: Targets
    texts: Sequence[str]
    identity: Identity | None = None  # where inputs are not what was read

    def take(self, rows: Labels) -> "Half":
        identity = None if self.identity is None else self.identity[rows]
        return Half(self.x[rows], self.y[rows], [self.texts[row] for row in rows], identity)

    def identified(self) -> Identity:
        """Which records these are, as they were read."""
        return identify(self.x, self.texts) if self.identity is None else self.identity


def load_site(settings: SiteSettings, terms: Terms) -> Site:
    """The site, bit for bit what `make_sites` makes of the same records.

    Its models are scored on x_test, y_test or the held-out rows; without any of its own classes, it is unscored.
    Under a promise, a record that holds a value that is not finite is left out: a site that does not start would tell
    of it.
    """
    promised = terms.chosen().protects(terms.privacy) is not None
    index = index_of(settings.name, terms)
    alignment = read_alignment(settings.alignment, terms)
    check_augmentation(terms.training, terms.input_shape)
    train, test = site_records(settings.data, terms, promised)
    x, y = train.x, train.y
    x_test, y_test = (test.x, test.y) if test else (x[:0], y[:0])
    own = np.ones(len(y_test), dtype=np.bool_) if terms.regression else np.isin(y_test, np.unique(y))
    if not own.any():
        of = "" if terms.regression else " of classes that the site holds"
        log.warning("%s: no test records%s: unscored", origin_of(settings.data), of)
    cap = settings.privacy
    model, seen = settings.model, alignment.seen_by(settings.model, terms.training)
    public = seen(alignment.raw)
    client = Client(
        index=index,
        name=settings.name,
        train=records_of(channels_last(torch.from_numpy(seen(x))), torch.from_numpy(y), terms.scale),
        alignment=channels_last(torch.from_numpy(public)),
        classes=terms.classes,
        model=model,
        training=on_features(terms.training) if model.body else terms.training,
        rounds=terms.rounds,
        seed=terms.seed,
        privacy=terms.privacy,
        multiplicity=_multiplicity(settings, terms),
        # One place for all of the site's ledgers: whatever the terms call it, there is one cap.
        ledgers=settings.state / "ledgers",
        identity=torch.from_numpy(train.identified()) if promised else None,
        clients=len(terms.sites),
        signers=terms.signers,
        signing_key=_signing_key(settings, terms, index),
        cap=cap.budget if cap else None,
        run=terms.digest,
        disjoint=cap.disjoint if cap else False,
        scale=terms.scale,
    )
    check_outputs(client.network, public.shape[1:], client.outputs, model.name)
    evaluation = records_of(channels_last(torch.from_numpy(seen(x_test))), torch.from_numpy(y_test))
    return Site(client, evaluation, torch.from_numpy(own), client.network.size, operations=0)


def _multiplicity(settings: SiteSettings, terms: Terms) -> int:
    """How many sites hold one record: each site's own word, but for secure aggregation, where all add equal noise."""
    own = settings.privacy.multiplicity if settings.privacy else terms.multiplicity
    if terms.privacy.secure and own != terms.multiplicity:
        raise UserError(
            f"privacy.multiplicity = {own}: with secure aggregation every site counts on the noise of the others, and "
            f"agreed was {terms.multiplicity}; agree on the largest one (multiplicity in the terms)"
        )
    return own


def _signing_key(settings: SiteSettings, terms: Terms, index: int) -> Path | None:
    """The file of the key that the terms know this site by; secure aggregation among real sites needs it."""
    if not terms.privacy.secure:
        return None
    if not terms.signers:
        raise UserError(
            "terms: privacy.aggregation = 'secure' without signers: the server could pretend to be all other sites; "
            "agree on the public key of every site (`fedbnn flower signing-key`)"
        )
    if settings.signing_key is None:
        raise UserError("signing_key is missing: secure aggregation needs the site's private key")
    if signer_of(read_signing_key(settings.signing_key)).hex() != terms.signers[index]:
        raise UserError(
            f"signing_key = '{settings.signing_key}': is not the key that the terms name for '{settings.name}'"
        )
    return settings.signing_key


def index_of(name: str, terms: Terms) -> int:
    """Which client of the terms the site of this name is."""
    if name not in terms.sites:
        raise UserError(
            f"name = {name!r} is not a site of the terms of run '{terms.run}'{did_you_mean(name, terms.sites)} "
            f"(they name {listing(terms.sites)})"
        )
    return terms.sites.index(name)


def feature_columns(settings: RecordsSettings, table: Table) -> list[str]:
    """The names of a table's features, in the order agreed on, or as they stand in the site's own file."""
    return list(settings.columns) or [name for name in table.header if name != settings.target]


def check_shape(origin: str, x: Floats, terms: Terms) -> None:
    if x.shape[1:] != terms.input_shape:
        raise UserError(f"{origin}: a record has shape {x.shape[1:]}, agreed was {terms.input_shape}")


def origin_of(settings: RecordsSettings) -> str:
    """How errors name the site's file."""
    return f"data.path = '{settings.path}'"


def site_records(settings: RecordsSettings, terms: Terms, promised: bool) -> tuple[Half, Half | None]:
    """Records to train on and, where there are any, those to be scored on, as loaded and checked."""
    origin = origin_of(settings)
    halves = _npz(settings.path, origin, terms) if settings.source == "npz" else _csv(settings, origin, terms, promised)
    for name, half in list(halves.items()):
        check_shape(origin, half.x, terms)
        halves[name] = _usable(origin, half) if promised else half
        check_records(origin, name, halves[name].x, halves[name].y, terms.classes)
    return halves["train"], halves.get("test")


def _usable(origin: str, half: Half) -> Half:
    """The records whose values are all finite; which are not is for the site's own eyes."""
    finite = np.isfinite(half.x).all(axis=tuple(range(1, half.x.ndim)))
    if finite.all():
        return half
    log.warning("%s: %d record(s) hold values that are not finite and are left out", origin, int((~finite).sum()))
    return half.take(np.flatnonzero(finite))


def _npz(path: Path, origin: str, terms: Terms) -> dict[str, Half]:
    file = NpzFile(path, origin)
    tested = {"x_test", "y_test"} & set(file.files)
    raw = file.read("train", "test") if tested else file.read("train")
    if len({x.dtype == np.uint8 for x, _ in raw.values()}) > 1:
        raise UserError(f"{origin}: uint8 images are divided by 255, others are not: x_train and x_test must be alike")
    return {
        half: Half(inputs_of(origin, f"x_{half}", x), *_targets(origin, f"y_{half}", y, terms))
        for half, (x, y) in raw.items()
    }


def _targets(origin: str, key: str, y: Array, terms: Terms) -> tuple[Targets, list[str]]:
    """Of an array, with the texts that they count as."""
    if terms.regression:
        numbers = measured(origin, key, y)
        return numbers, target_texts(numbers, ())
    return _labels(origin, key, y, terms.class_names), [class_name(str(text)) for text in y.tolist()]


def _labels(origin: str, key: str, y: Array, names: tuple[str, ...]) -> Labels:
    """Strings are names of classes, whole numbers are their indices."""
    if y.ndim != 1 or y.dtype.kind not in "iuU":
        raise UserError(f"{origin}: {key} is {y.dtype} of shape {y.shape}; one class name or whole number a record")
    if y.dtype.kind != "U":
        return y.astype(np.int64)
    texts: list[str] = y.tolist()
    return _indices(texts, names, lambda record: f"{origin}: {key}[{record}]")


def _csv(settings: RecordsSettings, origin: str, terms: Terms, promised: bool) -> dict[str, Half]:
    if terms.coding is not None:
        return _described(settings, origin, terms, terms.coding, promised)
    if settings.source == "parquet":
        raise UserError(f"{origin}: source = 'parquet' needs terms that describe columns; these do not: use csv or npz")
    table = Table.read(settings.path, origin, settings.delimiter, settings.encoding)
    target = table.column("data.target", settings.target)
    columns = [table.column("data.columns", name) for name in feature_columns(settings, table)]
    places = [f"{origin}, line {line}" for line, _ in table.rows]
    y, labels = _read_targets(table.texts(target), places, settings, terms, settings.decimal)
    return _divided(Half(table.numbers(columns, or_nan=promised), y, labels), settings.test_fraction)


def _described(settings: RecordsSettings, origin: str, terms: Terms, coding: Coding, promised: bool) -> dict[str, Half]:
    """The same for a table whose columns the terms describe."""
    table = reader_of(settings, coding).read(settings.path, origin, settings.source)
    cells = table.column("data.target", settings.target)
    places = [str(place) for place in table.places]
    y, labels = _read_targets([cell or "" for cell in cells], places, settings, terms, table.decimal)
    encoded = read_columns(table, settings, coding, origin)
    report_oddities(encoded, origin, promised)
    # By what the site itself names as its columns, as for a table of plain numbers.
    own = settings.columns or [name for name in table.columns if name != settings.target]
    identity = table.only(own).identity(labels)
    return _divided(Half(encoded.x, y, labels, identity), settings.test_fraction)


def _read_targets(
    texts: list[str], places: Sequence[str], settings: RecordsSettings, terms: Terms, decimal: str
) -> tuple[Targets, list[str]]:
    """Of a column, with the texts that they count as."""
    if terms.regression:
        there = ["" if text in settings.missing else text for text in texts]  # -99 may stand for a missing value
        numbers = numbers_of(there, places, settings.target, decimal)
        return numbers, target_texts(numbers, ())
    return _indices(texts, terms.class_names, places.__getitem__), [class_name(text) for text in texts]


def _divided(whole: Half, fraction: float) -> dict[str, Half]:
    """Records to train on and, if there are to be any, to be scored on."""
    if fraction == 0:
        return {"train": whole}
    held_out = own_holdout(whole.identified(), fraction)
    train, test = (whole.take(np.flatnonzero(half)) for half in (~held_out, held_out))
    return {"train": train, "test": test} if held_out.any() else {"train": train}


def _indices(texts: list[str], names: tuple[str, ...], where: Callable[[int], str]) -> Labels:
    """Where each class stands in the list of names; `where` says of a record how to name it in an error."""
    index = {name: i for i, name in enumerate(names)}
    labels = [index.get(text, index.get(class_name(text), -1)) for text in texts]
    if -1 in labels:
        first = labels.index(-1)
        raise UserError(
            f"{where(first)}: {texts[first]!r} is not a class of the terms{did_you_mean(texts[first], names)} "
            f"(classes: {listing(names)})"
        )
    return np.array(labels, dtype=np.int64)
