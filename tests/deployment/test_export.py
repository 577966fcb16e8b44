import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

import fedbnn
from fedbnn import UserError, load_config
from fedbnn.cli.app import main
from fedbnn.models.bayes import Gaussian
from fedbnn.models.label_prior import ratio
from tests.deployment.test_loaded import FAST


def made(folder, *changes):
    fedbnn.run(load_config(None, [*FAST, *changes]), folder)
    return fedbnn.load(folder)


@pytest.fixture(scope="module")
def point(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "point", 'models=[{name="cnn2"}]')


@pytest.fixture(scope="module")
def bayes(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "bayes", "method=local_bnn")


def told(file, x):
    return onnxruntime.InferenceSession(file).run(["probabilities"], {"x": x})[0]


def test_a_plain_network_is_the_same_elsewhere(point, tmp_path):
    files = fedbnn.export(point, "client-1", tmp_path / "out")
    assert [file.name for file in files] == ["README.md", "model.onnx", "posterior.safetensors"]
    for count in (1, 40):
        x = point.data.dataset.x_test[:count]
        expected = point.predict("client-1", x).prediction.probs.numpy()
        assert np.allclose(told(files[1], x), expected, atol=1e-5)
    assert "names the class that the client itself names on 100.0%" in files[0].read_text()


def test_a_posterior_is_exported_whole_and_its_mean_as_a_network(bayes, tmp_path):
    files = fedbnn.export(bayes, 0, tmp_path / "out")
    site, state = bayes.site(0), bayes.host(0).states[0]
    with safe_open(files[2], framework="pt") as stored:
        facts = json.loads(stored.metadata()["fedbnn"])
        theta = stored.get_tensor("state.theta")
        mean, std = (stored.get_tensor(f"input.{name}") for name in ("mean", "std"))
    assert torch.equal(theta, state.theta)
    assert facts["class_names"] == list(bayes.class_names)
    assert facts["weights"].keys() == site.client.network.spans.keys()
    x = torch.from_numpy(bayes.data.dataset.x_test[:30])
    scaled = (x - mean) / std
    assert torch.equal(scaled, torch.from_numpy(bayes.data.seen(x.numpy())))
    layer, weights = scaled.flatten(1), Gaussian(theta).mean
    for at, (name, (start, stop)) in enumerate(facts["weights"].items()):  # an mlp by hand
        piece = weights[start:stop]
        layer = layer @ piece.view(-1, layer.shape[1]).T if name.endswith("weight") else layer + piece
        if name.endswith("bias") and at < 3:
            layer = layer.relu()
    assert np.allclose(told(files[1], x.numpy()), layer.softmax(1).numpy(), atol=1e-5)


def test_the_label_prior_of_the_headline_goes_along(tmp_path):
    small = ("prior_steps=2", "mc_samples=2", "initial_rho=-20", "head=false")
    run = made(
        tmp_path / "run", "method=fedbnn", "partition.kind=dirichlet", *(f"methods.fedbnn.{one}" for one in small)
    )
    x = run.data.dataset.x_test[:40]
    files = fedbnn.export(run, 0, tmp_path / "out")
    expected = run.predict(0, x).prediction.probs.numpy()  # of a posterior without width
    plain = run.predict(0, x, prior="uniform").prediction.probs.numpy()
    assert np.allclose(told(files[1], x), expected, atol=1e-3)
    assert not np.allclose(expected, plain, atol=1e-2)
    assert ratio(run.site(0).client.own_shares, torch.full((10,), 0.1)).max() > 1.5


def test_the_card_says_what_the_model_is(bayes, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as done:
        main(["export", str(bayes.path), "--client", "client-1", "--out", str(out), "--no-onnx"])
    assert done.value.code == 0
    assert not (out / "model.onnx").exists()
    card = (out / "README.md").read_text()
    for heading in ("Data", "Method", "Files", "Scores", "Privacy", "Intended use", "Limits"):
        assert f"\n## {heading}\n" in card
    assert f"Own-class accuracy | {bayes.result['per_client']['own_class_accuracy'][1]:.1%} |" in card
    assert f"in training: {len(bayes.site(1).client.train)}:" in card
    assert f"for calibration: {len(bayes.site(1).calibration)}" in card
    assert bayes.data.dataset.fingerprint in card
    assert "Clients sent nothing." in card
    assert "model.onnx" not in card


def test_what_cannot_be_exported_is_told(bayes, tmp_path):
    with pytest.raises(UserError, match="it is there already"):
        fedbnn.export(bayes, 0, tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        fedbnn.export(bayes, 0, tmp_path / "a" / "b")
    with pytest.raises(UserError, match="no such client"):
        fedbnn.export(bayes, 7, tmp_path / "c")
    seen = made(tmp_path / "features", "data.inputs=features")
    with pytest.raises(UserError, match="models see public features"):
        fedbnn.export(seen, 0, tmp_path / "d")
    assert len(fedbnn.export(seen, 0, tmp_path / "d", onnx=False)) == 2
    assert not list(tmp_path.glob(".*.new"))


def test_a_client_on_a_body_predicts_and_has_no_onnx(tmp_path):
    """Its network sees the body's features, not values as in the files."""
    body = "tests.features.bodies.own_bodies:wide"
    config = load_config(None, [*FAST, f'models=[{{name="mlp",body="{body}",components=10}}]'])
    fedbnn.run(config, tmp_path / "run")
    run = fedbnn.load(tmp_path / "run", own_code=True)
    x = run.data.dataset.x_test[:5]
    assert torch.equal(run.predict(0, x).prediction.probs, run.predict(0, torch.from_numpy(x)).prediction.probs)
    with pytest.raises(UserError, match=f"body '{body}': models see public features, which ONNX cannot hold"):
        fedbnn.export(run, 0, tmp_path / "out")
    assert len(fedbnn.export(run, 0, tmp_path / "out", onnx=False)) == 2
