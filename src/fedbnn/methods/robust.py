"""Joining what clients say where some of them may lie: instead of the mean m(x) of `fedbnn.methods.consensus`.

x is a stack of N clients' arrays. At most half of the clients lie, in whatever way, and may know all of this.

- median      of each number                                                     (Yin, Chen, Ramchandran, Bartlett 2018)
- trimmed     mean of each number without its floor(share N) smallest and largest ones                       (the same)
- geometric   argmin_m sum_i |x_i(a) - m| for each alignment point a, by Weiszfeld's iteration (Pillutla et al. 2022)
- uncertain   sum_i t_i w_i(a) x_i(a) / sum_i t_i w_i(a): who disagrees with the others by more than its own uncertainty
              allows is weighed down there (w), and who misses them all over the alignment set is left out (t)

*Uncertain.* A Bayesian client states with its distribution p over the label y of a point how far off it expects to be:

    E|y - p|^2 = 1 - |p|^2,        y as a one-hot vector, if y ~ p.

A consensus m that knows more than the client, as it has heard the others too, is a finer expectation of the same y:
p = E[m | what the client knows], so that

    E|m - p|^2 = E|m|^2 - |p|^2 <= 1 - |p|^2.

That holds for whoever is calibrated, which Bayesian clients are by design and point estimates are not. A liar must
choose: to be sure, and be found out where the others disagree, or to be unsure, and say little. With c the median over
clients of p, which a minority cannot move out of what honest clients say, and r_i = |p_i - c| / allowed_i,

    allowed_i^2 = 1 - |p_i|^2 + SLACK^2,        w_i = 1 if r_i <= 1, else 1 / r_i^2,

a redescending M-estimator (Huber 1981): the pull w r of a client falls with what is too much. Nor may its answers miss
those of the others all over the alignment set: from p = E[m | what it knows] follows, with u the uniform distribution,

    E<m - u, p - u> = E|p - u|^2,        so that  sum_a <m - u, p_i - u> / sum_a |p_i - u|^2  is 1 on average:

who means what it says is right as often as it claims, also where it claims little. No m is known. The median c is a bad
one: what fewer than half of the clients know of is not in it, and where clients hold different classes that is most of
what there is to know. So each of the others is asked, and the median is taken of what they say, which is between what
two honest ones say however a minority lies:

    b_i = median over j != i of  sum_a <p_j - u, p_i - u> / sum_a |p_i - u|^2

A client is left out (t_i = 0) that is, for v_i = b_i or v_i = mean_a w_i(a), unusually far below the others, as Hampel
(1974) rejects, and not even half as good as is usual:

    v_i < v - max(v / 2, SPREADS * 1.4826 median of v_j - v over those j that are not below v, LEAST)

with v the median over clients. Clients that hold other classes disagree at some points, as all honest ones do, and the
usual spread of that is what a client may have; lies make v_i smaller, so it is the spread of the upper half. Where most
agree well that is little, and who holds what few others do is no liar for it: half of what is usual may be missing. Who
claims NOTHING, p near u, need not be right. If all are as unsure as that, all weights are 1 and it is the mean. A
judgement that would leave fewer than half of the clients is none, and leaves all.

Logits can grow without any change of p. Those of a client at a point that are longer than LONGEST times the median
length there are made as short as that.

*Contributions.* Heads of FedBNN send f_i + site_i (`fedbnn.methods.head`): what they believe, and what they hold that
others do not. Beliefs agree in the end, sites never do: they add up to zero, and their mean is what makes the consensus
that of all records. So a rule R joins beliefs, and sites keep their mean, but for the length of each:

    phi_bar = R(f) + 1/N sum_i min(1, (LONGEST median_j |site_j| / |site_i|)^2) site_i

(with the weights t_i w_i in both parts, if the rule has any; t_i judges what is believed, and all that was sent). Where
all beliefs agree and no site is too long, that is the plain mean, whose fixed point it therefore keeps. A liar that
repeats itself lies with its site alone, and what lies within LONGEST times the usual length cannot be told from a
client with records of its own; unless, for the last rule, what it sends disagrees with all that others send.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Robust = Literal["none", "median", "trimmed", "geometric", "uncertain"]

SLACK = 0.3  # by which two that are sure may differ; chosen on validation records
LONGEST = 2.0  # median lengths that a client's numbers may have
SPREADS, LEAST = 3.0, 0.05  # robust standard deviations, and the least distance, by which one may be below the usual
NOTHING = 1e-3  # |p - u|^2 of who claims so little that it need not be right
_STEPS, _CLOSE = 200, 1e-9  # of Weiszfeld's iteration


def median(x: Tensor) -> Tensor:
    """Of each number over the first dimension, between the middle two if there are two."""
    ordered = x.sort(0).values
    return (ordered[(len(x) - 1) // 2] + ordered[len(x) // 2]) / 2


def trimmed(x: Tensor, share: float) -> Tensor:
    """The mean of each number over the first dimension without that share of them at either end."""
    cut = int(share * len(x))
    return x.sort(0).values[cut : len(x) - cut].mean(0)


def geometric(x: Tensor) -> Tensor:
    """argmin_m sum_i |x_i - m| over the last dimension, for every place of those between."""
    x = x.double()
    found = median(x)
    for _ in range(_STEPS):
        pull = 1 / torch.linalg.vector_norm(x - found, dim=-1, keepdim=True).clamp_min(_CLOSE)
        new = (pull * x).sum(0) / pull.sum(0)
        moved, found = float((new - found).abs().max()) if x.numel() else 0.0, new
        if moved < _CLOSE:
            break
    return found


def krum(x: Tensor, share: float) -> Tensor:
    """The mean of the clients that multi-Krum chooses of x, clients x weights, where that share of them may lie."""
    clients = len(x)
    liars = math.ceil(share * clients - 1e-9)
    near = max(1, min(clients - liars - 2, clients - 1))
    flat = x.double()
    apart = torch.stack([(flat - one).square().sum(1) for one in flat])  # exactly alike for whoever is alike
    apart.fill_diagonal_(torch.inf)
    scores = apart.sort(1).values[:, :near].sum(1)
    chosen = scores.sort(stable=True).indices[: clients - liars]
    return x[chosen.sort().values].mean(0)


def agreement(probs: Tensor) -> Tensor:
    """w_i at each point, clients x points, of distributions clients x points x classes."""
    allowed = 1 - probs.square().sum(-1) + SLACK**2
    apart = (probs - _centre(probs)).square().sum(-1)
    return (allowed / apart.clamp_min(1e-12)).clamp_max(1.0)


def trusted(*said: Tensor) -> Tensor:
    """t_i of each client that said these distributions, clients x points x classes: 1, or 0 for who is left out."""
    trust = torch.stack([_usual(agreement(probs).mean(1)) * _usual(calibration(probs)) for probs in said]).prod(0)
    return trust if 2 * trust.sum() >= len(trust) else torch.ones_like(trust)


def calibration(probs: Tensor) -> Tensor:
    """b_i: how much of what each client claims beyond the uniform distribution the others bear out."""
    clients, points, classes = probs.shape
    if clients == 1:
        return probs.new_ones(1)
    beyond = (probs - 1 / classes).flatten(1)
    shared = beyond @ beyond.T
    claimed = shared.diagonal()
    others = ~torch.eye(clients, dtype=torch.bool)
    found = median((shared / claimed.clamp_min(1e-12)[:, None])[others].view(clients, -1).T)
    return torch.where(claimed / points < NOTHING, 1.0, found)


def _usual(values: Tensor) -> Tensor:
    """1 for who is not too far below the others, else 0."""
    middle = median(values)
    above = values - middle
    spread = 1.4826 * median(above[above >= 0])
    return (-above <= torch.maximum(middle / 2, SPREADS * spread).clamp_min(LEAST)).to(values.dtype)


def _centre(probs: Tensor) -> Tensor:
    """c: the median over clients, as distributions."""
    centre = median(probs)
    return centre / centre.sum(-1, keepdim=True).clamp_min(1e-12)


def shortened(x: Tensor) -> Tensor:
    """The arrays x, of which none is longer at a point than LONGEST times the median over clients."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (LONGEST * median(length) / length.clamp_min(1e-30)).clamp_max(1.0)


def kept(sites: Tensor) -> Tensor:
    """The sites, each with the weight that its length leaves it."""
    length: Tensor = torch.linalg.vector_norm(sites, dim=(1, 2), keepdim=True)
    return sites * (LONGEST * median(length) / length.clamp_min(1e-30)).square().clamp_max(1.0)


def joined(x: Tensor, robust: Robust, share: float, sites: Tensor | None = None, *, logits: bool = False) -> Tensor:
    """What is instead of the mean, points x classes; x are beliefs, clients x points x classes, beside their sites."""
    x = x.double()
    held = torch.zeros_like(x) if sites is None else kept(sites.double())
    match robust:
        case "uncertain":
            sent = x if sites is None else x + sites
            believed, told = (one.softmax(-1) if logits else one.clamp_min(0) for one in (x, sent))
            weights = (agreement(believed) * trusted(believed, told)[:, None]).unsqueeze(-1)
            said = (shortened(x) if logits else x) + held
            return ((weights * said).sum(0) / weights.sum(0)).float()
        case "median":
            found = median(x)
        case "trimmed":
            found = trimmed(x, share)
        case "geometric":
            found = geometric(x)
        case _:
            found = x.mean(0)
    return (found + held.mean(0)).float()
