"""A data set dealt to clients, with its public alignment set and its validation records."""

import dataclasses
import hashlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.data import partition as partitions
from fedbnn.data.dataset import Dataset, Floats, Labels, Names, fingerprint_of
from fedbnn.data.identity import Identity, identify
from fedbnn.data.normalisation import fit_normalisation
from fedbnn.data.other_inputs import alignment_inputs
from fedbnn.data.partition import Indices, PartitionSettings
from fedbnn.data.sources import DataSettings
from fedbnn.data.tables.coding import Coding
from fedbnn.data.tables.dataset import EncodedTables, TableDataset
from fedbnn.data.view import InputView, PublicView
from fedbnn.features.bodies.view import BodyView
from fedbnn.models.architectures import ModelSettings

Split = Literal["test", "validation"]


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
    """Who holds which training records. All inputs are handed out as models see them.

    That is normalised, (x - mean) / std, and with `data.inputs = "features"` as public features of this. Models that
    stand on a body see its features instead (`on_body`).

    Attributes:
        dataset: the records, as they were loaded.
        client_names: one name a client; for a natural partition, the name of its group.
        client_indices: for each client, its rows of `dataset.x_train`, sorted.
        alignment_indices: rows that are public; their labels are never handed out.
        validation_indices: rows held out for tuning.
        mean: per channel (C, 1, 1) or feature (F,), from the alignment set alone.
        std: likewise; 1 where the alignment set is constant.
        natural: whether a client is a group of the data, which decides what its own test records are.
        other_alignment: the alignment set where it comes from another data set, as loaded; then no rows are public.
        alignment_source: the name of that data set.
        view: the public features that models see instead of inputs, if they do.
        coding: how cells of a table became inputs, if they did; fitted on the alignment set alone.
        identities: then, which training records these are, by their cells.
        told: what was guessed of a table by its public records, in words.
        oddities: what is odd about the records, in words; tells of private ones.
        calibration_indices: for each client, its rows that no training sees; empty where none were asked for.

    """

    dataset: Dataset
    client_names: tuple[str, ...]
    client_indices: tuple[Indices, ...]
    alignment_indices: Indices
    validation_indices: Indices
    mean: Floats
    std: Floats
    natural: bool = False
    other_alignment: Floats | None = None
    alignment_source: str = ""
    view: PublicView | BodyView | None = None
    coding: Coding | None = None
    identities: Identity | None = None
    told: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()
    calibration_indices: tuple[Indices, ...] = ()

    def on_body(self, model: ModelSettings, mirrored: bool) -> "FederatedData":
        """The same, handed out as this model sees it, which stands on a body."""
        if self.view is not None:
            raise UserError(
                f"data.inputs = 'features', but model '{model.name}' stands on body '{model.body}': choose one"
            )
        view = BodyView.of(model.body, model.body_options, self.loaded_alignment, model.components, mirrored)
        return dataclasses.replace(self, view=view)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one record as models see it."""
        return self.dataset.input_shape if self.view is None else self.view.shape

    @property
    def n_clients(self) -> int:
        return len(self.client_indices)

    @property
    def alignment_points(self) -> int:
        return len(self.loaded_alignment)

    @property
    def loaded_alignment(self) -> Floats:
        """The alignment set as it was loaded."""
        return self.dataset.x_train[self.alignment_indices] if self.other_alignment is None else self.other_alignment

    def client_arrays(self, i: int) -> tuple[Floats, Labels]:
        """Client i's training records."""
        rows = self.client_indices[i]
        return self.seen(self.dataset.x_train[rows]), self.dataset.y_train[rows]

    def calibration_arrays(self, i: int) -> tuple[Floats, Labels]:
        """Client i's own records that no training sees, to calibrate its predictions with."""
        rows = self.calibration_indices[i] if self.calibration_indices else self.client_indices[i][:0]
        none = np.empty((0, *self.input_shape), dtype=np.float32)
        return self.seen(self.dataset.x_train[rows]) if len(rows) else none, self.dataset.y_train[rows]

    def alignment(self) -> Floats:
        """The public inputs on which clients compare their outputs."""
        return self.seen(self.loaded_alignment)

    def evaluation(self, split: Split) -> tuple[Floats, Labels, Names | None]:
        """The records to score, their labels and their natural clients where the data has any."""
        y, groups = self._labels_and_groups(split)
        data = self.dataset
        x = data.x_test if split == "test" else data.x_train[self.validation_indices]
        return self.seen(x), y.copy(), groups

    def own_classes(self, i: int) -> Labels:
        """The classes among client i's training labels, sorted."""
        return np.unique(self.dataset.y_train[self.client_indices[i]])

    def own_mask(self, i: int, split: Split) -> NDArray[np.bool_]:
        """Which evaluation records are client i's concern: of its own classes, or of its own group."""
        y, groups = self._labels_and_groups(split)
        if self.natural:
            assert groups is not None
            return np.equal(groups, self.client_names[i])
        return np.isin(y, self.own_classes(i))

    @property
    def multiplicity(self) -> int:
        """The largest number of clients that hold one and the same record."""
        held = np.concatenate([np.empty(0, dtype=np.int64), *self.client_indices])
        return int(np.bincount(held).max(initial=0))

    def identity(self, i: int) -> Identity:
        """Which records client i holds, as they were loaded."""
        rows = self.client_indices[i]
        if self.identities is not None:
            return self.identities[rows]
        labels = [self.dataset.class_names[label] for label in self.dataset.y_train[rows]]
        return identify(self.dataset.x_train[rows], labels)

    def manifest(self) -> dict[str, Any]:
        """Who holds what, ready for JSON: enough to check a partition without showing a record."""
        data = self.dataset
        return {
            "dataset": data.name,
            "fingerprint": data.fingerprint,
            "classes": list(data.class_names),
            "train": len(data.y_train),
            "test": len(data.y_test),
            "alignment": self.alignment_points,
            **self._other_alignment_manifest(),
            "validation": len(self.validation_indices),
            "largest_multiplicity": self.multiplicity,
            "clients": [
                {
                    "name": name,
                    "records": len(rows),
                    "class_counts": np.bincount(data.y_train[rows], minlength=data.classes).tolist(),
                    "indices_sha256": hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest(),
                    **({"calibration": len(self.calibration_indices[i])} if self.calibration_indices else {}),
                }
                for i, (name, rows) in enumerate(zip(self.client_names, self.client_indices, strict=True))
            ],
        }

    def _other_alignment_manifest(self) -> dict[str, str]:
        if self.other_alignment is None:
            return {}
        fingerprint = fingerprint_of({"alignment": self.other_alignment})
        return {"alignment_source": self.alignment_source, "alignment_fingerprint": fingerprint}

    def _labels_and_groups(self, split: Split) -> tuple[Labels, Names | None]:
        assert split in ("test", "validation"), split
        data, rows = self.dataset, self.validation_indices
        if split == "test":
            return data.y_test, data.group_test
        if rows.size == 0:
            raise UserError("data.validation = 0: there are no validation records to evaluate on; raise it")
        return data.y_train[rows], None if data.group_train is None else data.group_train[rows]

    def seen(self, x: Floats) -> Floats:
        """Inputs, as loaded, in the form in which models see all others."""
        return self.input_view(x)

    @property
    def input_view(self) -> InputView:
        """What `seen` does, without any record."""
        return InputView(self.dataset.input_shape, self.mean, self.std, self.view)


def federate(
    dataset: Dataset | TableDataset, data: DataSettings, partition: PartitionSettings, seed: int
) -> FederatedData:
    """Deal the training records to clients and hold out the alignment set and the validation records.

    The result depends on the arguments alone. Where clients are promised a number of records of each of
    their classes they are served first, and the hold-outs are drawn from what is left: the alignment set
    cannot use up a rare class. Otherwise the hold-outs are drawn first and the clients share what is left;
    a natural client keeps at least one record. Normalisation is fitted on the alignment set only, because
    that alone is public.

    With `data.calibration` each record is kept from training with this probability, independently of all others and by
    whoever holds it: what a client keeps is then to its training records as new records are.

    With `partition.small_share` some clients keep only a few of the records they were served; all else is as without.

    With `data.alignment_source` the alignment set is drawn from that data set's inputs, no training record is
    public, and normalisation is fitted on these other inputs all the same: the clients' records are then scaled by
    the mean and spread of data that may look different.

    Cells of a table become features here too: what is needed for that is fitted on the alignment set alone.
    """
    if seed < 0:
        raise UserError(f"seed = {seed} is negative; give 0 or more")
    rng = np.random.default_rng([seed, *b"partition"])
    pool: Indices = rng.permutation(len(dataset.y_train))

    clients_first = partition.kind == "classes" and partition.records_per_class > 0
    if clients_first:
        parts, names = _deal(dataset, pool, partition, rng)
        reserved = np.concatenate(parts)
        # What clients with little data leave stays unused: nobody else's records depend on how many there are.
        for client in partitions.small_clients(partition.clients, partition.small_share):
            few = partition.small_records_per_class
            parts[client] = partitions.few_of_each_class(dataset.y_train, parts[client], few)
    elif partition.kind == "natural":
        reserved = pool[np.unique(_groups(dataset)[pool], return_index=True)[1]]
    else:
        reserved = pool[:0]
    points = 0 if data.alignment_source else data.alignment
    _check_total(len(pool), max(len(reserved), _least(partition)), points, data.validation)

    free = pool[~np.isin(pool, reserved)]
    alignment, validation, rest = np.split(free, [points, points + data.validation])
    if not clients_first:
        parts, names = _deal(dataset, np.concatenate([reserved, rest]), partition, rng)

    kept_back = _kept_back(dataset, data.calibration, seed)
    for part, name in zip(parts, names, strict=True):
        if kept_back[part].all():
            raise UserError(
                f"data.calibration = {data.calibration:g} leaves client {name!r} none of its {len(part)} record(s) to "
                "train on; lower it"
            )
    alignment = np.sort(alignment)
    coded = _encoded(dataset, alignment, data, seed) if isinstance(dataset, TableDataset) else None
    if coded is not None:
        dataset, other = coded.dataset, coded.other_alignment
    else:
        assert isinstance(dataset, Dataset)
        other = alignment_inputs(data, dataset.input_shape, seed) if data.alignment_source else None
    aligned = dataset.x_train[alignment] if other is None else other
    mean, std = fit_normalisation(aligned)
    federated = FederatedData(
        dataset=dataset,
        client_names=names,
        client_indices=tuple(np.sort(part[~kept_back[part]]) for part in parts),
        alignment_indices=alignment,
        validation_indices=np.sort(validation),
        mean=mean,
        std=std,
        natural=partition.kind == "natural",
        other_alignment=other,
        alignment_source=data.alignment_source,
        view=None if data.inputs == "raw" else PublicView.of((aligned - mean) / std, data.inputs),
        coding=None if coded is None else coded.coding,
        identities=None if coded is None else coded.identities,
        told=coded.told if coded else (),
        oddities=(*(coded.oddities if coded else ()), *_rare(dataset)),
        calibration_indices=tuple(np.sort(part[kept_back[part]]) for part in parts) if data.calibration else (),
    )
    if data.test_records == len(dataset.y_test):
        _check_represented(federated)
    return federated


def _encoded(dataset: TableDataset, alignment: Indices, data: DataSettings, seed: int) -> EncodedTables:
    """The records of a table as features; these rows are public, unless others are named."""
    if data.alignment_source:
        public = dataset.public_from(data.alignment_source, data.alignment, seed)
        return dataset.encoded(public, elsewhere=True)
    return dataset.encoded(dataset.train.take(alignment), elsewhere=False)


def _rare(dataset: Dataset) -> list[str]:
    """A class of one record is learned from or tested on, never both."""
    counts = np.bincount(np.concatenate([dataset.y_train, dataset.y_test]), minlength=dataset.classes)
    return [
        f"class {name!r} has one record only: it is never tested"
        for name, count in zip(dataset.class_names, counts, strict=True)
        if count == 1
    ]


def _kept_back(dataset: Dataset | TableDataset, share: float, seed: int) -> NDArray[np.bool_]:
    """Which training records are for calibration, each by a coin of its own."""
    drawn = np.random.default_rng([seed, *b"calibration"]).random(len(dataset.y_train))
    return np.less(drawn, share)


def _check_represented(data: FederatedData) -> None:
    """Refuse a cut of the test records after which a client could not be scored on all it has learned."""
    labels = data.dataset.y_test
    for i, name in enumerate(data.client_names):
        missing = np.setdiff1d(data.own_classes(i), labels[data.own_mask(i, "test")])
        if missing.size:
            raise UserError(
                f"data.test_records = {len(labels)} leaves no test record of class "
                f"{data.dataset.class_names[missing[0]]!r} for client {name!r}, who holds it; raise it (0: all)"
            )


def _deal(
    dataset: Dataset | TableDataset, rows: Indices, settings: PartitionSettings, rng: np.random.Generator
) -> tuple[list[Indices], tuple[str, ...]]:
    """Deal these rows, which come in random order, as the settings say: each client's rows, and its name."""
    if settings.records_per_client and settings.kind in ("iid", "dirichlet", "quantity"):
        rows = rows[: settings.clients * settings.records_per_client]
    clients, labels = settings.clients, dataset.y_train[rows]
    names = tuple(partitions.client_name(i, clients) for i in range(clients))
    match settings.kind:
        case "classes":
            holds = partitions.deal_classes(clients, settings.classes_per_client, dataset.classes, rng)
            parts = partitions.by_classes(labels, holds, settings.records_per_class, dataset.class_names, rng)
        case "iid":
            parts = partitions.iid(len(rows), clients, rng)
        case "dirichlet":
            parts = partitions.dirichlet(labels, clients, settings.alpha, rng)
        case "quantity":
            parts = partitions.quantity(len(rows), clients, settings.alpha, rng)
        case "natural":
            parts, names = partitions.natural(_groups(dataset)[rows])
    return [rows[part] for part in parts], names


def _groups(dataset: Dataset | TableDataset) -> Names:
    if dataset.group_train is None:
        raise UserError(
            f'partition.kind = "natural", but data set {dataset.name!r} names no clients; '
            "set data.client_column (csv, parquet), give one file a client, or choose another kind"
        )
    return dataset.group_train


def _least(settings: PartitionSettings) -> int:
    """The fewest records that can serve the clients, as far as the settings alone tell."""
    match settings.kind:
        case "natural":
            return 0
        case "classes":
            return settings.clients
        case _:
            return settings.clients * max(settings.records_per_client, 1)


def _check_total(records: int, needed: int, alignment: int, validation: int) -> None:
    wanted = needed + alignment + validation
    if wanted > records:
        raise UserError(
            f"too few training records: clients need {needed}, data.alignment = {alignment} and "
            f"data.validation = {validation}, {wanted} in all, but there are {records}; "
            f"{wanted - records} are missing: lower one of them"
        )
