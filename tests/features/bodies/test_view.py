"""What a model on a body sees: principal components over the alignment set, the same for whoever has the same body."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from fedbnn.base.errors import UserError
from fedbnn.features.bodies.body import body_of
from fedbnn.features.bodies.view import BodyView
from tests.features.bodies import own_bodies

HERE = "tests.features.bodies.own_bodies"
SHAPE = (1, 8, 8)


def images(count, seed=0):
    return np.random.default_rng(seed).random((count, *SHAPE), dtype=np.float32)


def view(alignment, name="wide", components=200, mirrored=False, **options):
    return BodyView.of(f"{HERE}:{name}", options, alignment, components, mirrored)


def test_a_view_is_principal_components_of_the_bodys_features():
    alignment, x = images(60), images(9, 1)
    seen = view(alignment, components=12)
    module = own_bodies.wide(SHAPE).eval()
    with torch.no_grad():
        public, own = (module(torch.from_numpy(one)).double().numpy() for one in (alignment, x))
    oracle = PCA(12, svd_solver="full").fit(public)
    ours, theirs = seen(x), oracle.transform(own)
    scale = np.sqrt(12 / (oracle.explained_variance_ * 59 / 60).sum())
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours, theirs * signs * scale, rtol=1e-3, atol=1e-4)
    assert seen(alignment).var(0).sum() == pytest.approx(12, rel=1e-4)
    assert seen.shape == (12,)


def test_mirrored_features_are_those_of_both_views():
    alignment, x = images(60), images(9, 1)
    seen = view(alignment, mirrored=True)
    np.testing.assert_allclose(seen(x), seen(np.ascontiguousarray(x[..., ::-1])), atol=1e-5)
    assert np.abs(view(alignment)(x) - view(alignment)(np.ascontiguousarray(x[..., ::-1]))).max() > 0.1


def test_no_more_components_than_the_alignment_set_spans():
    assert view(images(10)).shape == (9,)
    assert view(images(60), "pooled", size=4).shape == (4,)


def test_a_body_is_a_fixed_function():
    x = torch.from_numpy(images(11))
    body = body_of(f"{HERE}:wide", {}, SHAPE)
    body.module.train()
    once = body(x)
    body.module.train()
    again = torch.cat([body(part) for part in x.split(4)])
    assert torch.equal(once, again)
    assert body.width == once.shape[1] == 40


def test_other_weights_and_options_are_another_body():
    digests = [
        body_of(f"{HERE}:wide", options, SHAPE).digest for options in ({}, {"seed": 1}, {"width": 8}, {"seed": 0})
    ]
    assert len(set(digests)) == 4
    assert body_of(f"{HERE}:wide", {}, SHAPE).digest == digests[0]


def test_features_are_kept_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBNN_FEATURES", str(tmp_path))
    x = torch.from_numpy(images(5, seed=77))
    features = body_of(f"{HERE}:wide", {}, SHAPE)(x)
    (file,) = tmp_path.glob("*.safetensors")
    assert file.stat().st_size > features.numel() * 4


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("efficientnet_lite9", {}, "unknown body 'efficientnet_lite9'; did you mean 'efficientnet_lite"),
        ("nowhere:body", {}, "body 'nowhere:body' cannot be imported: No module named 'nowhere'"),
        (f"{HERE}:SHAPES", {}, "cannot be imported"),
        (f"{HERE}:__name__", {}, "is a str, not a function that makes a module"),
        (f"{HERE}:wide", {"breadth": 3}, "got an unexpected keyword argument 'breadth'"),
        (f"{HERE}:broken", {}, "cannot take records of shape \\(1, 8, 8\\): no such weights$"),
        (f"{HERE}:no_module", {}, "it returned a int, not a torch.nn.Module"),
        (f"{HERE}:crooked", {}, "gives \\(4, 1, 8, 8\\) for 4 records: must be one row of features for each"),
        (f"{HERE}:constant", {}, "gives the same features for all points of the alignment set"),
        ("efficientnet_lite0", {"size": 8}, "size = 8 must be from 32 to 1024 pixels"),
    ],
)
def test_what_is_no_body_is_told_in_one_line(name, options, told):
    with pytest.raises(UserError, match=told) as error:
        BodyView.of(name, options, images(20), 10, False)
    assert "\n" not in str(error.value)


def test_a_view_needs_an_alignment_set():
    with pytest.raises(UserError, match=r"data\.alignment = 0"):
        view(images(0))
