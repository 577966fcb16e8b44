"""Every method's turn once more, as one would write it with nothing but torch: the reference for tests and benchmarks.

An ordinary module with a list of parameters, torch's own optimisers with their defaults, autograd for every penalty.
Nothing is shared with the methods but their settings, and the randomness, which comes from the same named streams.

Vectors that cross the wire are flat; `to_module` and `from_module` translate, since convolution weights lie
channels-last in them and as torch likes it in a module.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from polyagamma import random_polyagamma
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.features.kernel import kernel_features
from fedbnn.features.standard import standard_features
from fedbnn.federation.parties import Client
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.network import view_of
from fedbnn.privacy import noise_multiplier
from tests import plain_head

Tensors = list[Tensor]
Arrays = dict[str, Tensor]


# --- flat vectors and modules -----------------------------------------------------------------------------------------


def pieces(vector: Tensor, module: nn.Module) -> Tensors:
    """The vector cut into tensors of the parameters' shapes, in torch's default layout."""
    parts, offset = [], 0
    for parameter in module.parameters():
        parts.append(view_of(vector, offset, parameter.shape).clone(memory_format=torch.contiguous_format))
        offset += parameter.numel()
    return parts


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """The opposite of `pieces`."""
    tensors = list(tensors)
    vector = torch.empty(sum(t.numel() for t in tensors))
    offset = 0
    for tensor in tensors:
        view_of(vector, offset, tensor.shape).copy_(tensor.detach())
        offset += tensor.numel()
    return vector


def to_module(vector: Tensor, module: nn.Module) -> nn.Module:
    """The module, with its parameters set to the vector."""
    with torch.no_grad():
        for parameter, piece in zip(module.parameters(), pieces(vector, module), strict=True):
            parameter.copy_(piece)
    return module


def from_module(module: nn.Module) -> Tensor:
    return flat(module.parameters())


def default_layout(x: Tensor) -> Tensor:
    """A copy in torch's default layout.

    `contiguous` would not do: images of one channel count as contiguous in both layouts, keep their channels-last
    strides, and torch would go on choosing the channels-last kernels for them.
    """
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


# --- randomness -------------------------------------------------------------------------------------------------------

Noise = Callable[..., Iterator[Tensors]]
"""Of a generator, a module and a precision to draw in: endless standard normal draws, a tensor for every parameter."""


def shared_noise(generator: torch.Generator, module: nn.Module, kind: torch.dtype = torch.float32) -> Iterator[Tensors]:
    """The very numbers that a method draws from this generator into a flat vector."""
    size = sum(p.numel() for p in module.parameters())
    while True:
        yield pieces(torch.empty(size, dtype=kind).normal_(generator=generator).float(), module)


def own_noise(generator: torch.Generator, module: nn.Module, kind: torch.dtype = torch.float32) -> Iterator[Tensors]:
    """As one would draw it if nobody compared numbers: parameter by parameter."""
    while True:
        yield [torch.randn(p.shape, generator=generator, dtype=kind).float() for p in module.parameters()]


def epoch_order(n: int, passes: int, batch: int, generator: torch.Generator) -> Tensors:
    """Indices of the minibatches of `passes` passes."""
    return [index for _ in range(passes) for index in torch.randperm(n, generator=generator).split(batch)]


def step_order(n: int, count: int, batch: int, generator: torch.Generator) -> Tensors:
    """Indices of `count` minibatches."""
    return epoch_order(n, math.ceil(count / math.ceil(n / batch)), batch, generator)[:count]


# --- deterministic training -------------------------------------------------------------------------------------------

Penalty = Callable[[Sequence[Tensor]], Tensor]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over records; the target is a class, or a probability for each class."""
    if target.dim() == 1:
        return functional.cross_entropy(logits, target)
    return -(target * logits.log_softmax(1)).sum(1).mean()


def train(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    order: Tensors,
    rate: float,
    weight_decay: float = 0.0,
    penalty: Penalty | None = None,
) -> None:
    """Adam on the cross-entropy plus a penalty."""
    module.train()
    parameters = list(module.parameters())
    adam = torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay)
    for index in order:
        loss = cross_entropy(module(x[index]), y[index])
        if penalty is not None:
            loss = loss + penalty(parameters)
        adam.zero_grad()
        loss.backward()
        adam.step()


def copies(module: nn.Module) -> Tensors:
    return [p.detach().clone() for p in module.parameters()]


def proximal(mu: float, centre: Tensors) -> Penalty:
    """mu/2 ||w - centre||^2."""
    return lambda live: mu / 2 * sum(((p - c) ** 2).sum() for p, c in zip(live, centre, strict=True))


def laplace(weight: float, centre: Tensors, precision: Tensors) -> Penalty:
    """weight/2 sum_k Omega_k (w_k - centre_k)^2."""
    return lambda live: (
        weight / 2 * sum((o * (p - c) ** 2).sum() for p, c, o in zip(live, centre, precision, strict=True))
    )


def fisher(module: nn.Module, x: Tensor, y: Tensor, order: Tensors) -> Tensors:
    """sum over minibatches of (b / n) g^2."""
    module.eval()
    parameters = list(module.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for index in order:
        gradients = torch.autograd.grad(cross_entropy(module(x[index]), y[index]), parameters)
        total = [t + len(index) / len(x) * g**2 for t, g in zip(total, gradients, strict=True)]
    return total


def moreau(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    order: Tensors,
    *,
    inner_steps: int,
    strength: float,
    personal_rate: float,
    rate: float,
) -> Tensors:
    """pFedMe's double loop: theta is left in the module, w_i returned."""
    module.train()
    parameters = list(module.parameters())
    w = copies(module)
    sgd = torch.optim.SGD(parameters, lr=personal_rate)
    for index in order:
        for _ in range(inner_steps):
            loss = cross_entropy(module(x[index]), y[index]) + proximal(strength, w)(parameters)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        w = [one - strength * rate * (one - p.detach()) for one, p in zip(w, parameters, strict=True)]
    return w


@torch.no_grad()
def outputs(module: nn.Module, x: Tensor) -> Tensor:
    module.eval()
    return module(x)


@torch.no_grad()
def distance(target: Tensor, logits: Tensor) -> float:
    """KL[softmax(target) || softmax(logits)], in double precision."""
    one, other = (t.double().log_softmax(1) for t in (target, logits))
    return float(functional.kl_div(other, one, reduction="batchmean", log_target=True))


# --- Bayes by Backprop ------------------------------------------------------------------------------------------------


@dataclass
class MeanField:
    """N(mu, softplus(rho)^2) for every parameter."""

    mu: Tensors
    rho: Tensors

    @classmethod
    def of(cls, theta: Tensor, module: nn.Module) -> "MeanField":
        mu, rho = theta.chunk(2)
        return cls(pieces(mu, module), pieces(rho, module))

    @property
    def theta(self) -> Tensor:
        return torch.cat([flat(self.mu), flat(self.rho)])

    def learnable(self) -> Tensors:
        return [t.requires_grad_() for t in (*self.mu, *self.rho)]

    def normals(self, floor: float = 0.0) -> list[Normal]:
        """One distribution per parameter; without checks of the arguments, which would only cost time."""
        return [
            Normal(m, functional.softplus(r).clamp_min(floor), validate_args=False)
            for m, r in zip(self.mu, self.rho, strict=True)
        ]

    def fixed(self, floor: float = 0.0) -> list[Normal]:
        """The same as constants."""
        with torch.no_grad():
            return [Normal(n.loc.clone(), n.scale, validate_args=False) for n in self.normals(floor)]

    def draw(self, noise: Tensors) -> Tensors:
        return [m + functional.softplus(r) * e for m, r, e in zip(self.mu, self.rho, noise, strict=True)]


def divergence(q: Sequence[Normal], p: Sequence[Normal]) -> Tensor:
    return torch.stack([kl_divergence(a, b).sum() for a, b in zip(q, p, strict=True)]).sum()


def logits_at(module: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
    names = [name for name, _ in module.named_parameters()]
    return functional_call(module, dict(zip(names, weights, strict=True)), (x,))


def bayes_by_backprop(
    module: nn.Module,
    q: MeanField,
    x: Tensor,
    y: Tensor,
    order: Tensors,
    noise: Iterator[Tensors],
    rate: float,
    prior: Sequence[Normal] | None = None,
    kl_weight: float = 0.0,
    offset: Tensor | None = None,
    beside: Sequence[tuple[Tensor, Tensor]] = (),
    beside_weight: float = 0.0,
) -> None:
    """Adam on the mean cross-entropy + (kl_weight / n) KL[q || prior], in place; no prior: no such term.

    `offset` is added to the logits; `beside` has for each step other inputs and targets, whose mean cross-entropy
    counts `beside_weight` times.
    """
    module.train()
    adam = torch.optim.Adam(q.learnable(), lr=rate)
    for number, (index, eps) in enumerate(zip(order, noise, strict=False)):
        weights = q.draw(eps)
        logits = logits_at(module, weights, x[index])
        loss = cross_entropy(logits if offset is None else logits + offset, y[index])
        if beside:
            others, targets = beside[number]
            loss = loss + beside_weight * cross_entropy(logits_at(module, weights, others), targets)
        if prior is not None:
            loss = loss + kl_weight / len(x) * divergence(q.normals(), prior)
        adam.zero_grad()
        loss.backward()
        adam.step()


def two_levels(
    module: nn.Module,
    q: MeanField,
    w: MeanField,
    x: Tensor,
    y: Tensor,
    order: Tensors,
    noise: Iterator[Tensors],
    *,
    inner_steps: int,
    zeta: float,
    rate: float,
) -> None:
    """pFedBayes, in place: steps of q on -(n/b) sum log p + zeta KL[q || w], then one of w on zeta KL[q || w]."""
    module.train()
    outer, inner = (torch.optim.Adam(one.learnable(), lr=rate) for one in (w, q))
    for index in order:
        fixed_w = w.fixed()
        for _ in range(inner_steps):
            logits = logits_at(module, q.draw(next(noise)), x[index])
            misfit = functional.cross_entropy(logits, y[index], reduction="sum") * len(x) / len(index)
            loss = misfit + zeta * divergence(q.normals(), fixed_w)
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer.zero_grad()
        (zeta * divergence(q.fixed(), w.normals())).backward()
        outer.step()


@torch.no_grad()
def mean_output(module: nn.Module, q: MeanField, x: Tensor, draws: int, noise: Iterator[Tensors], kind: str) -> Tensor:
    """The mean over weight draws of the logits, or of the probabilities."""
    module.eval()
    logits = [logits_at(module, q.draw(next(noise)), x) for _ in range(draws)]
    return torch.stack(logits if kind == "mean_logits" else [one.softmax(1) for one in logits]).mean(0)


def corrected_target(phi_bar: Tensor, own: Tensor, gamma: float, kind: str) -> Tensor:
    mixed = gamma * phi_bar + (1 - gamma) * own
    return mixed.softmax(1) if kind == "mean_logits" else mixed


# --- DP-SGD -----------------------------------------------------------------------------------------------------------


def noisy_sum(
    module: nn.Module, x: Tensor, y: Tensor, index: Tensor, eps: Tensors, *, clip: float, sd: float
) -> Tensors:
    """The sum over these records of their clipped gradients, with noise, by vmap over records."""
    named = dict(module.named_parameters())

    def loss(weights: Arrays, record: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(module, weights, (record[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))({name: p.detach() for name, p in named.items()}, x[index], y[index])
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    scale = (clip / norms).clamp_max(1)
    return [torch.einsum("r,r...->...", scale, each[name]) + sd * e for name, e in zip(named, eps, strict=True)]


def dp_sgd(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    samples: Tensors,
    noise: Iterator[Tensors],
    *,
    clip: float,
    sd: float,
    rate: float,
    expected: float,
) -> None:
    """SGD on (sum of clipped gradients of records + noise) / expected batch."""
    module.train()
    parameters = list(module.parameters())
    sgd = torch.optim.SGD(parameters, lr=rate)
    for index, eps in zip(samples, noise, strict=False):
        for parameter, total in zip(parameters, noisy_sum(module, x, y, index, eps, clip=clip, sd=sd), strict=True):
            parameter.grad = total / expected
        sgd.step()


# --- Gaussian process trees -------------------------------------------------------------------------------------------

Question = tuple[list[int], list[int]]
"""The classes left and right of a node."""

JITTER = 1e-6  # of the prior variance


@dataclass(frozen=True)
class Process:
    """A node's prior, and how its posterior is sampled."""

    outputscale: float
    lengthscale: float
    chains: int
    steps: int

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """For rows of unit length, |a - b|^2 = 2 - 2 a.b."""
        return self.outputscale * torch.exp(-(1 - a @ b.T) / self.lengthscale**2)


def two_means(points: Tensor) -> Tensor:
    """Which of the points belong to the second cluster, from the two points farthest apart."""
    apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    centres = points[[int(apart.argmax()) // len(points), int(apart.argmax()) % len(points)]]
    side = None
    while True:
        gaps = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
        new = gaps[:, 1] < gaps[:, 0]
        if side is not None and torch.equal(new, side):
            return side
        side = new
        centres = torch.stack([points[~side].mean(0), points[side].mean(0)])


def questions(embedding: Tensor, y: Tensor) -> list[Question]:
    """The tree over the classes of y, level by level; the smallest class of a node is on its left."""
    found: list[Question] = []
    waiting = deque([sorted(set(y.tolist()))])
    while waiting:
        classes = waiting.popleft()
        if len(classes) < 2:
            continue
        means = torch.stack([embedding[y == c].mean(0) for c in classes])
        second = two_means(means).tolist()
        left = [c for c, s in zip(classes, second, strict=True) if s == second[0]]
        right = [c for c in classes if c not in left]
        found.append((left, right))
        waiting += [left, right]
    return found


@torch.no_grad()
def polya_gamma_gibbs(
    k: Tensor, kappa: Tensor, process: Process, normal: torch.Generator, gamma: np.random.Generator
) -> Tensor:
    """omega [chains, n]; f is drawn as f_0 + K (K + Omega^-1)^-1 (Omega^-1 kappa - f_0 - e), all chains at once."""
    shape = (process.chains, len(kappa))
    root = torch.linalg.cholesky(k)

    def omega_at(f: Tensor) -> Tensor:
        return torch.from_numpy(random_polyagamma(1.0, f.numpy(), random_state=gamma))

    omega = omega_at(torch.randn(shape, dtype=torch.float64, generator=normal) @ root.T)
    for _ in range(process.steps):
        z = torch.randn(2, *shape, dtype=torch.float64, generator=normal)
        f_0, e = z[0] @ root.T, z[1] / omega.sqrt()
        factor = torch.linalg.cholesky(k + torch.diag_embed(1 / omega))
        surprise = kappa / omega - f_0 - e
        f = f_0 + torch.cholesky_solve(surprise[:, :, None], factor)[:, :, 0] @ k
        omega = omega_at(f)
    return omega


def side_probability(given: Tensor, kappa: Tensor, asked: Tensor, omega: Tensor, process: Process) -> Tensor:
    """P(right) of the asked records: E[sigmoid(f)] by Gauss-Hermite quadrature, averaged over chains."""
    k = process.kernel(given, given) + JITTER * process.outputscale * torch.eye(len(given), dtype=given.dtype)
    cross = process.kernel(given, asked)
    factor = torch.linalg.cholesky(k + torch.diag_embed(1 / omega))
    weights = torch.cholesky_solve((kappa / omega)[:, :, None], factor)[:, :, 0]
    mean = weights @ cross
    half = torch.linalg.solve_triangular(factor, cross.expand(len(omega), -1, -1), upper=False)
    variance = process.outputscale - (half**2).sum(1)
    nodes, masses = (torch.from_numpy(a) for a in np.polynomial.hermite.hermgauss(20))
    values = mean[:, :, None] + (2 * variance)[:, :, None].sqrt() * nodes
    return (values.sigmoid() @ masses).mean(0) / math.sqrt(math.pi)


def half_of(y: Tensor, generator: torch.Generator) -> Tensor:
    """A mask of the half of every class that is asked for."""
    asked = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        mine = torch.where(y == label)[0]
        asked[mine[torch.randperm(len(mine), generator=generator)[: len(mine) // 2]]] = True
    return asked


def tree_loss(
    embedding: Tensor,
    y: Tensor,
    tree: list[Question],
    process: Process,
    normal: torch.Generator,
    gamma: np.random.Generator,
) -> Tensor:
    """Sum over nodes of (n_v / n) times the mean cross-entropy of one half given the other."""
    x = functional.normalize(embedding.double(), dim=1)
    loss = torch.zeros((), dtype=torch.float64)
    for left, right in tree:
        mine = torch.isin(y, torch.tensor(left + right))
        here, side = x[mine], torch.isin(y[mine], torch.tensor(right)).double()
        asked = half_of(y[mine], normal)
        given, kappa = here[~asked], side[~asked] - 0.5
        k = process.kernel(given, given) + JITTER * process.outputscale * torch.eye(len(given), dtype=x.dtype)
        omega = polya_gamma_gibbs(k.detach(), kappa, process, normal, gamma)
        right_probability = side_probability(given, kappa, here[asked], omega, process)
        loss = loss + len(here) / len(x) * functional.binary_cross_entropy(right_probability, side[asked])
    return loss


def train_embedding(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    process: Process,
    normal: torch.Generator,
    gamma: np.random.Generator,
    *,
    steps: int,
    rate: float,
    momentum: float,
    weight_decay: float,
    longest: float,
) -> None:
    """pFedGP's inner steps on all records; the tree is built once, from the embedding they begin with."""
    tree = questions(functional.normalize(outputs(module, x).double(), dim=1), y)
    module.train()
    sgd = torch.optim.SGD(module.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
    for _ in range(steps):
        sgd.zero_grad()
        tree_loss(module(x), y, tree, process, normal, gamma).backward()
        nn.utils.clip_grad_norm_(module.parameters(), longest)
        sgd.step()


# --- turns: a method's settings and a client in, what it keeps and sends out ------------------------------------------


@dataclass(frozen=True)
class PlainClient:
    """A client as plain torch sees it."""

    module: nn.Module
    x: Tensor
    y: Tensor
    alignment: Tensor
    batch: int
    passes: Callable[[int], int]
    rounds: int
    classes: int
    clients: int
    made: Callable[[ModelSettings | None, int], nn.Module]
    first: Tensor  # the weights that its model begins with

    @classmethod
    def of(cls, client: Client, outputs: int | None = None) -> "PlainClient":
        shape = tuple(client.train.x.shape[1:])
        return cls(
            module=build(client.model, shape, outputs or client.classes),
            x=default_layout(client.train.x),
            y=client.train.y,
            alignment=default_layout(client.alignment),
            batch=client.training.batch_size,
            passes=client.training.passes,
            rounds=client.rounds,
            classes=client.classes,
            clients=client.clients,
            made=lambda model, outputs: build(model or client.model, shape, outputs),
            first=client.initial_weights(),
        )


class Situation(NamedTuple):
    """What a turn starts from: the client's state and the server's message, both by name."""

    state: Mapping[str, Tensor]
    message: Mapping[str, Tensor]
    round_number: int
    rng: Stream
    noise: Noise = shared_noise


class Outcome(NamedTuple):
    """What a turn gives: the client's new state and what it sends, without the number of records."""

    state: Arrays
    message: Arrays


def _own_training(method: Any, client: PlainClient, now: Situation, penalty: Penalty | None = None) -> Tensor:
    """The passes over the client's records that most methods share; starts at what lies in the module."""
    passes = client.passes(now.round_number)
    order = epoch_order(len(client.x), passes, client.batch, now.rng.child("order").torch())
    train(client.module, client.x, client.y, order, method.learning_rate, method.weight_decay, penalty)
    return from_module(client.module)


def local(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.state["weights"], client.module)
    return Outcome({"weights": _own_training(method, client, now)}, {})


def fedavg(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.message["weights"], client.module)
    weights = _own_training(method, client, now)
    return Outcome({"weights": weights}, {"weights": weights})


def fedprox(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.message["weights"], client.module)
    weights = _own_training(method, client, now, proximal(method.mu, copies(client.module)))
    return Outcome({"weights": weights}, {"weights": weights})


def fola(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.message["weights"], client.module)
    omega = pieces(now.message["precision"], client.module)
    weight = method.prior_weight / max(now.round_number, 1)
    weights = _own_training(method, client, now, laplace(weight, copies(client.module), omega))
    order = epoch_order(len(client.x), 1, client.batch, now.rng.child("fisher").torch())
    found = fisher(client.module, client.x, client.y, order)
    precision = flat(o + f for o, f in zip(omega, found, strict=True))
    return Outcome({"weights": weights}, {"weights": weights, "precision": precision})


def pfedme(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.message["weights"], client.module)
    w = moreau(
        client.module,
        client.x,
        client.y,
        step_order(len(client.x), method.iterations, client.batch, now.rng.child("order").torch()),
        inner_steps=method.inner_steps,
        strength=method.strength,
        personal_rate=method.personal_rate,
        rate=method.rate,
    )
    return Outcome({"weights": from_module(client.module)}, {"weights": flat(w)})


def descend(method: Any, client: PlainClient, now: Situation, penalty: Penalty) -> int:
    """SGD of torch over the client's passes, in place; how many steps it took."""
    order = epoch_order(len(client.x), client.passes(now.round_number), client.batch, now.rng.child("order").torch())
    client.module.train()
    parameters = list(client.module.parameters())
    sgd = torch.optim.SGD(parameters, lr=method.rate)
    for index in order:
        loss = cross_entropy(client.module(client.x[index]), client.y[index]) + penalty(parameters)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return len(order)


def scaffold(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The correction as the gradient of a linear term."""
    to_module(now.message["weights"], client.module)
    x, c = now.message["weights"], now.message["control"]
    correction = pieces(c - now.state["carried"], client.module)
    steps = descend(method, client, now, lambda live: sum((p * k).sum() for p, k in zip(live, correction, strict=True)))
    y = from_module(client.module)
    control = now.state["carried"] - c + (x - y) / (steps * method.rate)
    return Outcome({"weights": y, "carried": control}, {"weights": y, "control": control})


def fedrep(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The last module with parameters is the head; each part has an Adam of its own and sees its own order."""
    head = list([one for one in client.module.modules() if list(one.parameters(recurse=False))][-1].parameters())
    body = [p for p in client.module.parameters() if not any(p is h for h in head)]
    of_body = sum(p.numel() for p in body)
    to_module(torch.cat([now.message["weights"], now.state["weights"][of_body:]]), client.module)
    passes = client.passes(now.round_number)
    of_body_epochs = round(method.body_share * passes)
    of_each = {"head": passes - of_body_epochs, "body": of_body_epochs}
    for name, part in (("head", head), ("body", body)):
        adam = torch.optim.Adam(part, lr=method.learning_rate, weight_decay=method.weight_decay)
        order = epoch_order(len(client.x), of_each[name], client.batch, now.rng.child(name, "order").torch())
        for index in order:
            adam.zero_grad()
            cross_entropy(client.module(client.x[index]), client.y[index]).backward()
            adam.step()
    weights = from_module(client.module)
    return Outcome({"weights": weights}, {"weights": weights[:of_body]})


def ditto(method: Any, client: PlainClient, now: Situation) -> Outcome:
    shared = now.message["weights"]
    centre = copies(to_module(shared, client.module))
    trained = _own_training(method, client, now)
    to_module(now.state["weights"] if now.round_number else shared, client.module)
    personal = _own_training(method, client, now, proximal(method.strength, centre))
    return Outcome({"weights": personal}, {"weights": trained})


def perfedavg(method: Any, client: PlainClient, now: Situation) -> Outcome:
    module = to_module(now.message["weights"], client.module).train()
    parameters = list(module.parameters())

    def slope(index: Tensor, along: Sequence[Tensor], far: float) -> Tensors:
        """The gradient on these records, so far along a direction from where the module is."""
        weights = [p.detach() + far * one for p, one in zip(parameters, along, strict=True)]
        weights = [one.requires_grad_() for one in weights]
        loss = cross_entropy(logits_at(module, weights, client.x[index]), client.y[index])
        return list(torch.autograd.grad(loss, weights))

    adam = torch.optim.Adam(parameters, lr=method.learning_rate, weight_decay=method.weight_decay)
    outer = _orders(client, now)
    inner, beside = (
        step_order(len(client.x), len(outer), client.batch, now.rng.child(name).torch())
        for name in ("inner", "curvature")
    )
    for d, d1, d2 in zip(inner, outer, beside, strict=True):
        v = slope(d1, slope(d, copies(module), 0.0), -method.inner_rate)
        product = [torch.zeros_like(one) for one in v]
        if method.curvature == "hessian_free":
            above, below = slope(d2, v, method.delta), slope(d2, v, -method.delta)
            product = [(one - other) / (2 * method.delta) for one, other in zip(above, below, strict=True)]
        for p, one, hv in zip(parameters, v, product, strict=True):
            p.grad = one - method.inner_rate * hv
        adam.step()
    weights = from_module(module)
    return Outcome({"weights": weights}, {"weights": weights})


def apfl(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The gradients for v and alpha by autograd, through the mixture."""
    module = client.module.train()
    live = [
        [one.requires_grad_() for one in pieces(vector, module)]
        for vector in (now.message["weights"], now.state["weights"] if now.round_number else now.message["weights"])
    ]
    w, v = live
    kind = {"lr": method.learning_rate, "weight_decay": method.weight_decay}
    adams = [torch.optim.Adam(one, **kind) for one in live]
    alpha = now.state["alpha"].clone()

    def loss(share: Tensor, index: Tensor) -> Tensor:
        mixed = [share * mine + (1 - share) * common.detach() for mine, common in zip(v, w, strict=True)]
        return cross_entropy(logits_at(module, mixed, client.x[index]), client.y[index])

    for number, index in enumerate(_orders(client, now)):
        if number == 0:
            share = alpha.requires_grad_()
            [slope] = torch.autograd.grad(loss(share, index), [share])
            alpha = (alpha.detach() - method.alpha_rate * slope).clamp(0, 1)
        for adam in adams:
            adam.zero_grad()
        (loss(alpha, index) + cross_entropy(logits_at(module, w, client.x[index]), client.y[index])).backward()
        for adam in adams:
            adam.step()
    return Outcome({"weights": flat(v), "alpha": alpha}, {"weights": flat(w)})


def ifca(method: Any, client: PlainClient, now: Situation) -> Outcome:
    models = now.message["weights"]
    losses = [cross_entropy(outputs(to_module(one, client.module), client.x), client.y) for one in models]
    cluster = torch.stack(losses).argmin()
    to_module(models[cluster], client.module)
    weights = _own_training(method, client, now)
    return Outcome({"weights": weights}, {"weights": weights, "cluster": cluster.float()[None]})


def mocha(method: Any, client: PlainClient, now: Situation) -> Outcome:
    centre = pieces(now.message["centre"], client.module)
    to_module(now.state["weights"], client.module)
    weights = _own_training(method, client, now, proximal(float(now.message["strength"]), centre))
    return Outcome({"weights": weights}, {"weights": weights})


def fedbn(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """Parameters that belong to a normalisation layer are the state's, all others the message's."""
    normal = {p for one in client.module.modules() if isinstance(one, nn.LayerNorm) for p in one.parameters()}
    own, parts, taken = pieces(now.state["weights"], client.module), [], 0
    for parameter, kept in zip(client.module.parameters(), own, strict=True):
        size = 0 if parameter in normal else parameter.numel()
        sent = now.message["weights"][taken : taken + size]
        parts.append(view_of(sent, 0, parameter.shape) if size else kept)
        taken += size
    to_module(flat(parts), client.module)
    weights = _own_training(method, client, now)
    sent = [p for p in client.module.parameters() if p not in normal]
    return Outcome({"weights": weights}, {"weights": flat(sent)})


def feddyn(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """With the paper's linear term -<g, w>, g = -alpha d, and the pull towards x."""
    x, g = now.message["weights"], pieces(-method.alpha * now.state["carried"], client.module)
    to_module(x, client.module)
    pull = proximal(method.alpha, copies(client.module))
    weights = _own_training(
        method, client, now, lambda live: pull(live) - sum((p * one).sum() for p, one in zip(live, g, strict=True))
    )
    drift = now.state["carried"] + weights - x
    return Outcome({"weights": weights, "carried": drift}, {"weights": weights, "drift": drift})


def fedpd(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """With the paper's dual variable lambda = u / eta, and the pull towards x."""
    x, dual = now.message["weights"], now.state["carried"] / method.eta
    parts = pieces(dual, client.module)
    to_module(x, client.module)
    pull = proximal(1 / method.eta, copies(client.module))
    weights = _own_training(
        method, client, now, lambda live: pull(live) + sum((p * one).sum() for p, one in zip(live, parts, strict=True))
    )
    dual = dual + (weights - x) / method.eta
    return Outcome({"weights": weights, "carried": method.eta * dual}, {"weights": weights + method.eta * dual})


def fedsplit(method: Any, client: PlainClient, now: Situation) -> Outcome:
    x, z = now.message["weights"], now.state["z"]
    to_module(x, client.module)
    descend(method, client, now, proximal(method.strength, pieces(2 * x - z, client.module)))
    half = from_module(client.module)
    z = z + 2 * (half - x)
    return Outcome({"weights": half, "z": z}, {"weights": z})


def fedpa(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The samples' covariance is inverted through a matrix as large as the samples are many (Woodbury)."""
    start = now.message["weights"]
    to_module(start, client.module).train()
    sgd = torch.optim.SGD(client.module.parameters(), lr=method.learning_rate, momentum=method.momentum)
    order = epoch_order(len(client.x), client.passes(now.round_number), client.batch, now.rng.child("order").torch())
    visited = []
    for index in order:
        sgd.zero_grad()
        cross_entropy(client.module(client.x[index]), client.y[index]).backward()
        sgd.step()
        visited.append(from_module(client.module).double())
    if now.round_number < method.burn_in_rounds:
        return Outcome({"weights": visited[-1].float()}, {"weights": visited[-1].float()})
    window = (len(order) - int(method.burn_in * len(order))) // method.samples
    x = torch.stack(visited[-window * method.samples :]).view(method.samples, window, -1).mean(1)
    mean, count = x.mean(0), len(x)
    rho_l = 1 / (1 + (count - 1) * method.shrinkage)
    a = (x - mean) * math.sqrt((1 - rho_l) / (count - 1))  # Sigma = rho_l I + a^T a
    r = start.double() - mean
    delta = (r - a.T @ torch.linalg.solve(rho_l * torch.eye(count).double() + a @ a.T, a @ r)) / rho_l
    return Outcome({"weights": mean.float()}, {"weights": (start - delta).float()})


def pfedbayes(method: Any, client: PlainClient, now: Situation) -> Outcome:
    start = now.message["weights"] if now.round_number == 0 else now.state["theta"]
    q, w = (MeanField.of(theta, client.module) for theta in (start, now.message["weights"]))
    two_levels(
        client.module,
        q,
        w,
        client.x,
        client.y,
        step_order(len(client.x), method.iterations, client.batch, now.rng.child("order").torch()),
        now.noise(now.rng.child("weights").torch(), client.module),
        inner_steps=method.inner_steps,
        zeta=method.zeta,
        rate=method.learning_rate,
    )
    return Outcome({"theta": q.theta}, {"weights": w.theta})


def _own_bayes(
    method: Any, client: PlainClient, now: Situation, q: MeanField, prior: Sequence[Normal], **more: Any
) -> None:
    bayes_by_backprop(
        client.module,
        q,
        client.x,
        client.y,
        epoch_order(len(client.x), client.passes(now.round_number), client.batch, now.rng.child("order").torch()),
        now.noise(now.rng.child("weights").torch(), client.module),
        method.learning_rate,
        prior,
        method.kl_weight,
        **more,
    )


def _first_prior(method: Any, module: nn.Module) -> list[Normal]:
    return [
        Normal(torch.zeros_like(p), torch.full_like(p, method.prior_sd), validate_args=False)
        for p in module.parameters()
    ]


def local_bnn(method: Any, client: PlainClient, now: Situation) -> Outcome:
    q = MeanField.of(now.state["theta"], client.module)
    _own_bayes(method, client, now, q, _first_prior(method, client.module))
    return Outcome({"theta": q.theta}, {})


def pvi(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """With a message that says that the client's last change was taken in."""
    mean, precision = now.message["mean"], now.message["precision"]
    factor = [now.state[name] + now.state[f"sent_{name}"] for name in ("precision", "shift")]
    left = precision - factor[0]
    sd, middle = left**-0.5, (precision * mean - factor[1]) / left
    prior = [
        Normal(m, s, validate_args=False)
        for m, s in zip(pieces(middle, client.module), pieces(sd, client.module), strict=True)
    ]
    rho = torch.log(torch.expm1(precision.double() ** -0.5)).float().clamp_max(method.initial_rho)
    q = MeanField.of(torch.cat([mean, rho]), client.module)
    _own_bayes(method, client, now, q, prior)
    mu, sigma = q.theta[: len(mean)], functional.softplus(q.theta[len(mean) :])
    change = [method.damping * (sigma**-2 - precision), method.damping * (mu * sigma**-2 - precision * mean)]
    kept = dict(zip(("precision", "shift", "sent_precision", "sent_shift"), (*factor, *change), strict=True))
    return Outcome(
        {**kept, "theta": q.theta},
        {"precision": change[0], "shift": change[1]},
    )


def langevin(
    method: Any, module: nn.Module, x: Tensor, y: Tensor, order: Tensors, noise: Iterator[Tensors]
) -> Iterator[Tensor]:
    """SGLD in place, as steps of size rate / n on the log posterior of n records: the weights after every step."""
    module.train()
    n, parameters = len(x), list(module.parameters())
    step = method.rate / n
    for index, eps in zip(order, noise, strict=False):
        prior = n * method.weight_decay / 2 * sum((p**2).sum() for p in parameters)
        log_posterior = -n * cross_entropy(module(x[index]), y[index]) - prior
        gradients = torch.autograd.grad(log_posterior, parameters)
        with torch.no_grad():
            for p, g, e in zip(parameters, gradients, eps, strict=True):
                p.add_(step / 2 * g + math.sqrt(step * method.temperature) * e)
        yield from_module(module)


def fedppd(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """Teacher and student are modules of their own; the student's decay is SGD's."""
    size, given, x = len(from_module(client.module)), now.message["weights"], client.x
    student, teacher = client.module, client.made(None, client.classes)
    to_module(given[:size], student)
    to_module(given[size:] if method.share_teacher else now.state["teacher"], teacher)
    sgd = torch.optim.SGD(student.parameters(), lr=method.student_rate, weight_decay=method.weight_decay)
    order, beside, jitter = (now.rng.child(name).torch() for name in ("order", "student order", "jitter"))
    noise = now.noise(now.rng.child("weights").torch(), teacher)
    for _ in range(client.passes(now.round_number)):
        list(langevin(method, teacher, x, client.y, epoch_order(len(x), 1, client.batch, order), noise))
        student.train()
        for index in epoch_order(len(x), 1, client.batch, beside):
            noisy = x[index] + method.jitter * torch.empty(x[index].shape).normal_(generator=jitter)
            sgd.zero_grad()
            cross_entropy(student(noisy), outputs(teacher, noisy).softmax(1)).backward()
            sgd.step()
    s, t = from_module(student), from_module(teacher)
    return Outcome({"weights": s, "teacher": t}, {"weights": torch.cat([s, t]) if method.share_teacher else s})


def beta_predbayes(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The samples, of at least as many steps as there are samples."""
    to_module(now.message["weights"], client.module)
    order = epoch_order(len(client.x), client.passes(now.round_number), client.batch, now.rng.child("order").torch())
    noise = now.noise(now.rng.child("weights").torch(), client.module)
    visited = list(langevin(method, client.module, client.x, client.y, order, noise))
    begin = math.floor(method.burn_in * len(visited))
    every = (len(visited) - begin) / method.samples
    samples = torch.stack([visited[math.ceil(begin + every * (k + 1)) - 1] for k in range(method.samples)])
    return Outcome({"samples": samples}, {"samples": samples})


def lr_bpfl(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """First the distribution over factors, then the shared parameters, each with an Adam and an order of its own."""
    module = to_module(now.message["weights"], client.module).train()
    shared = [p.detach().clone().requires_grad_() for p in module.parameters()]
    matrices = [p for p in shared if p.dim() > 1]
    sizes = [*(len(p) for p in matrices), *(p[0].numel() for p in matrices)]
    factors = nn.ParameterList(torch.zeros(size, method.rank) for size in sizes)
    holder = nn.ParameterList([*shared, *factors])
    mu, rho = (pieces(half, holder) for half in now.state["theta"].chunk(2))
    q = MeanField(mu[len(shared) :], rho[len(shared) :])
    prior = [Normal(torch.zeros_like(m), method.prior_sd, validate_args=False) for m in q.mu]

    def misfit(index: Tensor, drawn: Tensors) -> Tensor:
        masks = [1 + torch.einsum("or,ir->oi", *pair) for pair in zip(drawn, drawn[len(matrices) :], strict=False)]
        left = iter(masks)
        live = [p * next(left).reshape(p.shape) if p.dim() > 1 else p for p in shared]
        return cross_entropy(logits_at(module, live, client.x[index]), client.y[index])

    def order(purpose: str, share: float) -> Tensors:
        passes = round(share * client.passes(now.round_number))
        return epoch_order(len(client.x), passes, client.batch, now.rng.child(purpose, "order").torch())

    adam, noise = torch.optim.Adam(q.learnable(), lr=method.learning_rate), now.rng.child("weights").torch()
    for index, eps in zip(order("correction", method.correction_share), now.noise(noise, holder), strict=False):
        loss = misfit(index, q.draw(eps[len(shared) :]))
        adam.zero_grad()
        (loss + method.kl_weight / len(client.x) * divergence(q.normals(), prior)).backward()
        adam.step()
    adam, noise = torch.optim.Adam(shared, lr=method.learning_rate), now.rng.child("draws").torch()
    for index, eps in zip(order("shared", 1 - method.correction_share), now.noise(noise, factors), strict=False):
        adam.zero_grad()
        misfit(index, [one.detach() for one in q.draw(eps)]).backward()
        adam.step()
    theta = torch.cat([flat([*shared, *q.mu]), flat([*rho[: len(shared)], *q.rho])])
    return Outcome({"theta": theta}, {"weights": flat(shared)})


def _tuned_prior(
    method: Any, client: PlainClient, now: Situation, q: MeanField, target: Tensor
) -> tuple[MeanField, list[Normal]]:
    """Where local training begins, and its prior."""
    psi = MeanField.of(now.state["theta"], client.module)
    order = step_order(len(target), method.prior_steps, method.prior_batch, now.rng.child("prior order").torch())
    noise = now.noise(now.rng.child("prior weights").torch(), client.module)
    bayes_by_backprop(client.module, psi, client.alignment, target, order, noise, method.prior_learning_rate)
    return MeanField([m.detach().clone() for m in psi.mu], q.rho), psi.fixed(method.prior_sd_floor)


def fedbnn_paper(method: Any, client: PlainClient, now: Situation) -> Outcome:
    module, kind = client.module, method.consensus

    def on_alignment(q: MeanField, purpose: str) -> Tensor:
        noise = now.noise(now.rng.child(purpose, "predict").torch(), module)
        return mean_output(module, q, client.alignment, method.mc_samples, noise, kind)

    q, prior = MeanField.of(now.state["theta"], module), _first_prior(method, module)
    if "phi_bar" in now.message:
        target = corrected_target(now.message["phi_bar"], on_alignment(q, "own"), method.gamma, kind)
        q, prior = _tuned_prior(method, client, now, q, target)
    _own_bayes(method, client, now, q, prior)
    return Outcome({"theta": q.theta}, {"phi": on_alignment(q, "upload")})


def fedbnn(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """For clients without a mechanism or augmentation. The public features are given: tests/features has the truth."""
    module, classes = client.module, client.classes
    kind = "mean_logits" if method.head else method.consensus

    def on_alignment(q: MeanField, purpose: str) -> Tensor:
        noise = now.noise(now.rng.child(purpose, "predict").torch(), module)
        return mean_output(module, q, client.alignment, method.mc_samples, noise, kind)

    q, prior, beside = MeanField.of(now.state["theta"], module), _first_prior(method, module), []
    heard = now.message.get("phi_bar")
    if heard is not None:
        target = heard.softmax(1)
        if not method.head:
            target = corrected_target(heard, on_alignment(q, "own"), method.gamma, kind)
        q, prior = _tuned_prior(method, client, now, q, target)
        steps = client.passes(now.round_number) * math.ceil(len(client.x) / client.batch)
        order = step_order(len(target), steps, client.batch, now.rng.child("beside").torch())
        beside = [(client.alignment[index], target[index]) for index in order]
    offset = (classes * plain_head.own_shares(client.y, classes)).log().float()
    _own_bayes(method, client, now, q, prior, offset=offset, beside=beside, beside_weight=method.rehearsal)
    if not method.head:
        return Outcome({"theta": q.theta}, {"phi": on_alignment(q, "upload")})
    features = kernel_features(standard_features(client.alignment, "auto", False))
    z = features(client.x), client.y, features.alignment, classes, client.clients
    said = None if heard is None else (heard, now.state["sent"])
    sent = plain_head.spoken(*z, method.head_sd, said).float()
    head = plain_head.fitted(*z, method.head_sd, method.trust, heard)
    return Outcome({"theta": q.theta, "sent": sent, "head": head}, {"phi": sent})


def fedmd(method: Any, client: PlainClient, now: Situation) -> Outcome:
    module, kind = to_module(now.state["weights"], client.module), method.consensus

    def on_alignment() -> Tensor:
        logits = outputs(module, client.alignment)
        return logits if kind == "mean_logits" else logits.softmax(1)

    if "phi_bar" in now.message:
        target = corrected_target(now.message["phi_bar"], on_alignment(), method.gamma, kind)
        order = step_order(len(target), method.digest_steps, method.digest_batch, now.rng.child("digest").torch())
        train(module, client.alignment, target, order, method.digest_learning_rate)
    weights = _own_training(method, client, now)
    return Outcome({"weights": weights}, {"phi": on_alignment()})


def poisson_batches(method: Any, client: PlainClient, now: Situation, count: int) -> Tensors:
    sample = now.rng.child("sample").torch()
    uniforms = [torch.rand(len(client.x), generator=sample, dtype=torch.float64) for _ in range(count)]
    return [torch.where(one < method.sampling_rate)[0] for one in uniforms]


def dp_fedavg(method: Any, client: PlainClient, now: Situation) -> Outcome:
    start = now.message["weights"]
    to_module(start, client.module)
    if method.level == "user":
        weights = _own_training(method, client, now)
        update = (weights - start) * min(1.0, method.clip / float((weights - start).norm()))
        return Outcome({"weights": weights}, {"weights": update})
    dp_sgd(
        client.module,
        client.x,
        client.y,
        poisson_batches(method, client, now, method.steps),
        now.noise(now.rng.child("noise").torch(), client.module, torch.float64),
        clip=method.clip,
        sd=method.noise_multiplier(client.rounds) * method.clip,
        rate=method.private_rate,
        expected=method.sampling_rate * method.records,
    )
    weights = from_module(client.module)
    return Outcome({"weights": weights}, {"weights": weights})


def dp_fedsgd(method: Any, client: PlainClient, now: Situation) -> Outcome:
    to_module(now.message["weights"], client.module)
    [index] = poisson_batches(method, client, now, 1)
    eps = next(now.noise(now.rng.child("noise").torch(), client.module, torch.float64))
    sd = method.noise_multiplier(client.rounds) * method.clip
    total = noisy_sum(client.module, client.x, client.y, index, eps, clip=method.clip, sd=sd)
    return Outcome({}, {"sum": flat(total).double()})


def dp_scaffold(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """In the warm-up nothing moves."""
    module = to_module(now.message["weights"], client.module)
    noise = now.noise(now.rng.child("noise").torch(), module, torch.float64)
    correction = pieces(now.message["control"] - now.state["carried"], module)
    sd, met = method.noise_multiplier(client.rounds) * method.clip, []
    for index, eps in zip(poisson_batches(method, client, now, method.steps), noise, strict=False):
        total = noisy_sum(module, client.x, client.y, index, eps, clip=method.clip, sd=sd)
        gradient = [one / (method.sampling_rate * method.records) for one in total]
        met.append(flat(gradient))
        if now.round_number > 0:
            with torch.no_grad():
                for parameter, one, by in zip(module.parameters(), gradient, correction, strict=True):
                    parameter.sub_(method.rate * (one + by))
    y, control = from_module(module), torch.stack(met).mean(0)
    return Outcome({"weights": y, "carried": control}, {"weights": y, "control": control})


def pate(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """The student, and the noisy counts of teachers that begin at the module's own first weights."""
    count = min(method.points, len(client.alignment))
    points = client.alignment[[number * len(client.alignment) // count for number in range(count)]]
    module = to_module(now.state["weights"], client.module)
    if "labels" in now.message:
        order = step_order(count, method.digest_steps, method.digest_batch, now.rng.child("digest").torch())
        train(module, points, now.message["labels"], order, method.digest_learning_rate)
    weights = _own_training(method, client, now)
    contents = [x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(client.x, client.y, strict=True)]
    hashes = [int.from_bytes(hashlib.sha256(one).digest()[:8], "little") for one in contents]
    parts = torch.tensor([one % method.teachers for one in hashes])
    counts = torch.zeros(count, client.classes, dtype=torch.float64)
    for number in range(method.teachers):
        x, y = client.x[parts == number], client.y[parts == number]
        generator = now.rng.child("teacher", number, "order").torch()
        order = epoch_order(len(x), method.teacher_epochs, client.batch, generator)
        if len(x):
            train(to_module(client.first, module), x, y, order, method.learning_rate, method.weight_decay)
            counts += functional.one_hot(outputs(module, points).argmax(1), client.classes)
    z = noise_multiplier(method.epsilon * (1 - 1e-4), method.delta)
    noise = torch.empty(counts.numel(), dtype=torch.float64).normal_(generator=now.rng.child("noise").torch())
    votes = counts + z * math.sqrt(2 * count) * noise.view_as(counts)
    return Outcome({"weights": weights, "votes": votes}, {"votes": votes})


def pfedgp(method: Any, client: PlainClient, now: Situation) -> Outcome:
    """For clients with fewer records than the cap; `client.module` must have as many outputs as the embedding."""
    to_module(now.message["weights"], client.module)
    train_embedding(
        client.module,
        client.x,
        client.y,
        Process(method.outputscale, method.lengthscale, method.train_chains, method.gibbs_steps),
        now.rng.child("gibbs").torch(),
        now.rng.child("omega").numpy(),
        steps=method.inner_steps,
        rate=method.learning_rate,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        longest=method.gradient_clip,
    )
    weights = from_module(client.module)
    return Outcome({"weights": weights}, {"weights": weights})


def _orders(client: PlainClient, now: Situation) -> Tensors:
    return epoch_order(len(client.x), client.passes(now.round_number), client.batch, now.rng.child("order").torch())


def fedproto(method: Any, client: PlainClient, now: Situation) -> Outcome:
    body, head = client.made(None, method.embedding), nn.Linear(method.embedding, client.classes)
    both = to_module(now.state["weights"], nn.ModuleList([body, head]))
    adam = torch.optim.Adam(both.parameters(), lr=method.learning_rate, weight_decay=method.weight_decay)
    both.train()
    for index in _orders(client, now):
        z, y = body(client.x[index]).clamp_min(0), client.y[index]
        loss = cross_entropy(head(z), y)
        for row, label in zip(z, y.tolist(), strict=True):
            if now.message["known"][label]:
                distance = ((row - now.message["prototypes"][label]) ** 2).sum() / method.embedding
                loss = loss + method.strength * distance / len(y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    z = outputs(body, client.x).clamp_min(0)
    means = [
        z[client.y == c].mean(0) if (client.y == c).any() else torch.zeros(z.shape[1]) for c in range(client.classes)
    ]
    counts = torch.bincount(client.y, minlength=client.classes).float()
    return Outcome({"weights": from_module(both)}, {"prototypes": torch.stack(means), "counts": counts})


def _mutual(method: Any, client: PlainClient, now: Situation, weigh: Callable[..., Sequence[Tensor]]) -> Outcome:
    """Both networks on the same minibatches; `weigh` makes the two losses of cross-entropies and divergences."""
    messenger = ModelSettings(method.messenger, options=method.messenger_options)
    own = to_module(now.state["weights"], client.made(None, client.classes)).train()
    sent = to_module(now.message["weights"], client.made(messenger, client.classes)).train()
    kind = {"lr": method.learning_rate, "weight_decay": method.weight_decay}
    adams = [torch.optim.Adam(module.parameters(), **kind) for module in (own, sent)]
    for index in _orders(client, now):
        logits = [module(client.x[index]) for module in (own, sent)]
        fixed = [Categorical(logits=one.detach()) for one in logits]
        kl = [kl_divergence(fixed[1 - k], Categorical(logits=logits[k])).mean() for k in (0, 1)]
        for adam, loss in zip(adams, weigh([cross_entropy(one, client.y[index]) for one in logits], kl), strict=True):
            adam.zero_grad()
            loss.backward()
            adam.step()
    return Outcome({"weights": from_module(own)}, {"weights": from_module(sent)})


def fml(method: Any, client: PlainClient, now: Situation) -> Outcome:
    def weigh(ce: Tensors, kl: Tensors) -> Tensors:
        return [w * c + (1 - w) * k for w, c, k in zip((method.alpha, method.beta), ce, kl, strict=True)]

    return _mutual(method, client, now, weigh)


def fedkd(method: Any, client: PlainClient, now: Situation) -> Outcome:
    def weigh(ce: Tensors, kl: Tensors) -> Tensors:
        total = (ce[0] + ce[1]).item()
        return [c + method.strength * k / total for c, k in zip(ce, kl, strict=True)]

    return _mutual(method, client, now, weigh)


def _before_the_last(module: nn.Module, x: Tensor) -> Tensor:
    """Of the built-in networks that are layers one after the other."""
    for layer in [*module][:-1]:
        x = layer(x)
    last = module[-1]
    return x if isinstance(last, nn.Linear) else _before_the_last(last, x)


def _hsic(one: Tensor, other: Tensor) -> Tensor:
    h = torch.eye(len(one)) - 1 / len(one)
    return torch.trace(one @ h @ other @ h)


def fedhenn(method: Any, client: PlainClient, now: Situation) -> Outcome:
    module, public = to_module(now.state["weights"], client.module), client.alignment[: method.points]
    orders = _orders(client, now)
    beside = step_order(len(public), len(orders), method.align_batch, now.rng.child("align").torch())
    adam = torch.optim.Adam(module.parameters(), lr=method.learning_rate, weight_decay=method.weight_decay)
    for index, other in zip(orders, beside, strict=True):
        z, given = _before_the_last(module, public[other]), now.message["kernel"][other][:, other]
        own = z @ z.T
        alike = _hsic(own, given) / (_hsic(own, own) * _hsic(given, given)).sqrt()
        loss = cross_entropy(module(client.x[index]), client.y[index]) + method.strength * (1 - alike)
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        z = _before_the_last(module, public)
        z = z - z.mean(0)
        kernel = z @ z.T / torch.linalg.matrix_norm(z @ z.T)
    return Outcome({"weights": from_module(module)}, {"kernel": kernel})


def flexifed(method: Any, client: PlainClient, now: Situation) -> Outcome:
    shared = now.message["weights"]
    start = now.state["weights"].clone()
    start[: len(shared)] = shared
    to_module(start, client.module)
    weights = _own_training(method, client, now)
    return Outcome({"weights": weights}, {"weights": weights[: len(shared)]})


TURNS: dict[str, Callable[[Any, PlainClient, Situation], Outcome]] = {
    "fedbnn": fedbnn,
    "fedbnn_paper": fedbnn_paper,
    "fedmd": fedmd,
    "feddf": fedavg,  # what FedDF and FedBE add is at the server
    "fedavg": fedavg,
    "fedprox": fedprox,
    "pfedme": pfedme,
    "scaffold": scaffold,
    "fedopt": fedavg,  # what FedOpt adds is at the server
    "fedrep": fedrep,
    "ditto": ditto,
    "perfedavg": perfedavg,
    "apfl": apfl,
    "ifca": ifca,
    "mocha": mocha,
    "fedbn": fedbn,
    "feddyn": feddyn,
    "fedpd": fedpd,
    "fedsplit": fedsplit,
    "pfedbayes": pfedbayes,
    "pfedgp": pfedgp,
    "fola": fola,
    "fedproto": fedproto,
    "fml": fml,
    "fedkd": fedkd,
    "fedhenn": fedhenn,
    "flexifed": flexifed,
    "fedbe": fedavg,
    "fedpa": fedpa,
    "pvi": pvi,
    "fedppd": fedppd,
    "beta_predbayes": beta_predbayes,
    "lr_bpfl": lr_bpfl,
    "fedma": fedavg,  # what FedMA adds is at the server
    "dp_fedavg": dp_fedavg,
    "dp_fedsgd": dp_fedsgd,
    "dp_scaffold": dp_scaffold,
    "pate": pate,
    "local_bnn": local_bnn,
    "local": local,
}


def feddf_server(
    method: Any,
    modules: Mapping[str, nn.Module],
    models: Sequence[ModelSettings],
    replies: Mapping[int, Mapping[str, Tensor]],
    alignment: Tensor,
    rng: Stream,
) -> dict[str, Tensor]:
    """FedDF's distillation when every architecture is heard from: the new student of each."""
    kinds = [model.architecture for model in models]
    logits = [outputs(to_module(r["weights"], modules[kinds[i]]), alignment) for i, r in replies.items()]
    target = torch.stack(logits).mean(0)
    students = {}
    for number, kind in enumerate(dict.fromkeys(kinds)):
        mine = [replies[i] for i in replies if kinds[i] == kind]
        records = sum(float(r["records"]) for r in mine)
        start = torch.stack([r["weights"] * float(r["records"]) / records for r in mine]).sum(0)
        module = to_module(start, modules[kind])
        before = distance(target, outputs(module, alignment))
        generator = rng.child("distil", number).torch()
        order = step_order(len(alignment), method.distill_steps, method.distill_batch, generator)
        train(module, alignment, target.softmax(1), order, method.distill_learning_rate)
        better = distance(target, outputs(module, alignment)) < before
        students[kind] = from_module(module) if better else start
    return students
