"""Nodes that do the warm-up and are killed in round 1; `test_node` runs this file as a program.

    dying_node.py SITE.TOML MOMENT ...     ->  how each of them ended, a line each

Each has a process of its own, and all of them come from one that has loaded torch once.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from fedbnn.deployment import state
from fedbnn.deployment.node import Node
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.message import Message
from tests.deployment.deployment_sample import ask

MOMENTS = {
    "asked": (ClientHost, "update", False),  # before anything is computed
    "charged": (state.SiteState, "save_turn", False),  # after the release, before state and reply are saved
    "writing": (state, "write_json", True),  # while the folder that holds both is being written
    "saved": (state.SiteState, "record", False),  # after that, before the reply leaves
}


def message() -> Message:
    """What the server sends in round 1: outputs on the 20 alignment points."""
    return Message({"phi_bar": torch.full((20, 10), 0.1)})


def turn(file: str, moment: str) -> None:
    node = Node.from_file(Path(file))
    ask(node, "update", 0, Message())
    owner, name, after = MOMENTS[moment]
    real = getattr(owner, name)

    def dies(*arguments: object) -> None:
        if after:
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dies)
    ask(node, "update", 1, message())


def main(*words: str) -> None:
    torch.optim.Adam([torch.zeros(1)])  # the first one in a process loads half of torch
    for file, moment in zip(words[::2], words[1::2], strict=True):
        process = os.fork()
        if process == 0:
            try:
                turn(file, moment)
            except BaseException:
                traceback.print_exc()
            os._exit(1)  # it should be dead
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
