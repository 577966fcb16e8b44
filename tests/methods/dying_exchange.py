"""A client that is killed in the middle of `client_update`; `test_private_exchange` runs this file as a program.

    dying_exchange.py FOLDER MOMENTS     ->  FOLDER/<number>/ledgers, FOLDER/<number>/notes, and a JSON list on stdout

First a turn that nobody disturbs, to count its steps: the moments before, in the middle of and after a call of os that
changes or secures a file, and around the drawing of noise. Then MOMENTS turns, each with ledgers of its own and killed
(SIGKILL) at another one of these steps, spread evenly. Each client is started again until it has finished its turn.
"""

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FedMD
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings, release_gate
from tests.federation_sample import small_sites
from tests.privacy.dying_client import Machine

PRIVACY = PrivacySettings("dp_teacher", dimensions=12, releases=2)
NEVER = -1


def a_client(ledgers: Path) -> Client:
    [site] = small_sites(1, models=("mlp",), privacy=PRIVACY, ledgers=ledgers)
    return replace(site.client, training=TrainingSettings(local_epochs=1, warmup_epochs=1, batch_size=12))


def sent_by(client: Client) -> Message:
    method = FedMD()
    return method.client_update(method.client_init(client), client, Message(), 0, Stream((0, "test"))).message


def turn(client: Client, folder: Path, last: int) -> None:
    machine, with_noise = Machine(last, power=False), release_gate.with_noise

    def note(*words: str) -> None:
        with (folder / "notes").open("a") as file:  # not a call of os: no step
            print(*words, file=file)

    def noted(total, sd, noise):
        note("drawing")
        machine.step()
        drawn = with_noise(total, sd, noise)
        machine.step()
        return drawn

    release_gate.with_noise = noted
    note("sent", sent_by(client).to_bytes().hex())
    machine.step()
    note("steps", str(machine.steps))


def run(client: Client, folder: Path, last: int) -> str:
    """In a process of its own; killed, finished, or what the ledger said."""
    process = os.fork()
    if process == 0:
        try:
            turn(replace(client, ledgers=folder / "ledgers"), folder, last)
        except UserError as error:
            (folder / "refused").write_text(str(error))
            os._exit(2)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    return "killed" if os.WIFSIGNALED(status) else {0: "finished", 2: "refused"}[os.WEXITSTATUS(status)]


def on_disk(folder: Path) -> dict[str, object]:
    """What a death left behind: whole lines that charge, whether the last line is torn, and the stored releases."""
    lines = [line for file in folder.glob("ledgers/*/ledger.jsonl") for line in file.read_bytes().splitlines(True)]
    stored = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("ledgers/*/releases/*.bin")
    }
    notes = (folder / "notes").read_text().split("\n") if (folder / "notes").exists() else []
    return {
        "charges": sum(line.endswith(b"\n") and b'"kind": "charge"' in line for line in lines),
        "torn": bool(lines) and not lines[-1].endswith(b"\n"),
        "stored": stored,
        "drawings": notes.count("drawing"),
    }


def repair(folder: Path) -> None:
    """What the ledger asks for: remove the torn line, and nothing else."""
    [file] = folder.glob("ledgers/*/ledger.jsonl")
    file.write_bytes(b"".join(line for line in file.read_bytes().splitlines(True) if line.endswith(b"\n")))


def main(root: Path, moments: int) -> None:
    client = a_client(root / "rehearsal")
    sent_by(client)  # what is made at the first time only is then there for all processes
    (root / "whole").mkdir(parents=True)
    assert run(client, root / "whole", NEVER) == "finished"
    steps = int((root / "whole" / "notes").read_text().split()[-1])
    deaths = []
    for number in range(moments):
        folder = root / str(number)
        folder.mkdir()
        outcomes = [run(client, folder, number * steps // moments)]
        left = on_disk(folder)
        outcomes.append(run(client, folder, NEVER))
        if outcomes[-1] == "refused":
            repair(folder)
            outcomes.append(run(client, folder, NEVER))
        deaths.append({"step": number * steps // moments, "outcomes": outcomes, **left})
    print(json.dumps({"steps": steps, "deaths": deaths}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
