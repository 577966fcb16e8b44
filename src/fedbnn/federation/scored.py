"""The models that a method is scored by, and what each says of records under the label prior that it is asked for.

In regression there are no label priors: what a model says is put into the target's own unit here.

A method names its variants; that the server's model is also asked under a client's own class shares, and that variants
of one and the same state are drawn once, holds for all methods and is here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedbnn.base.devices import CPU
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State, Variant
from fedbnn.federation.parties import Client
from fedbnn.models.label_prior import Known, estimate_prior, ratio, uniform
from fedbnn.models.regression import Answer, Mixture


def scored_models(
    method: Method[Any, Any], state: State, client: Client, message: Message, rng: Stream
) -> dict[Variant, State]:
    """The method's own variants, the headline first, and the server's model once more for the client's own shares."""
    models: dict[Variant, State] = dict(method.scored(state, client, message, rng))
    if "global" in models and not client.regression:
        models.setdefault("global_own_prior", models["global"])
    return models


def predicted(
    method: Method[Any, Any], models: Mapping[Variant, State], client: Client, x: Tensor, rng: Stream
) -> dict[Variant, Answer]:
    """What each variant says of x, on the CPU, under its own label prior; a state that several share is asked once."""
    raw: dict[int, Answer] = {}
    for state in models.values():
        if id(state) not in raw:
            raw[id(state)] = method.predict(state, client, x, rng).to(CPU)
    return {variant: answered(method, raw[id(state)], variant, client) for variant, state in models.items()}


def answered(
    method: Method[Any, Any],
    raw: Answer,
    variant: Variant,
    client: Client,
    prior: Known | Sequence[float] | None = None,
) -> Answer:
    """A variant's raw prediction under the label prior that it is asked for: the given one, or else the variant's.

    In regression, where there is no such prior: in the target's own unit.
    """
    if isinstance(raw, Mixture):
        return raw if client.scale is None else raw.in_units(client.scale)
    trained = method.trained_prior(variant, client)
    match prior:
        case None:
            asked = method.asked_prior(variant, client)
        case "own":
            asked = client.own_shares
        case "uniform":
            asked = uniform(client.classes)
        case "estimate":
            asked = estimate_prior(raw.probs, trained)
        case shares:
            asked = torch.tensor(shares, dtype=torch.float64)
    return replace(raw, prior=trained) if asked is None else raw.under(ratio(asked, trained), asked)
