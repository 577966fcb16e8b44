"""A client's model as files for elsewhere: its posterior, its mean network, and a card that says what it is.

FOLDER/posterior.safetensors   the client's whole state, the scaling of inputs, and what it is of (metadata)
FOLDER/model.onnx              the mean network, from values as in the data set's files to class probabilities
FOLDER/README.md               the model card
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically
from fedbnn.base.version import __version__
from fedbnn.deployment.card import Agreement, model_card
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.deployment.mean_network import check_onnx, mean_network, write_onnx

POSTERIOR, NETWORK, CARD = "posterior.safetensors", "model.onnx", "README.md"


def export(run: LoadedRun, client: int | str, out: Path, *, onnx: bool = True) -> list[Path]:
    """Write a client's model into the new folder `out`; its files. Without `onnx`, no network."""
    if run.config.data.regression:
        raise UserError(f"{run.path}: models are exported in classification, this run is of regression")
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
        agreement = None
        if network is not None:
            write_onnx(network, run.data.dataset.input_shape, new / NETWORK)
            agreement = Agreement.of(run, at, network)
        write_atomically(new / CARD, model_card(run, at, agreement))
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
    facts = {
        "fedbnn_version": __version__,
        "run": run.path.name,
        "client": site.client.name,
        "method": run.config.method_name,
        "round": run.round_number,
        "model": asdict(site.client.model),
        "input_shape": list(view.loaded_shape),
        "inputs": run.config.data.inputs,
        "class_names": list(run.class_names),
        "class_shares": site.client.own_shares.tolist(),
        "weights": {name: [one.start, one.stop] for name, one in site.client.network.spans.items()},
    }
    contiguous = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    save_file(contiguous, path, metadata={"fedbnn": json.dumps(facts)})
