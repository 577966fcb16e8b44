"""Checkpoints of a federation that is used piece by piece; `fedbnn.run` has its own in the run folder.

FOLDER/federation.json          what the states belong to: method, seed, clients
FOLDER/round-00007/             the states after that round, with checksums
"""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbnn.base.checkpoints import KEPT, Checkpoints
from fedbnn.base.errors import UserError
from fedbnn.base.files import locked, make_folder, read_json, write_json
from fedbnn.federation.callback import Callback
from fedbnn.federation.loop import Federation, Round
from fedbnn.runs.folder import differences


class Checkpointing(Callback):
    """Saves a federation's states every so many rounds, and has it go on from them.

        saved = fedbnn.Checkpointing(federation, "states", every=5)
        saved.resume()                                   # -1: there was nothing yet
        federation.run(rounds=50, callbacks=[saved])

    The last `kept` checkpoints stay.
    """

    def __init__(self, federation: Federation, folder: str | Path, every: int = 1, kept: int = KEPT) -> None:
        if not isinstance(federation, Federation):
            raise UserError(f"federation: a {type(federation).__name__!r} is no fedbnn.Federation")
        for name, value in (("every", every), ("kept", kept)):
            if type(value) is not int or value < 1:
                raise UserError(f"{name} = {value!r}: a whole number from 1 up")
        self.federation, self.folder, self.every = federation, Path(folder), every
        self._saved = Checkpoints(self.folder, f"delete {folder} to start again", kept)
        self._seconds = 0.0

    def resume(self) -> int:
        """Have the federation go on after the newest good checkpoint; its round, or -1 where nothing was saved yet."""
        self._belongs()
        if (found := self._saved.latest()) is None:
            return -1
        self.federation.load(found.folder, found.round_number)
        self._seconds = found.seconds
        return found.round_number

    def round_done(self, record: Round) -> None:
        self._seconds += record.seconds
        if record.number % self.every == 0:
            self._belongs()
            with locked(self.folder):
                self._saved.save(record.number, self._seconds, self.federation.save)

    def _belongs(self) -> None:
        """The folder is this federation's: a new one becomes so, another one's is refused."""
        path, now = self.folder / "federation.json", self._described()
        if path.exists():
            before = read_json(path)
            if before != now:
                raise UserError(f"{self.folder} has states of another federation ({differences(before, now)})")
        else:
            make_folder(self.folder)
            if any(self.folder.iterdir()):
                raise UserError(f"{self.folder} is not empty and holds no states: choose another folder")
            write_json(path, now)

    def _described(self) -> dict[str, Any]:
        method = self.federation.method
        clients = [site.client for site in self.federation.sites]
        return {
            "method": method.name,
            "settings": TypeAdapter(type(method)).dump_python(method, mode="json"),
            "seed": self.federation.seed,
            "participation": self.federation.participation,
            "clients": {one.name: {"model": one.model.name, "records": len(one.train)} for one in clients},
        }
