"""Does anything that others wrote crash, hang, fill the memory or get executed where it is read? `make soak`

    python tests/soak/fuzz.py [--inputs 100000] [--only TARGET] [--seed 0] [--out FOLDER]
    python tests/soak/fuzz.py --only TARGET --replay FILE

The targets and how their inputs are made are those of `tests/fuzz`. Each target is read in a process of its own, which
is watched: a reader may say no in one line (UserError, BadMessage), and nothing else. An input with which something
else happens is kept in FOLDER, with the command that reads it again. Needs Linux.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.fuzz.targets.every import TARGETS
from tests.fuzz.targets.runs import finished
from tests.fuzz.targets.target import Target
from tests.soak.child import ACCEPTED, MIB, REFUSED
from tests.soak.watched import Soak, Tally


def shared(targets: Sequence[Target], inputs: int) -> dict[str, int]:
    """How many inputs each gets: by its share, at least one."""
    whole = sum(target.share for target in targets)
    return {target.name: max(1, round(inputs * target.share / whole)) for target in targets}


def table(tallies: Sequence[Tally]) -> str:
    lines = [
        f"{'target':<16} {'inputs':>8} {'accepted':>9} {'refused':>8} {'problems':>9} {'slowest':>9} {'memory':>8}"
    ]
    total = Tally("all")
    for one in tallies:
        for kind, count in one.counts.items():
            total.counts[kind] += count
        total.problems += one.problems
        total.slowest, total.grown = max(total.slowest, one.slowest), max(total.grown, one.grown)
    for one in (*tallies, total):
        lines.append(
            f"{one.target:<16} {one.inputs:>8} {one.counts[ACCEPTED]:>9} {one.counts[REFUSED]:>8} "
            f"{len(one.problems):>9} {one.slowest:>7.2f} s {one.grown // MIB:>4} MiB"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--only", metavar="TARGET", choices=TARGETS, help=f"one of: {', '.join(TARGETS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="that one input may take")
    parser.add_argument("--memory", type=int, default=256, help="MiB that one input may take")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where inputs go that are problems")
    parser.add_argument("--replay", type=Path, help="read this input, and no other")
    arguments = parser.parse_args(given)
    targets = [TARGETS[arguments.only]] if arguments.only else list(TARGETS.values())
    soak = Soak(arguments.seed, arguments.seconds, arguments.memory * MIB, arguments.out)
    if arguments.replay:
        if not arguments.only:
            parser.error("--replay needs --only TARGET")
        tallies = [soak.read(targets[0], 1, arguments.replay.read_bytes())]
        print(table(tallies))
        return int(bool(tallies[0].problems))
    if len(targets) > 1:  # what a first run loads, every child then has; of one thread, as a child has no others
        torch.set_num_threads(1)
        finished()
    counts, tallies, start = shared(targets, arguments.inputs), [], time.monotonic()
    for number, target in enumerate(targets, 1):
        print(
            f"\r{number} of {len(targets)}: {counts[target.name]} inputs to {target.name:<20}", end="", file=sys.stderr
        )
        tallies.append(soak.read(target, counts[target.name]))
    minutes = (time.monotonic() - start) / 60
    print(f"\n{table(tallies)}\nseed {soak.seed}, {minutes:.1f} minutes", flush=True)
    return int(any(one.problems for one in tallies))


if __name__ == "__main__":
    sys.exit(main())
