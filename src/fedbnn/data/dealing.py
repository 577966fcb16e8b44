"""How a data set is dealt: to clients, the public alignment set and the validation records."""

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.arguments import check_kind
from fedbnn.base.errors import UserError
from fedbnn.data import partition as partitions
from fedbnn.data.dataset import Dataset, Names
from fedbnn.data.federated import FederatedData
from fedbnn.data.normalisation import fit_normalisation
from fedbnn.data.other_inputs import alignment_inputs
from fedbnn.data.partition import Indices, PartitionSettings
from fedbnn.data.settings import DataSettings
from fedbnn.data.tables.dataset import EncodedTables, TableDataset
from fedbnn.data.view import PublicView


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
    check_kind("dataset", dataset, (Dataset, TableDataset), "a fedbnn.Dataset, or what fedbnn.load_dataset returns")
    check_kind("data", data, DataSettings, "fedbnn.DataSettings(...)")
    check_kind("partition", partition, PartitionSettings, "fedbnn.PartitionSettings(...)")
    check_kind("seed", seed, int, "a whole number")
    if dataset.scale is not None and partition.kind in ("classes", "dirichlet"):
        raise UserError(
            f'partition.kind = "{partition.kind}" deals by classes, but data.task = "regression"; choose iid, quantity '
            "or natural"
        )
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
    if data.alignment_skew > 1:
        free = _skewed_first(dataset, free, points, data.alignment_skew, seed)
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


def _skewed_first(dataset: Dataset | TableDataset, rows: Indices, points: int, skew: float, seed: int) -> Indices:
    """The same rows, those first that make an alignment set of so many points with this skew."""
    rng = np.random.default_rng([seed, *b"skew"])
    chosen = partitions.skewed(dataset.y_train[rows], points, skew, dataset.class_names, rng)
    return np.concatenate([rows[chosen], np.delete(rows, chosen)])


def _encoded(dataset: TableDataset, alignment: Indices, data: DataSettings, seed: int) -> EncodedTables:
    """The records of a table as features; these rows are public, unless others are named."""
    if data.alignment_source:
        public = dataset.public_from(data.alignment_source, data.alignment, seed)
        return dataset.encoded(public, elsewhere=True)
    return dataset.encoded(dataset.train.take(alignment), elsewhere=False)


def _rare(dataset: Dataset) -> list[str]:
    """A class of one record is learned from or tested on, never both."""
    if dataset.scale is not None:
        return []
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
