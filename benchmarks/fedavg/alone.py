"""The clients' turns of FedAvg in plain torch and nothing else: what any library that is used with it has to add to.

    ALONE_RANK=... python -c "from benchmarks.fedavg.alone import main; main(FOLDER)"

A process a core, each with its part of the clients; nothing is sent or joined.
"""

import os
import random
from pathlib import Path

from torch.utils.data import DataLoader, TensorDataset

from benchmarks.fedavg import plain


def main(place: str) -> None:
    folder = Path(place)
    given, rank = plain.settings(folder), int(os.environ["ALONE_RANK"])
    x, y = plain.records(folder)
    net, weights = plain.Net(), plain.initial(folder).state_dict()
    own = range(rank, given["clients"], given["cores"])
    turns = round(given["participation"] * given["clients"]) // given["cores"]
    blocks = plain.Blocks()
    while count := blocks.next():
        for client in random.choices(own, k=count * turns):
            net.load_state_dict(weights)
            loader = DataLoader(TensorDataset(x[client], y[client]), batch_size=given["batch_size"], shuffle=True)
            plain.train(net, loader, given["learning_rate"])
