"""What leaks without privacy: who was among a client's records, guessed from what it sent (LiRA, `audit.membership`).

    python experiments/membership.py        makes results/membership.json and results/membership.md again

A client of the demonstration (digits, 5 classes, the package's defaults, network mlp) is trained on a random half of 80
candidate records, 16 of which bear a wrong label, again and again. It sends, at 40 alignment points and at 400:
    off             outputs of FedBNN as published after the warm-up, and after one exchange with nine other clients
    dp_teacher      the same with privacy: outputs of the small model, at epsilon 8, 3 and 1
    dp_moments      noisy sums over its records
    fedavg          FedAvg's weights, for comparison: the other thing that clients send
Everything is the method's own client half. The attacker knows the candidates, their labels, the alignment set and the
seed of training (as the server does), and not which candidates are in. Noise comes from the operating system, so
private rows differ a little each time. Personal training has no part in what dp_teacher and dp_moments send, so it is
left out there, and as the budget is spent with the first upload, later ones would add nothing.

Uploads are kept in --work and used again; give another folder after a change of what is sent.
"""

import argparse
import io
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbnn import Client, Message, PrivacySettings, federate, load_config, load_dataset, make_sites
from fedbnn.audit.membership import RATES, Coins, attack, auc_bound, leak, tpr_bound
from fedbnn.audit.membership_views import Views, views_of_exchange, views_of_weights
from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically, write_json
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.loop import roster_of
from fedbnn.federation.parties import Roster
from fedbnn.models.training import Records
from fedbnn.privacy import gaussian_mu

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
POINTS = (40, 400)
EPSILONS = (8.0, 3.0, 1.0)
CLIENTS, PER_CLASS = 10, 16
MISLABELLED = 0.2  # of the candidates
CHUNK = 32  # runs that are saved together


@dataclass(frozen=True)
class Setting:
    """What is sent, at how many alignment points."""

    sent: str
    points: int
    epsilon: float | None = None

    @property
    def name(self) -> str:
        return f"{self.sent}-{self.points}" + (f"-{self.epsilon:g}" if self.epsilon else "")

    @property
    def privacy(self) -> PrivacySettings:
        return PrivacySettings(mechanism=self.sent, epsilon=self.epsilon) if self.epsilon else PrivacySettings()

    @property
    def uploads(self) -> tuple[str, ...]:
        return ("first", "second") if self.sent == "off" else ("first",)


SETTINGS = (
    *(Setting("off", points) for points in POINTS),
    *(Setting(sent, m, epsilon) for sent in ("dp_teacher", "dp_moments") for epsilon in EPSILONS for m in POINTS),
    Setting("fedavg", POINTS[-1]),
)


class World:
    """A client with its candidates, and the rest of its federation."""

    def __init__(self, setting: Setting, seed: int, source: str) -> None:
        changes = [
            f"data.source={source}",
            f"data.alignment={setting.points}",
            f"partition.clients={CLIENTS}",
            f"partition.records_per_class={PER_CLASS}",
            f"method={'fedavg' if setting.sent == 'fedavg' else 'fedbnn_paper'}",
            *(['models=[{name="mlp"}]'] if setting.sent == "fedavg" else []),
        ]
        config = load_config(None, changes)
        data = federate(load_dataset(config.data), config.data, config.partition, seed)
        training = replace(config.training, warmup_epochs=0) if setting.epsilon else config.training
        sites = make_sites(data, config.models, training, rounds=config.rounds, seed=seed, privacy=setting.privacy)
        self.setting, self.seed = setting, seed
        self.method, self.clients = config.chosen(), [site.client for site in sites]
        self.roster: Roster = roster_of(sites)
        self.client: Client = self.clients[0]
        self.wrong, self.candidates = self._candidates(self.client.train)
        # The same others in every run; only what they send to the consensus matters.
        self.others = (
            {c.index: self._turn(c, None, Message(), 0).message for c in self.clients[1:]} if self._twice else {}
        )

    @property
    def _twice(self) -> bool:
        return len(self.setting.uploads) > 1

    def _candidates(self, records: Records) -> tuple[Coins, Records]:
        """Which of them are mislabelled, and all of them: a wrong label is another of the client's classes."""
        rng, y = Stream((self.seed, "mislabelled")).numpy(), records.y.numpy().copy()
        wrong = np.zeros(len(y), dtype=bool)
        wrong[rng.permutation(len(y))[: round(MISLABELLED * len(y))]] = True
        classes = np.unique(y)
        for record in np.flatnonzero(wrong):
            y[record] = rng.choice(classes[classes != y[record]])
        return wrong, Records(records.x, torch.from_numpy(y))

    def coins(self, run: int) -> Coins:
        return Stream((self.seed, "coins", run)).numpy().random(len(self.candidates)) < 0.5

    def _turn(self, client: Client, state: Any, message: Message, number: int) -> Any:
        """As a run of this seed does it: the server knows the seed."""
        state = self.method.client_init(client) if state is None else state
        rng = Stream((self.seed, "update", number, client.index))
        with repeatable(rng):
            return self.method.client_update(state, client, message, number, rng)

    def uploads(self, run: int) -> list[NDArray[Any]]:
        """What the client sends in this run, turn by turn."""
        method, chosen = self.method, torch.from_numpy(np.flatnonzero(self.coins(run)))
        with tempfile.TemporaryDirectory(prefix="fedbnn-membership-") as ledgers:
            client = replace(self.client, train=self.candidates.take(chosen), ledgers=Path(ledgers), identity=None)
            server = method.server_init(self.roster)
            update = self._turn(client, None, method.broadcast(server, 0), 0)
            sent = [_array(update.message)]
            if self._twice:
                replies = {0: update.message, **self.others}
                server = method.server_update(server, replies, self.roster, Stream((self.seed, "server", 0)))
                sent.append(_array(self._turn(client, update.state, method.broadcast(server, 0), 1).message))
        return sent

    def views(self, sent: NDArray[Any], coins: Coins) -> dict[str, Views]:
        """What attackers look at in uploads, by what they know of the client's other records; one who knows them all is
        of interest where something is guaranteed against him.
        """
        if self.setting.sent == "fedavg":
            return {"shadows": views_of_weights(sent, self.client, self.candidates)}
        given = (sent, self.client, self.candidates, coins)
        views = {"shadows": views_of_exchange(*given)}
        return {**views, "all others": views_of_exchange(*given, others_known=True)} if self.setting.epsilon else views


def _array(message: Message) -> NDArray[Any]:
    name = next(name for name in ("phi", "sums", "weights") if name in message.arrays)
    return message.arrays[name].numpy().copy()


@lru_cache(maxsize=1)
def world(setting: Setting, seed: int, source: str) -> World:
    return World(setting, seed, source)


# ---- runs, kept as they come ----


@dataclass(frozen=True)
class Task:
    """Runs `start` to `start + CHUNK` of one setting and seed."""

    setting: Setting
    seed: int
    source: str
    start: int
    work: Path

    @property
    def file(self) -> Path:
        return self.work / f"{self.source}-{self.setting.name}-seed{self.seed}-{self.start:05d}.npz"

    def done(self) -> "Task":
        torch.set_num_threads(1)
        if not self.file.exists():
            here = world(self.setting, self.seed, self.source)
            runs = [here.uploads(run) for run in range(self.start, self.start + CHUNK)]
            buffer = io.BytesIO()
            np.savez(
                buffer,
                **{
                    name: np.stack(sent)
                    for name, sent in zip(self.setting.uploads, zip(*runs, strict=True), strict=True)
                },
            )
            write_atomically(self.file, buffer.getvalue())
        return self


def finished(tasks: Sequence[Task], workers: int) -> Iterator[Task]:
    if workers == 1:
        yield from map(Task.done, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(Task.done, tasks)


def measured(setting: Setting, seed: int, source: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What the attacks find out from each upload."""
    here = world(setting, seed, source)
    rows = []
    for upload in setting.uploads:
        sent = np.concatenate([np.load(task.file, allow_pickle=False)[upload] for task in tasks])
        coins = np.stack([here.coins(run) for run in range(len(sent))])
        for knows, views in here.views(sent, coins).items():
            found = attack(views, coins)
            kinds = {"ordinary": ~here.wrong, "mislabelled": here.wrong}
            leaks = {kind: asdict(leak(found.scores[:, these], coins[:, these])) for kind, these in kinds.items()}
            row = {**asdict(setting), "upload": upload, "knows": knows, "seed": seed, "runs": len(sent)}
            rows.append({**row, "views": list(found.chosen), **leaks})
    return rows


# ---- what is written ----


HEAD = """| sent | ε | points | AUC | at most | found at 1 % | at most | found at 0.1 % | at most |
|---|---|---|---|---|---|---|---|---|"""


def table(rows: Sequence[Mapping[str, Any]], knows: str) -> list[str]:
    """A line for each thing that is sent: mean over seeds ± standard deviation, ordinary records / mislabelled ones."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["knows"] == knows:
            groups.setdefault((row["sent"], row["upload"], row["epsilon"], row["points"]), []).append(row)
    return [HEAD, *(_line(*named, group) for named, group in groups.items())]


def _line(sent: str, upload: str, epsilon: float | None, points: int, group: Sequence[Mapping[str, Any]]) -> str:
    bounds = [1.0] * (1 + len(RATES))
    if epsilon:
        mu = gaussian_mu(epsilon, PrivacySettings().delta)
        bounds = [auc_bound(mu), *(tpr_bound(mu, rate) for rate in RATES)]
    cells = [NAMES[sent, upload], f"{epsilon:g}" if epsilon else "-", "-" if sent == "fedavg" else str(points)]
    for number, bound in enumerate(bounds):
        kinds = [[_figures(row[kind])[number] for row in group] for kind in ("ordinary", "mislabelled")]
        cells += [" / ".join(map(_spread, kinds)), f"{bound:.3f}"]
    return f"| {' | '.join(cells)} |"


def _figures(found: Mapping[str, Any]) -> list[float]:
    return [figure["value"] for figure in (found["auc"], *found["tpr"])]


NAMES = {
    ("off", "first"): "`none`: outputs, warm-up",
    ("off", "second"): "`none`: outputs, one exchange later",
    ("dp_teacher", "first"): "`dp_teacher`",
    ("dp_moments", "first"): "`dp_moments`",
    ("fedavg", "first"): "FedAvg: weights, warm-up",
}


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


PAGE = """# Who was among a client's records? ({source})

AUC: how often a record that was in looks more like one than a record that was out; 0.5 is a guess. Found: the share of
the client's records that are found where 1 % or 0.1 % of the others are taken for them. Each for ordinary records / for
mislabelled ones, beside the most that any attack can reach under the guarantee (δ = 1e-5).

The attacker has shadow runs, and does not know which other records the client has:

{shadows}

The attacker knows all other records of the client, as the guarantee allows him to:

{others}

Mean ± standard deviation over seeds {seeds}, each with other clients, records and wrong labels. {runs} runs each, a
quarter of which is scored by a fit to the others, in turn. Figures at the bound scatter above it too: limits of each,
and what was looked at (the whole upload, or the record's own direction in it), are in the JSON. Made by
`make membership`.
"""


def page(rows: Sequence[Mapping[str, Any]], source: str) -> str:
    return PAGE.format(
        source=source,
        shadows="\n".join(table(rows, "shadows")),
        others="\n".join(table(rows, "all others")),
        seeds=", ".join(map(str, sorted({row["seed"] for row in rows}))),
        runs=rows[0]["runs"],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shadows", type=int, default=384, help=f"runs of each setting and seed, in steps of {CHUNK}")
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--source", default="digits", help="another data set, e.g. mnist (FEDBNN_DATA)")
    parser.add_argument("--only", nargs="+", help="names of settings, e.g. off-40 dp_teacher-400-3")
    parser.add_argument("--work", type=Path, default=HERE.parent / "runs" / "membership", help="where uploads are kept")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    given = parser.parse_args(arguments)
    if given.shadows < 1:
        raise UserError(f"--shadows = {given.shadows}: must be at least 1")
    settings = [setting for setting in SETTINGS if not given.only or setting.name in given.only]
    if not settings:
        raise UserError(f"--only {' '.join(given.only)}: there are {', '.join(setting.name for setting in SETTINGS)}")
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    chunks = range(0, given.shadows, CHUNK)
    tasks = [
        Task(setting, seed, given.source, start, given.work)
        for seed in given.seeds
        for setting in settings
        for start in chunks
    ]
    began, rows = time.perf_counter(), []
    name = "membership" if given.source == "digits" else f"membership_{given.source}"
    for number, task in enumerate(finished(tasks, given.workers), 1):
        print(f"{number} of {len(tasks)}, {time.perf_counter() - began:.0f} s: {task.file.stem}", file=sys.stderr)
        if number % len(chunks) == 0:
            rows += measured(task.setting, task.seed, given.source, tasks[number - len(chunks) : number])
            write_json(given.out / f"{name}.json", rows)
            write_atomically(given.out / f"{name}.md", page(rows, given.source))
    print(page(rows, given.source))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
