"""What a site's model says of new records: a class, its probabilities, and how unsure the model is and why.

In regression it is a real number (`fedbnn.deployment.estimated`).
"""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.data.csv_source import Table
from fedbnn.data.dataset import Floats, check_finite
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.estimated import FOREIGN, SiteEstimate, check_wish, fitted
from fedbnn.deployment.labelled import read_labelled
from fedbnn.deployment.new_records import TABLES, CodedTables, NewRecords, read_inputs
from fedbnn.deployment.node import Node
from fedbnn.deployment.site import check_shape, feature_columns, load_site, origin_of
from fedbnn.deployment.site_file import RecordsSettings, read_site
from fedbnn.deployment.state import SiteState, remembered_site, runs_in
from fedbnn.deployment.terms import Terms
from fedbnn.features.standard import standard_features
from fedbnn.federation.calibrated import NEEDED, Calibrated, Wish, seen_before
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import Known, parsed
from fedbnn.models.regression import of_classes, of_numbers, records_of
from fedbnn.models.training import Records, channels_last
from fedbnn.privacy.chain import write_durably

UNCERTAINTIES = ("total", "epistemic", "aleatoric")
NO_CLASS = "no class fits"  # the set of classes is empty

View = Callable[[Floats], Floats]
"""From inputs as loaded to what a model sees."""

Asked = Literal["variant", "own", "uniform", "estimate", "given"]
"""Whose prior over labels it is: the variant's, one of those known by name, or shares that the user gave."""


@dataclass(frozen=True)
class SitePrediction:
    """Predictions of one site's model for some records; uncertainties are entropies in nats.

    `asked` names the label prior that they stand under, and `prior` is what it is: how likely each class was taken to
    be before its record was seen. `novelty` tells of each record how far it is from the alignment set: above 1 it is
    further than 99 in a hundred of its points, and whatever is said of it deserves doubt. `calibrated` has what is
    promised of sets and abstention, where that was asked for. Of a table whose columns are described, `ids` has its
    columns of ids, and `wrong` says what is wrong with each record's values, if anything.
    """

    site: str
    run: str
    method: str
    class_names: tuple[str, ...]
    prediction: Prediction
    novelty: Tensor
    asked: Asked = "variant"
    calibrated: Calibrated = field(default_factory=Calibrated)
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: Sequence[str] = ()

    @property
    def sets(self) -> list[tuple[str, ...]] | None:
        """The classes of each record's set, or None where no sets were asked for."""
        held = self.calibrated.sets(self.prediction)
        return None if held is None else [tuple(np.array(self.class_names)[row].tolist()) for row in held]

    @property
    def abstains(self) -> list[bool] | None:
        """Whether the model should not answer, or None where that was not asked for."""
        silent = self.calibrated.abstains(self.prediction)
        return None if silent is None else silent.tolist()

    @property
    def promises(self) -> list[str]:
        """What holds for sets and abstention, in words."""
        return self.calibrated.in_words(self.class_names)

    @property
    def flags(self) -> list[tuple[str, ...]]:
        """What speaks against trusting the answer to each record."""
        empty = [not one for one in self.sets] if self.sets is not None else [False] * len(self.novelty)
        wrong = self.wrong or [""] * len(self.novelty)
        return [
            ((FOREIGN,) if far > 1 else ()) + ((NO_CLASS,) if none else ()) + ((value,) if value else ())
            for far, none, value in zip(self.novelty.tolist(), empty, wrong, strict=True)
        ]

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
        asked: list[dict[str, Any]] = [{} for _ in novelty]
        if self.ids:
            asked = [{"ids": dict(zip(self.ids, row, strict=True))} for row in zip(*self.ids.values(), strict=True)]
        for name, values in (("set", self.sets), ("abstain", self.abstains)):
            for record, value in zip(asked, values or (), strict=False):
                record[name] = list(value) if isinstance(value, tuple) else value
        return {
            "site": self.site,
            "run": self.run,
            "method": self.method,
            "asked_prior": self.asked,
            "prior": self.prior,
            **({"promise": self.calibrated.to_dict(self.class_names)} if self.promises else {}),
            "records": [
                {
                    "class": label,
                    "probabilities": dict(zip(self.class_names, row, strict=True)),
                    **dict(zip(UNCERTAINTIES, nats, strict=True)),
                    "novelty": None if math.isnan(far) else far,
                    "flags": list(flags),
                    **more,
                }
                for label, row, far, flags, more, *nats in zip(
                    self.labels, probs, novelty, self.flags, asked, *uncertainties, strict=True
                )
            ],
        }

    def to_csv(self) -> str:
        """A column with the class, one of probability for each class, the uncertainties, the novelty and the flags.

        Columns of ids come first. Where they were asked for, the set of classes and whether to abstain; what is a list
        is divided by semicolons.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        more = [name for name, value in (("set", self.sets), ("abstain", self.abstains)) if value is not None]
        probabilities = [f"p({name})" for name in self.class_names]
        writer.writerow([*self.ids, "class", *probabilities, *UNCERTAINTIES, "novelty", "flags", *more])
        for record in self.to_dict()["records"]:
            numbers = [*record["probabilities"].values(), *(record[kind] for kind in (*UNCERTAINTIES, "novelty"))]
            words = [_in_a_cell(record[name]) for name in ("flags", *more)]
            written = ["" if number is None else f"{number:.9g}" for number in numbers]  # 9 digits: every float32
            writer.writerow([*record.get("ids", {}).values(), record["class"], *written, *words])
        return stream.getvalue()

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        arrays = {name: getattr(self.prediction, name).numpy() for name in ("labels", "probs", "prior", *UNCERTAINTIES)}
        arrays["novelty"] = self.novelty.numpy()
        asked = {"sets": self.calibrated.sets(self.prediction), "abstain": self.calibrated.abstains(self.prediction)}
        arrays |= {name: value for name, value in asked.items() if value is not None}
        np.savez(stream, allow_pickle=False, class_names=np.array(self.class_names), **arrays)
        return stream.getvalue()


def _in_a_cell(value: list[str] | bool) -> str:
    return "; ".join(value) if isinstance(value, list) else "yes" if value else "no"


SiteAnswer = SitePrediction | SiteEstimate
"""What a model says of new records, in classification or in regression."""

WRITERS: dict[str, Callable[[SiteAnswer], bytes]] = {
    ".csv": lambda predictions: predictions.to_csv().encode(),
    ".json": lambda predictions: (json.dumps(predictions.to_dict(), indent=2) + "\n").encode(),
    ".npz": lambda predictions: predictions.to_npz(),
}


def check_out(out: Path) -> None:
    """Refuse, before any work, a file that `write` could not write."""
    if out.suffix not in WRITERS:
        raise UserError(f"--out {out}: its name must end in {', '.join(WRITERS)}")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def write(predictions: SiteAnswer, out: Path) -> None:
    write_durably(out, WRITERS[out.suffix](predictions))


def predict(
    state: Path,
    source: Path,
    run: str | None = None,
    variant: str | None = None,
    prior: str | None = None,
    wish: Wish | None = None,
    calibration: Path | None = None,
) -> SiteAnswer:
    """Predictions of a site's newest model for the records of an .npz or .csv file, with values as in its own files.

    `run` is the key of one of the site's runs, needed where there are several. `variant` is one of the models that the
    method scores; without it, the one that it is judged by. `prior` says how likely each class is before its record is
    seen, as `label_prior.parsed` reads it; without it, as the variant takes them to be. `wish` asks for sets of classes
    and for abstention, by the labelled records of the file `calibration`, which the site must not have trained on; in
    regression for intervals.
    """
    wish = wish or Wish()
    settings = read_site(remembered_site(state))
    key = _chosen(state, run)
    terms = SiteState(state, key).terms(settings.methods)
    if terms.regression:
        check_wish(wish, prior)
    shares = None if prior is None else parsed(prior, terms.class_names)
    wish.check_prior(shares)
    if wish.wanted and calibration is None:
        raise UserError(NEEDED)
    new = _inputs(source, settings.data, terms)
    device = find_device(settings.device, "device")
    node = Node(terms, load_site(settings, terms), state, share_metrics=False, device=device, key=key)
    alignment = read_alignment(settings.alignment, terms)
    seen = alignment.seen_by(settings.model, terms.training)
    held, equal = None, 0
    if wish.wanted and calibration is not None:
        records = _labelled(calibration, settings.data, terms, seen)
        as_trained = records_of(records.x, records.y, terms.scale)
        equal = seen_before(f"--calibration {calibration}", [node.site.client], as_trained)
        held = node.predict(records.x, variant, shares), records
    prediction = node.predict(channels_last(torch.from_numpy(seen(new.x))), variant, shares)
    inputs = channels_last(torch.from_numpy(alignment.normalised(new.x)))
    features = standard_features(alignment.tensor(), terms.privacy.features, "flip" in terms.training.augment)
    novelty = features.novelty(features(inputs)).float()
    if terms.target is not None:
        rule = None if held is None or wish.alpha is None else fitted(of_numbers(held[0]), held[1], wish.alpha)
        said, name = of_numbers(prediction), terms.target.name
        return SiteEstimate(settings.name, key, terms.method, name, said, novelty, rule, equal, new.ids, new.wrong)
    calibrated = Calibrated() if held is None else Calibrated.fit(wish, of_classes(held[0]), held[1].y, equal)
    return SitePrediction(
        settings.name,
        key,
        terms.method,
        terms.class_names,
        of_classes(prediction),
        novelty,
        asked_for(shares),
        calibrated,
        new.ids,
        new.wrong,
    )


def asked_for(prior: Known | list[float] | None) -> Asked:
    """Whose prior over labels this is."""
    return "variant" if prior is None else prior if isinstance(prior, str) else "given"


def _labelled(source: Path, settings: RecordsSettings, terms: Terms, seen: View) -> Records:
    """Records to calibrate with, as models see them."""
    coded = None if terms.coding is None else CodedTables.of_site(settings, terms.coding)
    columns = () if coded or settings.source == "npz" else _features(settings)
    x, y = read_labelled(source, terms.class_names, settings.target, columns, terms.input_shape, settings.layout, coded)
    return records_of(channels_last(torch.from_numpy(seen(x))), torch.from_numpy(y))


def _chosen(state: Path, run: str | None) -> str:
    runs = runs_in(state)
    if not runs:
        raise UserError(f"--state {state}: this site has not taken part in any run yet")
    if run is None and len(runs) > 1:
        raise UserError(f"--state {state} holds several runs: choose one with --run ({', '.join(runs)})")
    if run is not None and run not in runs:
        raise UserError(f"--run {run}: there is no such run in {state} (there are {', '.join(runs)})")
    return run or runs[0]


def _inputs(source: Path, settings: RecordsSettings, terms: Terms) -> NewRecords:
    """New records as loaded, before they are scaled."""
    origin = f"--input {source}"
    if terms.coding is not None and source.suffix in TABLES:
        return CodedTables.of_site(settings, terms.coding).file(source, origin)
    columns = [] if settings.source == "npz" or source.suffix == ".npz" else _features(settings)
    x = read_inputs(source, columns, origin, settings.layout)
    check_shape(origin, x, terms)
    if len(x) == 0:
        raise UserError(f"{origin} has no records")
    check_finite(origin, x)
    return NewRecords(x)


def _features(settings: RecordsSettings) -> list[str]:
    """The columns of the site's own table, by which others are read."""
    own = Table.read(settings.path, origin_of(settings), settings.delimiter, settings.encoding)
    return feature_columns(settings, own)
