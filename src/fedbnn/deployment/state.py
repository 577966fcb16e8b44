"""What a site keeps of its runs, in its own state folder; nothing of it ever leaves but stored replies.

Models and scores tell of records: folders that are made here, and all files, are for nobody but their owner to read.

STATE/site.json             where the site's site.toml is
STATE/ledgers/              what was ever released from its records
STATE/runs/KEY/             one run
    terms.json, client.json what it runs under, and with which model it began
    checkpoint/             after each of the last turns: the client's state, what it was asked and what it replied
    received/               the newest message that came to be scored with: what the server would send next
    metrics.jsonl           scores and diagnostics, for the site's own eyes
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.base.checkpoints import KEPT, MANIFEST, Checkpoints
from fedbnn.base.errors import UserError
from fedbnn.base.files import locked, make_folder, read_json, telling, write_atomically, write_json
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.federation.message import BadMessage, Message
from fedbnn.federation.parties import Client
from fedbnn.models.architectures import ModelSettings
from fedbnn.runs.folder import differences

OWNERS_FOLDER, OWNERS_FILE = 0o700, 0o600
REPLY, MESSAGE, TURN = "reply.safetensors", "message.safetensors", "turn.json"


def request_digest(round_number: int, message: Message) -> str:
    """Of what a client's turn depends on, but its own state: equal for the same question."""
    return hashlib.sha256(b"%d|" % round_number + message.to_bytes()).hexdigest()


@dataclass(frozen=True)
class Turn:
    """The newest turn on disk, whole: the state after it, what was asked, and what was replied."""

    folder: Path
    round_number: int
    exchange: int  # of the round, which may have several
    seconds: float
    request: str
    info: Mapping[str, float]
    problems: tuple[str, ...]

    @property
    def identity(self) -> bytes:
        """Equal for the same turn with the same outcome."""
        return (self.folder / MANIFEST).read_bytes()

    @property
    def reply(self) -> Message:
        return _read(self.folder / REPLY)

    @property
    def message(self) -> Message:
        """What it was asked with."""
        return _read(self.folder / MESSAGE)


class SiteState:
    """One run at one site. `one_turn`: a turn before the newest is never gone back to, and nothing of it is kept."""

    def __init__(self, folder: Path, key: str, *, one_turn: bool = False) -> None:
        self.path = folder / "runs" / key
        again = f"delete {self.path} to begin this run anew at this site (ledgers stay)"
        self._turns = Checkpoints(self.path / "checkpoint", again, kept=1 if one_turn else KEPT)
        self._received = Checkpoints(self.path / "received", again)

    def begin(self, terms: Terms, client: Client) -> None:
        """Make the folder, or find it made for the same client with the same model."""
        for folder in (self._turns.folder, self._received.folder):
            make_folder(folder, OWNERS_FOLDER)
        if not (self.path / "client.json").exists():
            with telling(self.path):
                write_atomically(self.path / "terms.json", terms.to_json(), OWNERS_FILE)
                write_json(self.path / "client.json", described(client), OWNERS_FILE)
        self.check_client(client)

    def check_client(self, client: Client) -> None:
        """Refuse to go on with another model than the one that the saved states are of."""
        before, now = read_json(self.path / "client.json"), json.loads(json.dumps(described(client)))
        if before != now:
            raise UserError(
                f"{self.path} was begun by another client ({differences(before, now)}): change site.toml back"
            )

    def locked(self) -> AbstractContextManager[None]:
        """No other process works on this run of the site meanwhile."""
        return locked(self.path)

    def terms(self, allowed: Collection[str] = ()) -> Terms:
        return read_terms(self.path / "terms.json", allowed)

    def turn(self) -> Turn | None:
        """The newest turn that passes its checksums, or None before the first one."""
        saved = self._turns.latest()
        if saved is None:
            return None
        turn = read_json(saved.folder / TURN)
        if not (isinstance(turn, dict) and isinstance(turn.get("request"), str) and isinstance(turn.get("info"), dict)):
            raise UserError(f"{saved.folder / TURN} is not a turn: it needs 'request' (a text) and 'info' (numbers)")
        return Turn(
            saved.folder, saved.round_number, saved.part, saved.seconds, turn["request"], turn["info"], saved.problems
        )

    def save_turn(
        self,
        round_number: int,
        message: Message,
        reply: Message,
        info: Mapping[str, float],
        seconds: float,
        save_state: Callable[[Path], None],
        exchange: int = 0,
    ) -> None:
        """State and reply appear together and are on disk when this returns."""

        def write(folder: Path) -> None:
            save_state(folder)
            _write(folder / REPLY, reply)
            _write(folder / MESSAGE, message)
            write_json(folder / TURN, {"request": request_digest(round_number, message), "info": dict(info)})

        with telling(self.path):
            self._turns.save(round_number, float(seconds), write, exchange)
            _close(self._turns.folder)

    def received(self) -> tuple[int, Message] | None:
        """The newest message that came to be scored with, and the round it came after."""
        saved = self._received.latest()
        return None if saved is None else (saved.round_number, _read(saved.folder / MESSAGE))

    def keep_received(self, round_number: int, message: Message) -> None:
        with telling(self.path):
            self._received.save(round_number, 0.0, lambda folder: _write(folder / MESSAGE, message))
            _close(self._received.folder)

    def record(self, round_number: int, kind: str, facts: Mapping[str, Any]) -> None:
        """A line for the site's own eyes; what was written of the same round and kind before is replaced."""
        file = self.path / "metrics.jsonl"
        with telling(file):
            lines = file.read_bytes().splitlines() if file.exists() else []
            kept = [line for line in lines if not _is_of(line, round_number, kind)]
            kept.append(json.dumps({"round": round_number, "kind": kind, **facts}).encode())
            write_atomically(file, b"".join(line + b"\n" for line in kept), OWNERS_FILE)


def _is_of(line: bytes, round_number: int, kind: str) -> bool:
    """Whether a line of metrics is of this round and kind; one that is damaged is of none, and stays."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and (found.get("round"), found.get("kind")) == (round_number, kind)


def described(client: Client) -> dict[str, Any]:
    return {"index": client.index, "name": client.name, "model": model_facts(client.model)}


def model_facts(model: ModelSettings) -> dict[str, Any]:
    """What others may know of a model: enough to build it, nothing of its weights."""
    return {"name": model.name, "options": model.options, **model.unusual}


def remember_site(state: Path, site_file: Path) -> None:
    """So that `fedbnn predict` finds the site's file from its state folder."""
    make_folder(state, OWNERS_FOLDER)
    with telling(state):
        write_json(state / "site.json", {"site": str(site_file.expanduser().resolve())}, OWNERS_FILE)


def remembered_site(state: Path) -> Path:
    if not (state / "site.json").exists():
        raise UserError(f"--state {state}: no site has worked there yet (there is no site.json)")
    known = read_json(state / "site.json")
    if not (isinstance(known, dict) and isinstance(known.get("site"), str)):
        raise UserError(f"{state / 'site.json'}: it must be an object with 'site', the path of the site's site.toml")
    return Path(known["site"])


def runs_in(state: Path) -> list[str]:
    """Keys of the runs that a site has begun."""
    return sorted(file.parent.name for file in (state / "runs").glob("*/client.json"))


def _read(file: Path) -> Message:
    try:
        return Message.from_bytes(file.read_bytes())
    except (OSError, BadMessage) as error:
        raise UserError(
            f"{file} cannot be read ({error}): delete {file.parent}, and what was kept before it is used"
        ) from None


def _write(file: Path, message: Message) -> None:
    file.write_bytes(message.to_bytes())


def _close(folder: Path) -> None:
    """Checkpoints are written by several hands: what they left is made their owner's here."""
    for file in folder.glob("*/*"):
        file.chmod(OWNERS_FILE)
