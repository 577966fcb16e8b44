"""What a body is: a fixed function from inputs, as they were loaded, to features. It is the same for whoever names it.

`efficientnet_lite0`, `efficientnet_lite1` or `efficientnet_lite2` with ImageNet's weights, or a user's own as
`package.module:factory`, a function `(input_shape, **options) -> torch.nn.Module`. Nothing in it is trained or sent.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.imports import factory_of
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.bodies.efficientnet_lite import efficientnet_lite
from fedbnn.features.bodies.weights import KNOWN
from fedbnn.features.feature_store import on_disk
from fedbnn.features.public import digest_of, kept

Factory = Callable[..., nn.Module]

BODIES: dict[str, Factory] = {name: partial(efficientnet_lite, name) for name in KNOWN}
_BATCH = 4  # records at once: what lies between the layers then stays in a core's cache
_PROBES = 4  # made-up records that tell one body from another


@dataclass(frozen=True, eq=False)
class Body:
    """Attributes:

    module: the function.
    digest: of its name, its options and what it makes of made-up records.
    width: how many features it gives.

    """

    module: nn.Module
    digest: str
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        """Features of records [n, width]; kept for the last so many sets of them."""
        digest = digest_of(self.digest, x)
        return kept(_seen, 64, digest, lambda: on_disk(digest, lambda: _features(self.module, x)))


_seen: dict[str, Tensor] = {}
_known: dict[str, Body] = {}


def body_of(name: str, options: Mapping[str, Any], input_shape: tuple[int, ...]) -> Body:
    """The body of this name for records of this shape, made once in a process."""
    key = json.dumps([name, dict(options), input_shape], sort_keys=True)
    return kept(_known, 8, key, lambda: _made(name, options, input_shape, key))


def _made(name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], key: str) -> Body:
    factory = factory_of("body", name, BODIES)
    try:
        inspect.signature(factory).bind(input_shape, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"body '{name}' with options {dict(options)}: {error}") from error
    probes = torch.rand(_PROBES, *input_shape, generator=Stream(("probes",)).torch())
    try:
        with repeatable(Stream(("body",))):
            module = factory(input_shape, **options)
        if not isinstance(module, nn.Module):
            raise TypeError(f"it returned a {type(module).__name__}, not a torch.nn.Module")
        features = _features(module, probes)
    except UserError:
        raise
    except Exception as error:  # a module of the user's may fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"body '{name}' cannot take records of shape {input_shape}: {reason}") from error
    if features.dim() != 2 or len(features) != _PROBES or features.shape[1] == 0:
        raise UserError(
            f"body '{name}' gives {tuple(features.shape)} for {_PROBES} records: must be one row of features for each"
        )
    return Body(module, digest_of(key, features), features.shape[1])


@torch.inference_mode()
def _features(module: nn.Module, x: Tensor) -> Tensor:
    with repeatable(Stream(("body",))):  # one thread: the same bits everywhere
        module.eval()
        return torch.cat([module(part) for part in x.split(_BATCH)]).float().clone()
