"""Images in the idx files of MNIST and Fashion-MNIST, compressed or not.

An idx file (LeCun, Cortes, Burges: The MNIST database of handwritten digits) is two zero bytes, a code for the type
(8: uint8), the number of dimensions, each dimension as a big-endian 32-bit number, and the values.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.data.stored import Array, Half, Stored

FILES: dict[Half, tuple[str, str]] = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UINT8 = 8


class IdxFiles(Stored):
    """The idx files in a folder: of each half both its images and its labels, or neither counts."""

    def __init__(self, folder: Path, origin: str) -> None:
        self.origin, self.path = origin, folder
        self.halves = tuple(half for half, names in FILES.items() if all(self._file(name) for name in names))

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        return {half: (self._array(FILES[half][0], 3), self._array(FILES[half][1], 1)) for half in halves}

    def _file(self, name: str) -> Path | None:
        """The plain file, which is quicker to read, goes first."""
        both = (self.path / name, self.path / f"{name}.gz")
        return next((path for path in both if path.is_file()), None)

    def _array(self, name: str, dimensions: int) -> Array:
        path = self._file(name)
        if path is None:
            raise UserError(f"{self.origin}: {self.path} has no {name} or {name}.gz")
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.origin}: {path} cannot be read: {error}") from None
        start = 4 + 4 * dimensions
        if content[:4] != bytes([0, 0, UINT8, dimensions]) or len(content) < start:
            raise UserError(f"{self.origin}: {path} is not an idx file of uint8 in {dimensions} dimension(s)")
        shape = struct.unpack(f">{dimensions}I", content[4:start])
        if len(content) - start != math.prod(shape):
            raise UserError(
                f"{self.origin}: {path} promises {' x '.join(map(str, shape))} values but holds {len(content) - start}"
            )
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
