"""A data set dealt to clients, with its public alignment set and its validation records."""

import dataclasses
import hashlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Dataset, Floats, Labels, Names, Targets, fingerprint_of
from fedbnn.data.identity import Identity, identify
from fedbnn.data.partition import Indices
from fedbnn.data.tables.coding import Coding
from fedbnn.data.targets import target_texts
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

    def client_arrays(self, i: int) -> tuple[Floats, Targets]:
        """Client i's training records."""
        rows = self.client_indices[i]
        return self.seen(self.dataset.x_train[rows]), self.dataset.y_train[rows]

    def calibration_arrays(self, i: int) -> tuple[Floats, Targets]:
        """Client i's own records that no training sees, to calibrate its predictions with."""
        rows = self.calibration_indices[i] if self.calibration_indices else self.client_indices[i][:0]
        none = np.empty((0, *self.input_shape), dtype=np.float32)
        return self.seen(self.dataset.x_train[rows]) if len(rows) else none, self.dataset.y_train[rows]

    def alignment(self) -> Floats:
        """The public inputs on which clients compare their outputs."""
        return self.seen(self.loaded_alignment)

    def evaluation(self, split: Split) -> tuple[Floats, Targets, Names | None]:
        """The records to score, their labels and their natural clients where the data has any."""
        y, groups = self._labels_and_groups(split)
        data = self.dataset
        x = data.x_test if split == "test" else data.x_train[self.validation_indices]
        return self.seen(x), y.copy(), groups

    def own_classes(self, i: int) -> Labels:
        """The classes among client i's training labels, sorted; in regression there are none."""
        if self.dataset.scale is not None:
            return np.empty(0, dtype=np.int64)
        return np.unique(self.dataset.y_train[self.client_indices[i]])

    def own_mask(self, i: int, split: Split) -> NDArray[np.bool_]:
        """Which evaluation records are client i's concern: of its own classes, or of its own group.

        In regression without groups, all of them.
        """
        y, groups = self._labels_and_groups(split)
        if self.natural:
            assert groups is not None
            return np.equal(groups, self.client_names[i])
        if self.dataset.scale is not None:
            return np.ones(len(y), dtype=np.bool_)
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
        labels = target_texts(self.dataset.y_train[rows], self.dataset.class_names)
        return identify(self.dataset.x_train[rows], labels)

    def manifest(self) -> dict[str, Any]:
        """Who holds what, ready for JSON: enough to check a partition without showing a record."""
        data = self.dataset
        return {
            "dataset": data.name,
            "fingerprint": data.fingerprint,
            **self._target_manifest(),
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
                    **self._class_counts(rows),
                    "indices_sha256": hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest(),
                    **({"calibration": len(self.calibration_indices[i])} if self.calibration_indices else {}),
                }
                for i, (name, rows) in enumerate(zip(self.client_names, self.client_indices, strict=True))
            ],
        }

    def _target_manifest(self) -> dict[str, Any]:
        scale = self.dataset.scale
        return {"classes": list(self.dataset.class_names)} if scale is None else {"target": dataclasses.asdict(scale)}

    def _class_counts(self, rows: Indices) -> dict[str, list[int]]:
        data = self.dataset
        if data.scale is not None:
            return {}
        return {"class_counts": np.bincount(data.y_train[rows], minlength=data.classes).tolist()}

    def _other_alignment_manifest(self) -> dict[str, str]:
        if self.other_alignment is None:
            return {}
        fingerprint = fingerprint_of({"alignment": self.other_alignment})
        return {"alignment_source": self.alignment_source, "alignment_fingerprint": fingerprint}

    def _labels_and_groups(self, split: Split) -> tuple[Targets, Names | None]:
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
