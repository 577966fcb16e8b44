"""The same Bayesian training step with other libraries, on the plain (NCHW, ReLU before pooling) network.

A peer that is not installed is left out. Each function returns a step: one weight draw, forward, backward, KL
against N(0, 0.1^2), Adam.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[], object]


def torchbnn(network: nn.Module, x: Tensor, y: Tensor) -> Step:
    import torchbnn as bnn

    def convert(layer: nn.Module) -> nn.Module:
        if isinstance(layer, nn.Conv2d):
            return bnn.BayesConv2d(0, 0.1, layer.in_channels, layer.out_channels, 3, padding=1)
        return bnn.BayesLinear(0, 0.1, layer.in_features, layer.out_features)

    model = _converted(network, convert)
    kl = bnn.BKLLoss(reduction="sum", last_layer_only=False)
    return _loop(model, lambda: functional.cross_entropy(model(x), y) + 1e-4 * kl(model).sum())


def bayesian_torch(network: nn.Module, x: Tensor, y: Tensor) -> Step:
    from bayesian_torch.layers import Conv2dReparameterization, LinearReparameterization
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    options = {"prior_variance": 0.1, "posterior_rho_init": -5.0}

    def convert(layer: nn.Module) -> nn.Module:
        if isinstance(layer, nn.Conv2d):
            made = Conv2dReparameterization(layer.in_channels, layer.out_channels, 3, padding=1, **options)
        else:
            made = LinearReparameterization(layer.in_features, layer.out_features, **options)
        made.dnn_to_bnn_flag = True  # return the output alone; the KL is asked for separately
        return made

    model = _converted(network, convert)
    return _loop(model, lambda: functional.cross_entropy(model(x), y) + 1e-4 * get_kl_loss(model))


def posteriors(network: nn.Module, x: Tensor, y: Tensor) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import posteriors
        import torchopt

    def log_posterior(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        logits = torch.func.functional_call(network, parameters, (batch[0],))
        prior = sum((p.square().sum() for p in parameters.values()), torch.zeros(())) / (2 * 0.1**2)
        return -functional.cross_entropy(logits, batch[1]) - 1e-4 * prior, logits

    transform = posteriors.vi.diag.build(log_posterior, torchopt.adam(1e-3), temperature=1e-4, init_log_sds=-5.0)
    state = transform.init({name: p.detach().clone() for name, p in network.named_parameters()})

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, (x, y), inplace=False)

    return step


PEERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "torchbnn": torchbnn,
    "bayesian-torch": bayesian_torch,
    "posteriors": posteriors,
}


def installed(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, Step]:
    """A step for every peer that can be imported."""
    steps = {}
    for name, make in PEERS.items():
        try:
            steps[name] = make(network, x, y)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    return steps


def _converted(network: nn.Module, convert: Callable[[nn.Module], nn.Module]) -> nn.Module:
    layers = [m for m in network.modules() if not list(m.children())]
    return nn.Sequential(*(convert(m) if isinstance(m, nn.Conv2d | nn.Linear) else m for m in layers))


def _loop(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        adam.zero_grad()
        loss().backward()
        adam.step()

    return step
