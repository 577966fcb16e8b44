"""What every method's client turn costs against the same arithmetic in plain torch, as ratios; and pFedGP by records.

    python -m benchmarks.methods [--json FILE] [--repetitions N]        from the repository's root

One thread, cnn3 on 28x28x1, 250 records, minibatches of 32. Compared with ours are
  plain           the turns of tests/plain_torch.py, which the tests hold equal to the methods': an ordinary module,
                  torch's optimisers with their defaults, autograd throughout. The bar is for this ratio.
  channels-last   the same with images and weights in the layout of the fast convolution kernels, which ours always
                  uses: what the layout gives cannot hide here what a method costs. DP-FedAvg has no such
                  ratio: inside its vmap torch cannot copy to that layout.
FedDF's client is FedAvg's, so its line is the server's distillation. The data are random: time does not depend on them.

pFedGP factorises matrices as large as its client has records. One inner step and one prediction are timed for growing
clients, and  time = c * records^p  is fitted by least squares on logarithms over the largest clients. Operations grow
with the cube; time grows more slowly at these sizes, since the network is linear in the records and a factorisation of
a larger matrix does more operations a second.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import medians
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods import (
    FOLA,
    DPFedAvg,
    FedAvg,
    FedBNN,
    FedDF,
    FedMD,
    FedProx,
    Local,
    LocalBNN,
    PFedBayes,
    PFedGP,
    PFedMe,
)
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.gp import fit_tree
from fedbnn.models.training import Records, TrainingSettings, channels_last
from tests.plain_torch import TURNS, PlainClient, Situation, default_layout, feddf_server, own_noise

BAR = 1.3
SHAPE, CLASSES, RECORDS, POINTS = (1, 28, 28), 10, 250, 250
TRAINING = TrainingSettings(local_epochs=2, batch_size=32)
RNG = Stream((0, "benchmark"))
SIZES, HELD, ASKED, LARGEST = (50, 100, 200, 400, 800), 5, 100, 3

METHODS: tuple[Method[Any, Any], ...] = (
    Local(),
    FedAvg(),
    FedProx(),
    FOLA(),
    PFedMe(iterations=5),
    DPFedAvg(noise="seed"),
    FedMD(digest_steps=8),
    LocalBNN(),
    FedBNN(prior_steps=8),
    PFedBayes(iterations=5),
    PFedGP(),
)


def a_client(records: int = RECORDS, classes: int = CLASSES) -> Client:
    """Images of noise around a mean of each class, as many of each class as of any other."""
    normal = torch.Generator().manual_seed(0)
    means = torch.randn(classes, *SHAPE, generator=normal)
    y = torch.arange(records) % classes
    x = means[y] + torch.randn(records, *SHAPE, generator=normal)
    alignment = torch.randn(POINTS, *SHAPE, generator=normal)
    return Client(
        index=0,
        name="client",
        train=Records(channels_last(x), y),
        alignment=channels_last(alignment),
        classes=CLASSES,
        model=ModelSettings("cnn3"),
        training=TRAINING,
        rounds=12,
        seed=0,
    )


def roster_of(client: Client, clients: int = 1) -> Roster:
    names = tuple(f"client {i}" for i in range(clients))
    return Roster(names, client.classes, client.alignment, (client.model,) * clients, client.rounds, client.seed)


def message_to(method: Method[Any, Any], client: Client) -> Message:
    """What the server sends in the middle of a run."""
    if isinstance(method, FedBNN | FedMD):
        logits = torch.randn(POINTS, CLASSES)
        return Message({"phi_bar": logits if method.consensus == "mean_logits" else logits.softmax(1)})
    return method.broadcast(method.server_init(roster_of(client)), 0)


class ChannelsLast(nn.Module):
    """A module that works in the layout of the fast convolution kernels."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(channels_last(x))


def turns(method: Method[Any, Any]) -> dict[str, Callable[[], object]]:
    """Our turn and the plain ones, from the same state and message."""
    client = a_client()
    state, message = method.client_init(client), message_to(method, client)
    now = Situation(state.tensors(), message.arrays, 1, RNG, own_noise)
    plain = [PlainClient.of(client, method.embedding if isinstance(method, PFedGP) else None) for _ in range(2)]
    plain[1] = replace(plain[1], module=ChannelsLast(plain[1].module))
    alternatives: dict[str, Callable[[], object]] = {
        "ours": lambda: method.client_update(state, client, message, 1, RNG),
        "plain": lambda: TURNS[method.name](method, plain[0], now),
    }
    if not isinstance(method, DPFedAvg):
        alternatives["channels-last"] = lambda: TURNS[method.name](method, plain[1], now)
    return alternatives


def distillations(method: FedDF, clients: int = 3) -> dict[str, Callable[[], object]]:
    """FedDF's server, ours and the plain ones."""
    client = a_client()
    roster = roster_of(client, clients)
    replies = {
        i: Message({"weights": roster.initial_weights(i), "records": torch.tensor([float(RECORDS)])})
        for i in range(clients)
    }
    state = method.server_init(roster)
    arrays = {i: reply.arrays for i, reply in replies.items()}
    alignment = default_layout(client.alignment)
    module, last = build(client.model, SHAPE, CLASSES), ChannelsLast(build(client.model, SHAPE, CLASSES))

    def plainly(module: nn.Module) -> object:
        return feddf_server(method, {client.model.architecture: module}, roster.models, arrays, alignment, RNG)

    return {
        "ours": lambda: method.server_update(state, replies, roster, RNG),
        "plain": lambda: plainly(module),
        "channels-last": lambda: plainly(last),
    }


def ratios(repetitions: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    alternatives = {method.name: turns(method) for method in METHODS}
    alternatives["feddf, server"] = distillations(FedDF(distill_steps=8))
    print(f"cnn3, {RECORDS} records      ours / plain    ours / channels-last")
    for name, several in alternatives.items():
        times = medians(several, repetitions)
        found[name] = {f"ours / {other}": times["ours"] / times[other] for other in several if other != "ours"}
        ratio, last = found[name]["ours / plain"], found[name].get("ours / channels-last")
        verdict = "within" if ratio <= BAR else "OVER"
        shown = "-" if last is None else f"{last:.2f}"
        print(f"  {name:20s} {ratio:12.2f} {shown:>23s}    {verdict} the bar of {BAR}", flush=True)
    return found


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """p and c of seconds = c * size^p by least squares on logarithms."""
    p, intercept = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(p), math.exp(float(intercept))


def factorised(method: PFedGP, client: Client, weights: Tensor) -> float:
    """The sum over the tree's nodes of (records of the node / all records)^3; 1.3 if five classes split evenly."""
    network = client.network_with(method.embedding)
    network.weights.copy_(weights)
    with torch.no_grad():
        tree = fit_tree(network(client.train.x), client.train.y)
    return sum(((len(node.left) + len(node.right)) / len(tree.classes)) ** 3 for node in tree.nodes)


def growth(repetitions: int) -> dict[str, Any]:
    """pFedGP's inner step and prediction for clients of growing size."""
    method = PFedGP(record_cap=max(SIZES))
    work: dict[str, Callable[[], object]] = {}
    shares = []
    for n in SIZES:
        client = a_client(n, HELD)
        message = message_to(method, client)
        state = method.client_state(message.arrays["weights"])
        asked = client.alignment[:ASKED]
        shares.append(factorised(method, client, state.weights))
        work[f"step {n}"] = lambda c=client, s=state, m=message: method.client_update(s, c, m, 1, RNG)
        work[f"predict {n}"] = lambda c=client, s=state, a=asked: method.predict(s, c, a, RNG)
    times = medians(work, repetitions)
    print(f"\npFedGP by records, {HELD} classes; prediction of {ASKED} records")
    print(f"  {'records':>8s} {'inner step, ms':>16s} {'prediction, ms':>16s}")
    for n in SIZES:
        print(f"  {n:8d} {1e3 * times[f'step {n}']:16.1f} {1e3 * times[f'predict {n}']:16.1f}")
    found: dict[str, Any] = {"records": list(SIZES)}
    for kind in ("step", "predict"):
        seconds = [times[f"{kind} {n}"] for n in SIZES]
        p, c = exponent(SIZES[-LARGEST:], seconds[-LARGEST:])
        last, _ = exponent(SIZES[-2:], seconds[-2:])
        print(
            f"  {kind}: {1e9 * c:.3g} ns * records^{p:.2f} over the {LARGEST} largest; "
            f"records^{last:.2f} from {SIZES[-2]} to {SIZES[-1]}"
        )
        found[kind] = {
            f"relative to {SIZES[0]} records": [t / seconds[0] for t in seconds],
            f"exponent over the {LARGEST} largest": p,
            "exponent over the 2 largest": last,
        }
    steps = method.gibbs_steps + 1
    print(
        f"  operations of the records^3 term, the nodes together being {shares[-1]:.2f} roots:\n"
        f"    step        (records / 2)^3 / 3 * {method.train_chains} chains * {steps} factors * {shares[-1]:.2f},"
        " and the way back\n"
        f"    prediction   records^3 / 3      * {method.test_chains} chains * {steps} factors * {shares[-1]:.2f}"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=25, help="turns of each method and its plain reference")
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results = {"turns": ratios(arguments.repetitions), "pfedgp by records": growth(max(3, arguments.repetitions // 8))}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
