"""What is written down of a run, whoever drives its rounds: metrics, checkpoints, notes, and the result at the end."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data import FederatedData
from fedbnn.federation.engines import Site
from fedbnn.federation.evaluation import Scored
from fedbnn.federation.faults import SILENT
from fedbnn.federation.loop import Round
from fedbnn.runs.config import Config, EngineKind
from fedbnn.runs.folder import NOTES, RunFolder
from fedbnn.runs.observer import Observer
from fedbnn.runs.results import assemble, curve, metric_lines, without_end


class Journal:
    """The run folder's pen.

    Attributes:
        final: the scores after the last round, once they are there.
        round_number: the last round that is finished; -1 before any.
        stopped: why an observer wants no further round; empty to go on.

    """

    def __init__(
        self, config: Config, data: FederatedData, sites: Sequence[Site], folder: RunFolder, observer: Observer
    ) -> None:
        self.config = config
        self.data = data
        self.sites = sites
        self.folder = folder
        self.observer = observer
        self.final: Mapping[int, Mapping[str, Scored]] = {}
        self.round_number = -1
        self.stopped = ""
        self._seconds = 0.0

    def resume(self, title: str, engine: EngineKind, load: Callable[[Path, int], None]) -> None:
        """Begin, or go on: `load` gets the folder of the last good checkpoint and its round, if there is one."""
        if checkpoint := self.folder.latest_checkpoint():
            # On Flower, clients keep their states themselves: the checkpoint has the server's only.
            begun: EngineKind = "local" if any(checkpoint.folder.glob("client-*")) else "flower-sim"
            if begun != engine:
                raise UserError(
                    f"{self.folder.path} was begun with engine.kind = '{begun}': go on with that, or choose another "
                    "--out"
                )
            self.round_number = checkpoint.round_number
            for problem in checkpoint.problems:
                self.note(f"{problem}; going on from round {self.round_number} instead")
            load(checkpoint.folder, self.round_number)
            self._seconds = checkpoint.seconds
        self.folder.forget_after(self.round_number, self._as_planned)
        self.observer.run_started(title, self.config, len(self.sites), self.round_number)
        if self.round_number >= 0:
            self.observer.earlier(curve(self.folder.metrics()))
            self.stopped = self.observer.stop()

    def _as_planned(self, line: dict[str, Any]) -> dict[str, Any]:
        """A line as it would be had all these rounds been planned: what only a last round has, no other one has."""
        if line["round"] >= self.config.rounds:
            return line
        return without_end(line, scored=self.is_scored(line["round"]))

    def is_scored(self, number: int) -> bool:
        """Whether clients are scored after this round."""
        return number % self.config.evaluation.every == 0 or number == self.config.rounds

    def keep(self, record: Round, save: Callable[[Path], None], every: int | None = None) -> None:
        """Write down a round that is finished; `save` puts the states after it into a folder.

        That is done every so many rounds, as the configuration says unless it is given.
        """
        self.round_number = record.number
        self._seconds += record.seconds
        self.folder.append(metric_lines(record, [site.client.name for site in self.sites]))
        last = record.number == self.config.rounds
        if last:
            self.final = record.scores
        saved = record.number % (every or self.config.checkpoint_every) == 0 or last
        if saved:
            self.folder.save_checkpoint(record.number, self._seconds, save)
        if record.fell_short:
            times = "once" if record.fell_short == 1 else f"{record.fell_short} times"
            self.note(f"round {record.number} was held again {times}: fewer good replies came than it needs")
        if silent := [client for client, turn in record.turns.items() if turn.rejected == SILENT]:
            names = listing(self.sites[client].client.name for client in silent)
            self.note(f"round {record.number} went on without {names}: no reply came in time")
        for client, turn in record.turns.items():
            if turn.rejected and client not in silent:
                self.note(f"round {record.number}: the reply of client {client} was not let in: {turn.rejected}")
        for client in record.set_aside:
            name = self.sites[client].client.name
            self.note(
                f"round {record.number}: client {client} ('{name}') is set aside for the rest of the run: "
                f"{self.config.patience} replies in a row were not let in"
            )
        self.observer.round_done(record)
        self.stopped = self.observer.stop()
        if self.stopped and not saved:
            self.folder.save_checkpoint(record.number, self._seconds, save)

    def note(self, text: str) -> None:
        """Tell the user, and whoever reads the folder."""
        self.folder.append([{"round": self.round_number, "note": text}], NOTES)
        self.observer.note(text)

    def keep_part(self, round_number: int, save: Callable[[Path], None]) -> None:
        """Keep the states after a part of the round that follows this one."""
        self.folder.save_part(round_number, self._seconds, save)

    def conclude(self) -> dict[str, Any]:
        """The result, written last."""
        result = assemble(self.config, self.data, self.sites, self.folder.metrics(), self.final, self._seconds)
        if self.stopped and self.round_number < self.config.rounds:
            result |= {"rounds": self.round_number, "stopped": self.stopped}
            self.observer.note(f"stopped after round {self.round_number} of {self.config.rounds}: {self.stopped}")
        self.folder.conclude(result)
        self.observer.run_finished(result)
        return result
