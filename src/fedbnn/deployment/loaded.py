"""A run folder as an object again: its settings, its scores, and its clients' models to predict with.

`fedbnn.load("runs/mine").predict("client-03", x, alpha=0.1)`. The data are dealt again from the run's configuration, as
`--resume` does, and must be the same; states come from the last good checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedbnn.base.checkpoints import Checkpoint
from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data import FederatedData
from fedbnn.deployment.estimated import SiteEstimate, check_wish, fitted
from fedbnn.deployment.labelled import labels_of, read_labelled
from fedbnn.deployment.new_records import TABLES, CodedTables, NewRecords, columns_of, ordered, read_inputs
from fedbnn.deployment.predict import SiteAnswer, SitePrediction, asked_for
from fedbnn.features.standard import standard_features
from fedbnn.federation.calibrated import NEEDED, Calibrated, Wish, seen_before
from fedbnn.federation.engines import Site
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.inputs import Inputs, scaled_inputs, seen_inputs
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Variant
from fedbnn.federation.server import Server
from fedbnn.methods.registry import find_method
from fedbnn.models.abstention import CONFIDENCE
from fedbnn.models.conformal import Score, Within
from fedbnn.models.label_prior import Known, Prior, checked, parsed
from fedbnn.models.regression import Answer, of_classes, of_numbers, records_of
from fedbnn.models.training import Records, channels_last
from fedbnn.runs.config import Config, as_of_today, parse_config
from fedbnn.runs.experiment import Prepared
from fedbnn.runs.folder import RunFolder, differences, read_json

BESIDE = ("foreign", "foreign_fingerprint")
"""Of partition.json, what has no part in predictions."""

Ask = Callable[[Tensor], Answer]


def load(folder: str | Path, *, own_code: bool = False) -> "LoadedRun":
    """The run in this folder. With `own_code`, methods, models and features that it names as 'package.module:name' are
    imported and run: only for a folder that you trust as you trust a program.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise UserError(f"{path} holds no run: there is no config.json in it")
    stored = read_json(path / "config.json")
    if not isinstance(stored, dict):
        raise UserError(f"{path / 'config.json'} must hold a JSON object")
    foreign = sorted(_named(stored))
    if foreign and not own_code:
        raise UserError(
            f"{path}: the run uses code of its own ({listing(foreign)}); if you trust it, fedbnn.load(..., "
            "own_code=True) or --own-code runs it"
        )
    if own_code:
        find_method(str(stored.get("method")))
    return LoadedRun(path, parse_config(as_of_today(stored)))


def _named(stored: dict[str, Any]) -> set[str]:
    """Everything in a stored configuration that could become running code, whatever the setting is called."""
    found: set[str] = set()
    left: list[Any] = [stored]  # a file may nest deeper than Python calls
    while left:
        match left.pop():
            case dict() as table:
                left += [value for key, value in table.items() if key not in ("path", "ledgers")]
            case list() as several:
                left += several
            case str() as text if ":" in text:
                found.add(text)
    return found


class LoadedRun:
    """A run that was written to a folder.

    Attributes:
        path: the folder.
        config: what was run.

    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self._hosts: dict[int, ClientHost] = {}

    @property
    def result(self) -> dict[str, Any]:
        """What result.json says; a UserError where the run is not finished."""
        if not RunFolder(self.path).finished:
            raise UserError(f"{self.path} holds no result.json: the run is not finished; go on with --resume")
        result = read_json(self.path / "result.json")
        if not isinstance(result, dict):
            raise UserError(f"{self.path / 'result.json'} must hold a JSON object")
        return result

    def scores(self) -> Any:
        """A row for each client, with its name, model, records and scores: a pandas table, or a list of dictionaries
        where pandas is not installed (`pip install 'fedbnn[pandas]'`).
        """
        columns = self.result.get("per_client")
        if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
            raise UserError(f"{self.path / 'result.json'}: per_client must be lists by name, one entry a client")
        if len({len(column) for column in columns.values()}) > 1:
            raise UserError(f"{self.path / 'result.json'}: the lists of per_client differ in length")
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        try:
            import pandas  # noqa: PLC0415 - an extra
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    @property
    def clients(self) -> tuple[str, ...]:
        """Their names, in order."""
        return self.data.client_names

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.data.dataset.class_names

    @property
    def data(self) -> FederatedData:
        """The records, dealt as they were."""
        return self._prepared.data

    @property
    def round_number(self) -> int:
        """The round after which the states were saved."""
        return self._checkpoint.round_number

    def index(self, client: int | str) -> int:
        """A client's number, by its name or its number."""
        if isinstance(client, str) and client in self.clients:
            return self.clients.index(client)
        if isinstance(client, str) or not 0 <= client < len(self.clients):
            near = did_you_mean(client, self.clients) if isinstance(client, str) else ""
            raise UserError(f"client {client!r}: there is no such client{near} (there are {listing(self.clients)})")
        return int(client)

    def site(self, client: int | str) -> Site:
        """A client's records, also those that are kept for calibration."""
        return self._prepared.sites[self.index(client)]

    def predict(
        self,
        client: int | str,
        x: Inputs,
        *,
        variant: Variant | None = None,
        prior: Prior | None = None,
        alpha: float | None = None,
        risk: float | None = None,
        score: Score = "aps",
        within: Within = "client",
        confidence: float = CONFIDENCE,
        calibration: tuple[Inputs, Inputs] | None = None,
    ) -> SiteAnswer:
        """What a client's model says of records x, whose values are as in the data set's files.

        Of a pandas table the columns are found by name where the data came from a table. `variant` and `prior` are
        as in `Federation.predict`. With `alpha`, every record gets a set of classes that misses the true one at most
        that often; with `risk`, the model abstains so that its answers are wrong at most that often, both as
        `fedbnn.federation.calibrated` has it. They rest on the records that `data.calibration` kept from training, or
        on `calibration`: inputs and labels (names or numbers of classes).

        In regression what comes back is a `SiteEstimate`; with `alpha`, every record gets an interval that misses the
        true number at most that often.
        """
        wish = Wish(alpha, risk, score, within, confidence)
        at = self.index(client)
        if self.config.data.regression:
            check_wish(wish, prior)
            return self._estimate(at, self._read(x), variant, alpha, calibration)
        shares = None if prior is None else checked(prior, len(self.class_names))
        wish.check_prior(shares)
        new = self._read(x)
        inputs = seen_inputs(new.x, self._prepared.sites[at], raw=True)
        ask = self._asking(at, variant, shares)
        calibrated = Calibrated()
        if wish.wanted:
            records, equal = self._calibration(at, calibration)
            calibrated = Calibrated.fit(wish, of_classes(ask(records.x)), records.y, equal)
        return SitePrediction(
            self.clients[at],
            self.path.name,
            self.config.method_name,
            self.class_names,
            of_classes(ask(inputs)),
            self._novelty(at, new.x),
            asked_for(shares),
            calibrated,
            new.ids,
            new.wrong,
        )

    def _estimate(
        self,
        at: int,
        new: NewRecords,
        variant: Variant | None,
        alpha: float | None,
        calibration: tuple[Inputs, Inputs] | None,
    ) -> SiteEstimate:
        """What a client's model says in regression."""
        ask = self._asking(at, variant, None)
        said = of_numbers(ask(seen_inputs(new.x, self._prepared.sites[at], raw=True)))
        rule, equal = None, 0
        if alpha is not None:
            records, equal = self._calibration(at, calibration)
            rule = fitted(of_numbers(ask(records.x)), records, alpha)
        return SiteEstimate(
            self.clients[at],
            self.path.name,
            self.config.method_name,
            self.config.data.target,
            said,
            self._novelty(at, new.x),
            rule,
            equal,
            new.ids,
            new.wrong,
        )

    def predict_file(
        self,
        client: int | str,
        source: Path,
        *,
        variant: str | None = None,
        prior: str | None = None,
        wish: Wish | None = None,
        calibration: Path | None = None,
    ) -> SiteAnswer:
        """The same for the records of an .npz or .csv file, and a file of labelled ones to calibrate with."""
        wish = wish or Wish()
        if self.config.data.regression:
            check_wish(wish, prior)
        shares: Known | list[float] | None = None if prior is None else parsed(prior, self.class_names)
        target, shape = self.config.data.target, self.data.dataset.input_shape
        known = None
        if calibration is not None:
            layout = self.config.data.layout
            known = read_labelled(calibration, self.class_names, target, self._columns, shape, layout, self._coded)
        return self.predict(
            self.index(client),
            self._read_file(source),
            variant=cast(Variant | None, variant),  # the host names those that there are
            prior=shares,
            alpha=wish.alpha,
            risk=wish.risk,
            score=wish.score,
            within=wish.within,
            confidence=wish.confidence,
            calibration=known,
        )

    @cached_property
    def _prepared(self) -> Prepared:
        # Foreign inputs were for scores alone.
        config = replace(self.config, evaluation=replace(self.config.evaluation, foreign=""))
        prepared = Prepared.of(config, [config.method])
        stored = read_json(self.path / "partition.json")
        told = stored.items() if isinstance(stored, dict) else ()
        before = {name: value for name, value in told if name not in BESIDE}
        if before != prepared.manifest:
            raise UserError(
                f"{self.path}: the data are not those of the run ({differences(before, prepared.manifest)}); bring "
                "them back to where they were"
            )
        return prepared

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        checkpoint = RunFolder(self.path).latest_checkpoint()
        if checkpoint is None:
            raise UserError(f"{self.path} holds no checkpoint: nothing has been learned yet")
        if not any(checkpoint.folder.glob("client-*")):
            raise UserError(
                f"{self.path} was run with engine.kind = 'flower-sim', whose clients keep their models themselves: run "
                "it with engine.kind = 'local'"
            )
        return checkpoint

    @cached_property
    def _server(self) -> Server:
        roster = roster_of(self._prepared.sites)
        server = Server(self.config.chosen(), roster, seed=self.config.seed, participation=self.config.participation)
        server.load(self._checkpoint.folder, self.round_number)
        return server

    @cached_property
    def _columns(self) -> list[str]:
        return [] if self._coded else columns_of(self.config.data)

    @cached_property
    def _coded(self) -> CodedTables | None:
        coding = self.data.coding
        return None if coding is None else CodedTables.of_run(self.config.data, coding)

    def _read(self, x: Inputs | NewRecords) -> NewRecords:
        """Records in memory, or of a file that was read."""
        if isinstance(x, NewRecords):
            return x
        if self._coded and hasattr(x, "columns"):
            return self._coded.frame(x, "x")
        return NewRecords(ordered(x, self._columns))

    def _read_file(self, source: Path) -> NewRecords:
        origin = f"--input {source}"
        if self._coded and source.suffix in TABLES:
            return self._coded.file(source, origin)
        return NewRecords(read_inputs(source, self._columns, origin, self.config.data.layout))

    def host(self, client: int | str) -> ClientHost:
        """The client's half, in the state that was saved."""
        at = self.index(client)
        if at not in self._hosts:
            host = ClientHost(self.config.chosen(), {at: self._prepared.sites[at]}, self.config.seed)
            host.load(self._checkpoint.folder)
            self._hosts[at] = host
        return self._hosts[at]

    def message(self, client: int | str) -> Message:
        """What the server would send this client next."""
        return self._server.method.broadcast(self._server.state, self.index(client))

    def _asking(self, at: int, variant: str | None, shares: Known | list[float] | None) -> Ask:
        host, message = self.host(at), self.message(at)
        return lambda x: host.predict(at, x, self.round_number, message, variant, shares)

    def _calibration(self, at: int, given: tuple[Inputs, Inputs] | None) -> tuple[Records, int]:
        """The records to calibrate with, and how many of them equal training records."""
        site = self._prepared.sites[at]
        if given is None:
            if site.calibration is None:
                raise UserError(NEEDED)
            return site.calibration, 0
        x = seen_inputs(self._read(given[0]).x, site, raw=True)
        y = torch.from_numpy(labels_of(given[1], self.class_names, "calibration"))
        if len(x) != len(y):
            raise UserError(f"calibration: {len(x)} records, but {len(y)} labels")
        as_trained = records_of(x, y, self.data.dataset.scale)
        equal = seen_before("calibration", [one.client for one in self._prepared.sites], as_trained)
        return records_of(x, y), equal

    def _novelty(self, at: int, x: Inputs) -> Tensor:
        """How far each record is from the alignment set, by its values, whatever models see; nan where none is."""
        site = self._prepared.sites[at]
        assert site.view is not None
        plain = replace(site.view, features=None)
        if self.data.alignment_points == 0:
            return torch.full((len(x),), torch.nan)
        alignment = channels_last(torch.from_numpy(plain(self.data.loaded_alignment)))
        mirrored = "flip" in self.config.training.augment
        features = standard_features(alignment, self.config.privacy.features, mirrored)
        return features.novelty(features(scaled_inputs(x, plain))).float()
