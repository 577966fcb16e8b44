"""Which weights of a network have a posterior; each of the others has one value, and is known as far as it goes."""

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing

Which = Literal["all", "last_layer"] | list[str]


def names_of(which: Which, parameters: Iterable[str], model: str) -> set[str]:
    """The names of the parameters that are meant; `parameters` are those that could be, in the module's order.

    The last layer is the one that the module names last. A name stands for a parameter or for all of a layer:
    'head.weight', 'head'.
    """
    known = list(parameters)
    if which == "all":
        return set(known)
    if which == "last_layer":
        which = [known[-1].rpartition(".")[0] or known[-1]] if known else []
    found = {name: {one for one in known if one == name or one.startswith(f"{name}.")} for name in which}
    for name, those in found.items():
        if not those:
            raise UserError(
                f"model '{model}': bayesian names '{name}', and there is no such trainable layer or parameter"
                f"{did_you_mean(name, known)} (there are {listing(known)})"
            )
    if not found:
        raise UserError(f"model '{model}': bayesian names no layer: give all, last_layer or a list of names")
    return set().union(*found.values())


def without_posterior(which: Which, spans: Mapping[str, slice], model: str) -> Tensor:
    """Which places of a network's flat buffer have one value each [size]."""
    chosen = names_of(which, spans, model)
    known = torch.ones(max(span.stop for span in spans.values()), dtype=torch.bool)
    for name in chosen:
        known[spans[name]] = False
    return known
