"""The network at the mean of a client's posterior, from values as in the data set's files to what it says of them:

    p(y | x)  =  softmax(f((x - mean) / std; E[w]) + log ratio(y))

with the ratio of label priors that the client's headline model is asked with (`fedbnn.models.label_prior`), or in
regression, with the public scale (a, b) of the target (`fedbnn.models.regression`),

    mean  =  a + b o_0,    sd  =  b sqrt(FLOOR + softplus(o_1)),    o = f((x - mean) / std; E[w])

It is one draw where the client's own prediction averages many, and has no head on public features: it tells no
epistemic uncertainty. What it gives in regression is in double precision: a target's unit may be fine beside its mean.
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
from fedbnn.federation.method import Method, State, Variant
from fedbnn.federation.parties import Client
from fedbnn.federation.scored import scored_models
from fedbnn.models.architectures import build
from fedbnn.models.label_prior import ratio
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import Scale, gaussian_of

_LEAST = 1e-12


class Probabilities(nn.Module):
    """Of classes, from logits, under a label prior."""

    names = ("probabilities",)
    log_ratio: Tensor

    def __init__(self, log_ratio: Tensor) -> None:
        super().__init__()
        self.register_buffer("log_ratio", log_ratio)

    def forward(self, logits: Tensor) -> tuple[Tensor]:
        return ((logits + self.log_ratio).softmax(1),)


class MeanAndDeviation(nn.Module):
    """Of a real number in its own unit, from a network's two outputs."""

    names = ("mean", "sd")

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = gaussian_of(outputs)
        return mean.double() * self.scale.sd + self.scale.mean, variance.double().sqrt() * self.scale.sd


Answering = Probabilities | MeanAndDeviation


class MeanNetwork(nn.Module):
    """Scaling, network and what its outputs mean in one module."""

    input_mean: Tensor  # no name of an output: ONNX has one space for all
    input_std: Tensor

    def __init__(self, network: nn.Module, view: InputView, answering: Answering) -> None:
        super().__init__()
        self.network = network
        self.answering = answering
        self.register_buffer("input_mean", torch.from_numpy(view.mean.copy()))
        self.register_buffer("input_std", torch.from_numpy(view.std.copy()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scaled = (x - self.input_mean) / self.input_std
        said: tuple[Tensor, ...] = self.answering(self.network(scaled))
        return said


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
    flat = FlatNetwork(lambda: build(one.model, tuple(one.train.x.shape[1:]), one.outputs), 0)
    flat.weights.copy_(weights)
    module = MeanNetwork(flat.module, site.view, _answering(method, variant, one))
    return module.eval().requires_grad_(False)


def _answering(method: Method[Any, Any], variant: Variant, client: Client) -> Answering:
    if client.scale is not None:
        return MeanAndDeviation(client.scale)
    asked, trained = method.asked_prior(variant, client), method.trained_prior(variant, client)
    change = torch.ones(client.classes) if asked is None else ratio(asked, trained)
    return Probabilities(change.clamp_min(_LEAST).log().float())


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
    """With an input x (any number of records of this shape), and outputs as the network names them."""
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
                output_names=list(network.answering.names),
                dynamic_shapes={"x": {0: torch.export.Dim("records")}},
                dynamo=True,
            )
    finally:
        for one, level in zip(talkative, levels, strict=True):
            one.setLevel(level)
    assert program is not None
    program.save(path)
