"""Features that were worked out before, on disk: for experiments that run many times on the same records.

Off unless the environment names a folder, as features of private records do not belong into any other place.
"""

import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FOLDER = "FEDBNN_FEATURES"


def on_disk(digest: str, make: Callable[[], Tensor]) -> Tensor:
    """The features of this digest: from the folder that $FEDBNN_FEATURES names, or made and put there."""
    if not (folder := os.environ.get(FOLDER)):
        return make()
    path = Path(folder) / f"{digest}.safetensors"
    try:
        return load_file(path)["features"].clone()
    except (OSError, SafetensorError, KeyError):
        features = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file({"features": features.contiguous()}, part)
    part.replace(path)
    return features
