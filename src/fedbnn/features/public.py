"""What the alignment set gives everybody for a head on features: the map, its features, and their second moment."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.maps import FeatureMap, Kind, fit_features

DIMENSIONS = 200  # for models that learn without noise; noise wants fewer, which `privacy.dimensions` sets


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
        key = (self.digest, digest_of(x))
        if key not in _seen:
            while len(_seen) >= _MOST_SEEN:
                del _seen[next(iter(_seen))]
            _seen[key] = self.map(x)
        return _seen[key]

    def scaled(self, x: Tensor) -> Tensor:
        """Features of records, divided by the mean of their standard deviations on the alignment set."""
        return self.features(x) / self.spread

    @property
    def spread(self) -> Tensor:
        return self.phi.std(0, correction=0).mean().clamp_min(1e-12)

    def outputs(self, head: Tensor) -> Tensor:
        """A head's class probabilities on the alignment set."""
        return (self.phi @ head).softmax(1)


def digest_of(*parts: Tensor | str | int | float) -> str:
    """A hash of numbers, arrays and words in their order."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"|{part.dtype}{tuple(part.shape)}|".encode())
            found.update(part.detach().contiguous().numpy().tobytes())
        else:
            found.update(f"|{part!r}".encode())
    return found.hexdigest()


def public(alignment: Tensor, kind: Kind, dimensions: int) -> Public:
    """Worked out once for an alignment set in a process that serves few of them in turn."""
    digest = digest_of(alignment, kind, dimensions)
    if digest not in _known:
        while len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[digest] = _work_out(alignment, kind, dimensions, digest)
    return _known[digest]


_known: dict[str, Public] = {}
_seen: dict[tuple[str, str], Tensor] = {}
_MOST_KNOWN = 4
_MOST_SEEN = 128


def _work_out(alignment: Tensor, kind: Kind, dimensions: int, digest: str) -> Public:
    # One thread: heads depend on these bits, and another head is another question, which costs.
    with repeatable(Stream(("public",))):
        try:
            found = fit_features(alignment, kind, dimensions)
        except ValueError as error:
            raise UserError(f"privacy.features = '{kind}': {error}") from None
        phi = found(alignment)
        values, vectors = torch.linalg.eigh(phi.double().T @ phi.double() / len(phi))
    return Public(found, digest, phi, (values.clamp_min(0), vectors))
