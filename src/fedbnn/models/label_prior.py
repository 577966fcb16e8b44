"""How likely each class is before its record is seen, and what another such prior does to a prediction.

A model that was trained where class y had the share trained(y) answers, where it has the share asked(y) and records
within a class look the same, by Bayes' rule (Saerens, Latinne, Decaestecker 2002):

    p(y | x, asked)  is proportional to  p(y | x) * asked(y) / trained(y)

`fedbnn.models.bayes.Prediction.under` takes that ratio. Priors are vectors of shares that sum to one, in double
precision on the CPU.
"""

import math
from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing

Known = Literal["own", "uniform", "estimate"]
"""The client's own class shares, every class alike, or as estimated from the inputs themselves."""

Prior = Known | Sequence[float] | Tensor
"""A prior over labels as a user may ask for it: by its name, or a share (not normalised) for each class."""

_IMPOSSIBLE = 1e-12  # the least share of a class in training: a ratio stays finite


def uniform(classes: int) -> Tensor:
    """Every class alike."""
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def smoothed_shares(labels: Tensor, classes: int) -> Tensor:
    """(n_c + 1/2) / (n + classes / 2), the shares of the classes among n labels (Krichevsky and Trofimov 1981).

    They are the mean of their posterior under Jeffreys' prior: a class that was not seen is rare, not impossible.
    """
    counts = torch.bincount(labels.cpu(), minlength=classes).double()
    return (counts + 0.5) / (len(labels) + classes / 2)


def ratio(asked: Tensor, trained: Tensor) -> Tensor:
    """asked(y) / trained(y): what `Prediction.under` multiplies by."""
    return asked / trained.clamp_min(_IMPOSSIBLE)


def estimate_prior(probs: Tensor, trained: Tensor, steps: int = 1000, tolerance: float = 1e-7) -> Tensor:
    """The prior under which the inputs are likeliest, of p(y | x) (n x classes) under the prior `trained`.

    From `trained` on, until no share changes by more than `tolerance` (Saerens et al. 2002, eq. 2.6):

        prior(y)  <-  mean over inputs x of  p(y | x, prior)

    This is expectation maximisation: no step lowers sum_x log sum_y p(y | x) prior(y) / trained(y), which is concave.
    """
    if len(probs) == 0:
        raise UserError("prior 'estimate': there are no inputs to estimate it from")
    if not bool(probs.isfinite().all()):
        raise UserError("prior 'estimate': the model predicts values that are not finite")
    likelihoods = probs.double() / trained.clamp_min(_IMPOSSIBLE)  # of each input given its class, up to a factor
    prior = trained
    for _ in range(steps):
        joint = likelihoods * prior
        new = (joint / joint.sum(1, keepdim=True)).mean(0)
        change, prior = float((new - prior).abs().max()), new
        if change <= tolerance:
            break
    return prior / prior.sum()


def checked(prior: Prior, classes: int) -> Known | list[float]:
    """A known name, or shares that sum to one; a UserError for anything else."""
    if isinstance(prior, str):
        if prior in get_args(Known):
            return prior
        raise UserError(f"prior {prior!r}: it is own, uniform, estimate, or {classes} shares{_hint(prior)}")
    try:
        shares = [float(share) for share in prior]
    except (TypeError, ValueError):
        raise UserError(f"prior {prior!r}: its shares are not numbers") from None
    told = ", ".join(f"{share:g}" for share in shares)
    if len(shares) != classes:
        raise UserError(f"prior {told}: it has {len(shares)} shares, there are {classes} classes")
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        raise UserError(f"prior {told}: every share must be a number of at least 0")
    total = sum(shares)
    if not 0 < total < math.inf:
        raise UserError(f"prior {told}: the shares must have a sum above 0 that is finite")
    return [share / total for share in shares]


def parsed(text: str, class_names: Sequence[str]) -> Known | list[float]:
    """What `checked` gives, from a user's text: a known name, `0.9,0.1` in the order of the classes, or `yes=9,no=1`.

    Classes that are not named beside others have a share of zero.
    """
    if text in get_args(Known):
        return cast(Known, text)
    pieces = [piece.strip() for piece in text.split(",")]
    if not any("=" in piece for piece in pieces):
        numbers = [_number(piece) for piece in pieces]
        if any(number is None for number in numbers):
            raise UserError(
                f"prior {text!r}: it is own, uniform, estimate, {len(class_names)} shares as in 0.9,0.1, or shares by "
                f"name as in {class_names[0]}=0.9{_hint(text)}"
            )
        return checked([number for number in numbers if number is not None], len(class_names))
    shares: dict[str, float] = {}
    for piece in pieces:
        name, _, value = piece.rpartition("=")
        share = _number(value)
        if name not in class_names:
            raise UserError(
                f"prior {text!r}: there is no class {name!r} (there are {listing(class_names)})"
                f"{did_you_mean(name, class_names)}"
            )
        if share is None or name in shares:
            raise UserError(f"prior {text!r}: {piece!r} is not a class and its one share, as in {class_names[0]}=0.9")
        shares[name] = share
    return checked([shares.get(name, 0.0) for name in class_names], len(class_names))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _hint(text: str) -> str:
    return did_you_mean(text, get_args(Known))
