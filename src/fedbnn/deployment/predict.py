"""What a site's model says of new records: a class, its probabilities, and how unsure the model is and why."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.data.csv_source import Table
from fedbnn.data.dataset import Floats, check_finite
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import inputs_of
from fedbnn.deployment.alignment import ARRAY, read_alignment
from fedbnn.deployment.node import Node
from fedbnn.deployment.site import check_shape, feature_columns, load_site, origin_of
from fedbnn.deployment.site_file import RecordsSettings, read_site
from fedbnn.deployment.state import SiteState, remembered_site, runs_in
from fedbnn.deployment.terms import Terms
from fedbnn.features.standard import standard_features
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import parsed
from fedbnn.models.training import channels_last
from fedbnn.privacy.chain import write_durably

UNCERTAINTIES = ("total", "epistemic", "aleatoric")

Asked = Literal["variant", "own", "uniform", "estimate", "given"]
"""Whose prior over labels it is: the variant's, one of those known by name, or shares that the user gave."""


@dataclass(frozen=True)
class SitePrediction:
    """Predictions of one site's model for some records; uncertainties are entropies in nats.

    `asked` names the label prior that they stand under, and `prior` is what it is: how likely each class was taken to
    be before its record was seen. `novelty` tells of each record how far it is from the alignment set: above 1 it is
    further than 99 in a hundred of its points, and whatever is said of it deserves doubt.
    """

    site: str
    run: str
    method: str
    class_names: tuple[str, ...]
    prediction: Prediction
    novelty: Tensor
    asked: Asked = "variant"

    @property
    def prior(self) -> dict[str, float]:
        """The share of each class."""
        assert self.prediction.prior is not None
        return dict(zip(self.class_names, self.prediction.prior.tolist(), strict=True))

    @property
    def labels(self) -> list[str]:
        return [self.class_names[label] for label in self.prediction.labels.tolist()]

    def to_dict(self) -> dict[str, Any]:
        probs: list[list[float]] = self.prediction.probs.tolist()
        uncertainties = [getattr(self.prediction, kind).tolist() for kind in UNCERTAINTIES]
        novelty: list[float] = self.novelty.tolist()
        return {
            "site": self.site,
            "run": self.run,
            "method": self.method,
            "asked_prior": self.asked,
            "prior": self.prior,
            "records": [
                {
                    "class": label,
                    "probabilities": dict(zip(self.class_names, row, strict=True)),
                    **dict(zip(UNCERTAINTIES, nats, strict=True)),
                    "novelty": far,
                }
                for label, row, far, *nats in zip(self.labels, probs, novelty, *uncertainties, strict=True)
            ],
        }

    def to_csv(self) -> str:
        """A column with the class, one of probability for each class, the uncertainties and the novelty."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["class", *(f"p({name})" for name in self.class_names), *UNCERTAINTIES, "novelty"])
        for record in self.to_dict()["records"]:
            numbers = [*record["probabilities"].values(), *(record[kind] for kind in (*UNCERTAINTIES, "novelty"))]
            writer.writerow([record["class"], *(f"{number:.9g}" for number in numbers)])  # 9 digits: every float32
        return stream.getvalue()

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        arrays = {name: getattr(self.prediction, name).numpy() for name in ("labels", "probs", "prior", *UNCERTAINTIES)}
        arrays["novelty"] = self.novelty.numpy()
        np.savez(stream, allow_pickle=False, class_names=np.array(self.class_names), **arrays)
        return stream.getvalue()


WRITERS: dict[str, Callable[[SitePrediction], bytes]] = {
    ".csv": lambda predictions: predictions.to_csv().encode(),
    ".json": lambda predictions: (json.dumps(predictions.to_dict(), indent=2) + "\n").encode(),
    ".npz": SitePrediction.to_npz,
}


def check_out(out: Path) -> None:
    """Refuse, before any work, a file that `write` could not write."""
    if out.suffix not in WRITERS:
        raise UserError(f"--out {out}: its name must end in {', '.join(WRITERS)}")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def write(predictions: SitePrediction, out: Path) -> None:
    write_durably(out, WRITERS[out.suffix](predictions))


def predict(
    state: Path, source: Path, run: str | None = None, variant: str | None = None, prior: str | None = None
) -> SitePrediction:
    """Predictions of a site's newest model for the records of an .npz or .csv file, with values as in its own files.

    `run` is the key of one of the site's runs, needed where there are several. `variant` is one of the models that the
    method scores; without it, the one that it is judged by. `prior` says how likely each class is before its record is
    seen, as `label_prior.parsed` reads it; without it, as the variant takes them to be.
    """
    settings = read_site(remembered_site(state))
    key = _chosen(state, run)
    terms = SiteState(state, key).terms(settings.methods)
    shares = None if prior is None else parsed(prior, terms.class_names)
    x = _inputs(source, settings.data, terms)
    device = find_device(settings.device, "device")
    node = Node(terms, load_site(settings, terms), state, share_metrics=False, device=device, key=key)
    alignment = read_alignment(settings.alignment, terms)
    seen = alignment.seen_by(settings.model, terms.training)
    prediction = node.predict(channels_last(torch.from_numpy(seen(x))), variant, shares)
    inputs = channels_last(torch.from_numpy(alignment.normalised(x)))
    features = standard_features(alignment.tensor(), terms.privacy.features, "flip" in terms.training.augment)
    novelty = features.novelty(features(inputs)).float()
    asked: Asked = "variant" if shares is None else shares if isinstance(shares, str) else "given"
    return SitePrediction(settings.name, key, terms.method, terms.class_names, prediction, novelty, asked)


def _chosen(state: Path, run: str | None) -> str:
    runs = runs_in(state)
    if not runs:
        raise UserError(f"--state {state}: this site has not taken part in any run yet")
    if run is None and len(runs) > 1:
        raise UserError(f"--state {state} holds several runs: choose one with --run ({', '.join(runs)})")
    if run is not None and run not in runs:
        raise UserError(f"--run {run}: there is no such run in {state} (there are {', '.join(runs)})")
    return run or runs[0]


def _inputs(source: Path, settings: RecordsSettings, terms: Terms) -> Floats:
    """New records as loaded, before they are scaled."""
    origin = f"--input {source}"
    match source.suffix:
        case ".npz":
            file = NpzFile(source, origin)
            name = file.files[0] if len(file.files) == 1 else ARRAY
            x = inputs_of(origin, name, file.array(name))
        case ".csv":
            table = Table.read(source, origin)
            x = table.numbers([table.column("feature", name) for name in _features(settings, table)])
        case _:
            raise UserError(f"{origin}: its name must end in .npz or .csv")
    check_shape(origin, x, terms)
    if len(x) == 0:
        raise UserError(f"{origin} has no records")
    check_finite(origin, x)
    return x


def _features(settings: RecordsSettings, table: Table) -> list[str]:
    """The columns to read: those of the site's own records by name, or all where it has no table."""
    if settings.source == "npz":
        return table.header
    return feature_columns(settings, Table.read(settings.path, origin_of(settings)))
