"""The network at the mean of a client's posterior, from values as in the data set's files to class probabilities.

    p(y | x)  =  softmax(f((x - mean) / std; E[w]) + log ratio(y))

with the ratio of label priors that the client's headline model is asked with (`fedbnn.models.label_prior`). It is one
draw where the client's own prediction averages many, and has no head on public features: it tells no uncertainty.
"""

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data.view import InputView
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.federation.method import State
from fedbnn.federation.scored import scored_models
from fedbnn.models.architectures import build
from fedbnn.models.label_prior import ratio
from fedbnn.models.network import FlatNetwork

_LEAST = 1e-12


class MeanNetwork(nn.Module):
    """Scaling, network and label prior in one module."""

    mean: Tensor
    std: Tensor
    log_ratio: Tensor

    def __init__(self, network: nn.Module, view: InputView, log_ratio: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.from_numpy(view.mean.copy()))
        self.register_buffer("std", torch.from_numpy(view.std.copy()))
        self.register_buffer("log_ratio", log_ratio)

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - self.mean) / self.std
        logits: Tensor = self.network(scaled)
        return (logits + self.log_ratio).softmax(1)


def mean_network(run: LoadedRun, client: int | str) -> MeanNetwork:
    """That of the client's headline model; a UserError where it has none, or sees something else than its inputs."""
    site, host = run.site(client), run.host(client)
    method, one = host.method, site.client
    assert site.view is not None
    if site.view.features is not None:
        on = f"body '{one.model.body}'" if one.model.body else f"data.inputs = '{run.config.data.inputs}'"
        raise UserError(f"{on}: models see public features, which ONNX cannot hold; --no-onnx")
    rng = Stream((run.config.seed, "evaluate", run.round_number, one.index))
    variant, state = next(iter(scored_models(method, host.states[one.index], one, run.message(client), rng).items()))
    weights = _mean_weights(state)
    if weights is None or len(weights) != one.network.size:
        raise UserError(f"method '{method.name}' has no network whose mean could be exported; --no-onnx")
    flat = FlatNetwork(lambda: build(one.model, tuple(one.train.x.shape[1:]), one.classes), 0)
    flat.weights.copy_(weights)
    asked, trained = method.asked_prior(variant, one), method.trained_prior(variant, one)
    change = torch.ones(one.classes) if asked is None else ratio(asked, trained)
    module = MeanNetwork(flat.module, site.view, change.clamp_min(_LEAST).log().float())
    return module.eval().requires_grad_(False)


def _mean_weights(state: State) -> Tensor | None:
    posterior = getattr(state, "q", None)
    mean: Any = getattr(state, "weights", None) if posterior is None else posterior.mean
    return mean if isinstance(mean, Tensor) else None


def check_onnx() -> None:
    """Raise a UserError where the extra is not installed."""
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise UserError(f"a network as ONNX needs pip install 'fedbnn[onnx]' ({error}); or --no-onnx") from None


def write_onnx(network: MeanNetwork, shape: tuple[int, ...], path: Path) -> None:
    """With an input x (any number of records of this shape) and an output `probabilities`."""
    check_onnx()
    talkative = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [one.level for one in talkative]
    try:
        for one in talkative:
            one.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it tells of its every step
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                (torch.zeros(2, *shape),),
                input_names=["x"],
                output_names=["probabilities"],
                dynamic_shapes={"x": {0: torch.export.Dim("records")}},
                dynamo=True,
            )
    finally:
        for one, level in zip(talkative, levels, strict=True):
            one.setLevel(level)
    assert program is not None
    program.save(path)
