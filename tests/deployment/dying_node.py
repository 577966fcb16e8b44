"""A node that does the warm-up and is killed in round 1; `test_node` runs this file as a program.

dying_node.py SITE.TOML MOMENT
"""

import os
import signal
import sys
from pathlib import Path

import torch

from fedbnn.deployment import state
from fedbnn.deployment.node import Node
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.message import Message

MOMENTS = {
    "asked": (ClientHost, "update", False),  # before anything is computed
    "charged": (state.SiteState, "save_turn", False),  # after the release, before state and reply are saved
    "writing": (state, "write_json", True),  # while the folder that holds both is being written
    "saved": (state.SiteState, "record", False),  # after that, before the reply leaves
}


def message() -> Message:
    """What the server sends in round 1: outputs on the 20 alignment points."""
    return Message({"phi_bar": torch.full((20, 10), 0.1)})


def main(file: str, moment: str) -> None:
    node = Node.from_file(Path(file))
    from tests.deployment.deployment_sample import ask

    ask(node, "update", 0, Message())
    owner, name, after = MOMENTS[moment]
    real = getattr(owner, name)

    def dies(*arguments: object) -> None:
        if after:
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dies)
    ask(node, "update", 1, message())


if __name__ == "__main__":
    main(*sys.argv[1:])
