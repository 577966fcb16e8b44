"""Files of named tensors."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedbnn.base.errors import UserError


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file; a disk that is full or read-only is one line that names it."""
    try:
        save_file(dict(tensors), path, dict(metadata) if metadata else None)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be written: {error}") from None
