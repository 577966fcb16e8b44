"""FedAvg in Flower's own simulation, with the ClientApp and ServerApp that a user of Flower would write.

python -c "from benchmarks.fedavg.flower import main; main(FOLDER)"
"""

import os
import traceback
from pathlib import Path
from typing import Any

import ray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.fedavg import plain


def client_app(folder: Path, given: dict[str, Any]) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = plain.Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = plain.records(folder)
        own = int(context.node_config["partition-id"])
        shuffle = bool(message.content["config"]["shuffle"])
        loader = DataLoader(TensorDataset(x[own], y[own]), batch_size=given["batch_size"], shuffle=shuffle)
        loss = plain.train(net, loader, given["learning_rate"])
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(y[own])})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(folder: Path, given: dict[str, Any]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, _: Context) -> None:
        arrays = ArrayRecord(plain.initial(folder).state_dict())
        blocks, first = plain.Blocks(), True
        while count := blocks.next():
            share = 1.0 if first else given["participation"]
            strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=given["clients"])
            config = ConfigRecord({"shuffle": not first})
            arrays = strategy.start(grid, arrays, num_rounds=count, train_config=config).arrays
            if first:
                plain.keep(folder, "flower", arrays.to_torch_state_dict().values())
                first = False

    return app


def main(place: str) -> None:
    folder = Path(place)
    given = plain.settings(folder)
    # With Ray's niceness of 15, clients would wait for whatever else is running.
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    try:
        run_simulation(
            server_app(folder, given),
            client_app(folder, given),
            num_supernodes=given["clients"],
            backend_config={
                "init_args": {"num_cpus": given["cores"], "include_dashboard": False, "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        ray.shutdown()
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)  # the thread of the ServerApp would wait for replies for ever
