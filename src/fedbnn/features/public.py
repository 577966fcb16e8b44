"""What the alignment set gives everybody for a head on features: the map, its features, and their second moment."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.feature_map import FeatureMap
from fedbnn.features.maps import fit_features

T = TypeVar("T")


@dataclass(frozen=True)
class Public:
    """Attributes:

    digest: of the alignment set and of how features are made.
    phi: features of the alignment set [points, dimensions].
    moments: eigenvalues of the mean of phi phi^T, and its eigenvectors as columns.

    """

    map: FeatureMap
    digest: str
    phi: Tensor
    moments: tuple[Tensor, Tensor]

    def features(self, x: Tensor) -> Tensor:
        """Of records; kept for the last so many sets of them, as one process often serves the same clients again."""
        return kept(_seen, 128, self.digest + digest_of(x), lambda: self.map(x))

    def outputs(self, head: Tensor) -> Tensor:
        """A head's class probabilities on the alignment set."""
        return (self.phi @ head).softmax(1)


def digest_of(*parts: Tensor | str | int | float) -> str:
    """A hash of numbers, arrays and words in their order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"|{part.dtype}{tuple(part.shape)}|".encode())
            digest.update(part.detach().contiguous().numpy().tobytes())
        else:
            digest.update(f"|{part!r}".encode())
    return digest.hexdigest()


def public(alignment: Tensor, kind: str, dimensions: int) -> Public:
    """Worked out once for an alignment set in a process that serves few of them in turn."""
    digest = digest_of(alignment, kind, dimensions)
    return kept(_known, 4, digest, lambda: _work_out(alignment, kind, dimensions, digest))


_known: dict[str, Public] = {}
_seen: dict[str, Tensor] = {}


def kept(cache: dict[str, T], most: int, key: str, make: Callable[[], T]) -> T:
    """What the key stands for, made where it is not among the last `most`."""
    if key not in cache:
        while len(cache) >= most:
            del cache[next(iter(cache))]
        cache[key] = make()
    return cache[key]


def _work_out(alignment: Tensor, kind: str, dimensions: int, digest: str) -> Public:
    # One thread: heads depend on these bits, and another head is another question, which costs.
    with repeatable(Stream(("public",))):
        try:
            feature_map = fit_features(alignment, kind, dimensions)
        except ValueError as error:
            raise UserError(f"privacy.features = '{kind}': {error}") from None
        phi = feature_map.batched(alignment)
        if phi.shape[1] != feature_map.dimensions:
            raise UserError(
                f"privacy.features = '{kind}': it says dimensions = {feature_map.dimensions}, and gives {phi.shape[1]}"
            )
        values, vectors = torch.linalg.eigh(phi.double().T @ phi.double() / len(phi))
    if ":" in kind:  # a user's code may change under the same name: another map is another question
        digest = digest_of(digest, phi)
    return Public(feature_map, digest, phi, (values.clamp_min(0), vectors))
