"""Kills the parts of a deployment at random moments, and looks whether anything is lost. Part of `make soak`

    python tests/soak/kill_flower.py [--minutes 10] [--seed 0] [--folder FOLDER]

A federation of three sites in real processes on 127.0.0.1 does its rounds, one run after the other. In each run one
kind of process dies (SIGKILL) at one or two random moments, and comes back as its host would bring it back:

node     a site's SuperNode with all that it started; it is started again
link     the SuperLink with the run's server; it is started again, and the run submitted again
server   the process of the run's server alone; the run is submitted again

Every round needs all three sites, so nothing but time may tell the runs apart. Afterwards the run is completed, every
round stands in the server's metrics, every site has taken its last turn, and the server's last state has the bits of a
run that nobody disturbed. Every other run is under `dp_teacher`, whose noise is never the same: there each site's
ledger has one charge instead. The first difference ends the script with code 1, and the folder stays to be looked at.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedbnn.deployment.node import Node
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.deployment.trial.loopback import LoopbackFailure, Submission
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.ledger import Ledger
from tests.deployment.deployment_sample import small_config
from tests.deployment.faulty_loopback import FaultyLoopback
from tests.soak.killing import killing

ROUNDS = 3
EARLY = 0.5  # of the time that the first run took, in which processes are killed: what is loaded once is quicker later
LONG = 600.0  # seconds; the link takes a minute to notice that a node or a run is dead
MOST_SUBMISSIONS = 6  # of one run, so that it ends at all


class Deployment:
    """The federation, its processes, and what is expected of each run."""

    def __init__(self, folder: Path, loopback: FaultyLoopback) -> None:
        self.folder = folder
        self.loopback = loopback
        self.genuine = read_terms(folder / "server" / "terms.json")

    def agree(self, run: str, private: bool) -> Terms:
        """Terms of a new run for all parties."""
        privacy = PrivacySettings(mechanism="dp_teacher") if private else PrivacySettings()
        terms = replace(self.genuine, run=run, rounds=ROUNDS, privacy=privacy)
        sites = list((self.folder / "sites").iterdir())
        for party in (self.folder / "server", *sites):
            (party / "terms.json").write_text(terms.to_json(), encoding="utf-8")
        for site in sites:  # as if of other records: one run spends all that these may
            shutil.rmtree(_ledgers(site), ignore_errors=True)
        return terms

    def state(self, terms: Terms) -> bytes:
        """The server's last state."""
        place = self.folder / "server" / "runs" / terms.key / "checkpoint" / f"round-{ROUNDS:05d}"
        return (place / "server.safetensors").read_bytes()

    def lost(self, terms: Terms, private: bool, straight: bytes | None) -> str:
        """What a finished run lacks; empty: nothing."""
        place = self.folder / "server" / "runs" / terms.key
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text("utf-8").splitlines()]
        numbers = [line["round"] for line in lines if "round" in line]
        if sorted(set(numbers)) != list(range(ROUNDS + 1)):
            return f"rounds in metrics.jsonl: {numbers}"
        for name in terms.sites:
            site = self.folder / "sites" / name
            turn = Node.from_file(site / "site.toml").state.turn()
            if turn is None or turn.round_number != ROUNDS or turn.problems:
                return f"{name}: its last turn is {turn}"
            if private:
                spent = [one for ledger in ledgers_in(_ledgers(site)) for one in Ledger.read(ledger).charges]
                if len(spent) != 1:
                    return f"{name}: {len(spent)} charges"
        if straight is not None and self.state(terms) != straight:
            return "the server's last state has other bits"
        return ""


def _ledgers(site: Path) -> Path:
    return site / "state" / "ledgers"


def wait(submission: Submission, seconds: float) -> bool:
    """Whether the run's submission ends within so many seconds."""
    end = time.monotonic() + seconds
    while submission.alive and time.monotonic() < end:
        time.sleep(0.05)
    return not submission.alive


def kill_node(deployment: Deployment, submission: Submission, chance: random.Random) -> Submission:
    name = chance.choice(deployment.loopback.nodes)
    deployment.loopback.kill_node(name)
    deployment.loopback.start_node(name)
    return submission


def kill_link(deployment: Deployment, submission: Submission, chance: random.Random) -> Submission:
    deployment.loopback.kill_link()
    deployment.loopback.start_link()
    return deployment.loopback.submit()


def kill_server(deployment: Deployment, submission: Submission, chance: random.Random) -> Submission | None:
    while not deployment.loopback.kill_server():  # it takes a while until the link has started one
        if not submission.alive:
            return None
        time.sleep(0.05)
    return deployment.loopback.submit()


Kill = Callable[[Deployment, Submission, random.Random], Submission | None]
KINDS: dict[str, Kill] = {
    "node": kill_node,
    "link": kill_link,
    "server": kill_server,
}


def disturbed(deployment: Deployment, kind: str, usual: float, chance: random.Random) -> int:
    """A run that is brought to its end although parts of it die; how many times one did."""
    submission, kills = deployment.loopback.submit(), 0
    for _ in range(chance.randint(1, 2)):
        if wait(submission, chance.uniform(0, usual)):
            break
        if after := KINDS[kind](deployment, submission, chance):
            submission, kills = after, kills + 1
    for _ in range(MOST_SUBMISSIONS):
        if not wait(submission, LONG):
            raise LoopbackFailure(f"the run is not over after {LONG:.0f} s: {submission.output()[-2000:]}")
        if submission.status() == "finished:completed":
            return kills
        submission = deployment.loopback.submit()  # as its owner would
    raise LoopbackFailure(f"the run does not come to an end: {submission.output()[-2000:]}")


def soak(folder: Path, minutes: float, seed: int) -> str:
    """Runs for so many minutes, one of each kind at least; what was lost, empty if nothing was."""
    chance, place = random.Random(seed), folder / "federation"
    config = small_config("fedbnn", 'models=[{name="mlp"}, {name="cnn2"}]', "evaluation.every=100")
    write_federation(place, config, "straight")
    (place / "server" / "server.toml").write_text("round_timeout = 90.0\nquorum = 3\n", encoding="utf-8")
    names = read_terms(place / "server" / "terms.json").sites
    with FaultyLoopback(place, names, {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}) as loopback:
        loopback.start_link()
        loopback.start_nodes()
        deployment = Deployment(place, loopback)
        terms, begun = deployment.agree("straight", False), time.monotonic()
        disturbed_never = loopback.submit()
        if not wait(disturbed_never, LONG) or disturbed_never.status() != "finished:completed":
            return f"the undisturbed run: {disturbed_never.output()[-2000:]}"
        usual, straight = EARLY * (time.monotonic() - begun), deployment.state(terms)
        if found := deployment.lost(terms, False, None):
            return f"the undisturbed run: {found}"
        print(f"undisturbed: {usual / EARLY:.1f} s", flush=True)
        trial, killed, end = 0, 0, time.monotonic() + 60 * minutes
        while trial < len(KINDS) or time.monotonic() < end:
            kind, private = list(KINDS)[trial % len(KINDS)], bool(trial % 2)
            terms = deployment.agree(f"{kind}-{trial:04d}", private)
            try:
                kills = disturbed(deployment, kind, usual, chance)
                found = deployment.lost(terms, private, None if private else straight)
            except (LoopbackFailure, AssertionError) as error:
                found, kills = str(error), 0
            if found:
                return f"{terms.run}: {found} (logs: {loopback.logs})"
            what = "charged once" if private else "the same bits"
            print(f"{terms.run}: killed {kills} times, {what}", flush=True)
            trial, killed = trial + 1, killed + kills
    print(f"{trial} runs, {killed} processes killed: nothing lost, nothing charged twice")
    return ""


if __name__ == "__main__":
    sys.exit(killing(__doc__, soak))
