"""A client's model as files for elsewhere: its posterior, its mean network, and a card that says what it is.

FOLDER/posterior.safetensors   the client's whole state, the scaling of inputs, in regression the target's, and what it
                               is of (metadata)
FOLDER/model.onnx              the mean network, from values as in the data set's files to class probabilities, in
                               regression to mean and standard deviation in the target's own unit
FOLDER/README.md               the model card
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically
from fedbnn.base.version import __version__
from fedbnn.deployment.card import model_card
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.deployment.mean_network import check_onnx, mean_network, write_onnx
from fedbnn.deployment.nearness import nearness
from fedbnn.federation.parties import Client

POSTERIOR, NETWORK, CARD = "posterior.safetensors", "model.onnx", "README.md"


def export(run: LoadedRun, client: int | str, out: Path, *, onnx: bool = True) -> list[Path]:
    """Write a client's model into the new folder `out`; its files. Without `onnx`, no network."""
    if out.exists():
        raise UserError(f"--out {out}: it is there already; name a folder that is not")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if onnx:
        check_onnx()
    at = run.index(client)
    network = mean_network(run, at) if onnx else None
    new = out.with_name(f".{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        _write_posterior(run, at, new / POSTERIOR)
        near = None
        if network is not None:
            write_onnx(network, run.data.dataset.input_shape, new / NETWORK)
            near = nearness(run, at, network)
        write_atomically(new / CARD, model_card(run, at, near))
        new.replace(out)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return sorted(out.iterdir())


def _write_posterior(run: LoadedRun, client: int, path: Path) -> None:
    site = run.site(client)
    view = site.view
    assert view is not None
    tensors = {f"state.{name}": value for name, value in run.host(client).states[client].tensors().items()}
    tensors |= {"input.mean": torch.from_numpy(view.mean), "input.std": torch.from_numpy(view.std)}
    if (scale := site.client.scale) is not None:
        tensors |= {f"target.{name}": torch.tensor(one, dtype=torch.float64) for name, one in asdict(scale).items()}
    facts = {
        "fedbnn_version": __version__,
        "run": run.path.name,
        "client": site.client.name,
        "method": run.config.method_name,
        "round": run.round_number,
        "model": asdict(site.client.model),
        "input_shape": list(view.loaded_shape),
        "inputs": run.config.data.inputs,
        "task": run.config.data.task,
        **_target_facts(run, site.client),
        "weights": {name: [one.start, one.stop] for name, one in site.client.network.spans.items()},
    }
    contiguous = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    save_file(contiguous, path, metadata={"fedbnn": json.dumps(facts)})


def _target_facts(run: LoadedRun, client: Client) -> dict[str, Any]:
    if client.regression:
        return {"target": run.config.data.target}
    return {"class_names": list(run.class_names), "class_shares": client.own_shares.tolist()}
