"""How the server joins the clients' outputs on the alignment set into one consensus.

phi is a stack of N clients' outputs, N x points x classes; every client weighs the same.

- mean_logits           1/N sum_j phi_j                                            (Makhija, Ghosh, Ho 2023)
- mean_probabilities    m(x) = 1/N sum_j p_j(x)
- sharpened             m(x)^power, renormalised. Where only some clients hold a class, the others' guesses dilute the
                        mean of even a plain case; the power undoes the dilution and keeps the order.
- corrected             m_c is first divided by its average over the alignment set, then sharpened. A class that few
                        clients hold has a small mean probability everywhere; the division undoes that without knowing
                        who holds what. It assumes that the classes of the alignment set are roughly balanced.

- by_class              sum_j v_jc p_jc, then sharpened, with v_jc = b_jc / sum_i b_ic^2 and b_jc the mean of p_jc over
                        the alignment set: who gives a class much probability overall knows it, and is listened to on
                        it. For teachers trained with noise, who are all unsure.
- projected             m's nearest point on the simplex, for outputs with noise on them.

Clients send logits for `mean_logits` and probabilities for the others; the consensus is of the same kind.
"""

from typing import Literal

import torch
from torch import Tensor

from fedbnn.federation.message import Distributions, Form, Numbers
from fedbnn.models.bayes import Prediction
from fedbnn.privacy import onto_simplex

Rule = Literal["mean_logits", "mean_probabilities", "sharpened", "corrected", "by_class", "projected"]

_LEAST = 1e-30  # instead of a sum of nothing


def output_of(prediction: Prediction, rule: Rule) -> Tensor:
    """What a client sends under this rule."""
    return prediction.logits if rule == "mean_logits" else prediction.probs


def output_form(rule: Rule, shape: tuple[int, ...]) -> Form:
    """What the server lets in of that: no logit that is absurd, no probabilities off the simplex."""
    return Numbers(shape) if rule == "mean_logits" else Distributions(shape)


def target_of(consensus: Tensor, own: Tensor, gamma: float, rule: Rule) -> Tensor:
    """The corrected target gamma * consensus + (1 - gamma) * own, as class probabilities."""
    mixed = gamma * consensus + (1 - gamma) * own
    return mixed.softmax(1) if rule == "mean_logits" else mixed


def join(phi: Tensor, rule: Rule, power: float, mean: Tensor | None = None) -> Tensor:
    """The consensus, points x classes; `mean` stands for the clients' mean, where they are not all believed alike."""
    if mean is None:
        mean = torch.einsum("j,jnc->nc", phi.new_ones(len(phi)) / len(phi), phi)
    if rule in ("mean_logits", "mean_probabilities"):
        return mean
    if rule == "projected":
        return onto_simplex(mean).float()
    # A negative probability can only come from a client that is broken or lies, and its power is no number.
    mean = mean.clamp_min(0)
    if rule == "by_class":
        phi = phi.clamp_min(0)
        believed = phi.mean(1)
        votes = believed / believed.square().sum(0).clamp_min(1e-12)
        mean = (votes.unsqueeze(1) * phi).sum(0)
    if rule == "corrected":
        mean = mean / mean.mean(0).clamp_min(1e-12)
    sharp = (mean / mean.sum(1, keepdim=True).clamp_min(_LEAST)).pow(power)
    return sharp / sharp.sum(1, keepdim=True).clamp_min(_LEAST)
