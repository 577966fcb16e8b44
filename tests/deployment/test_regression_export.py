"""What is exported in regression: the client's own numbers, in the target's own unit."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from torch.nn import functional

import fedbnn
from fedbnn.cli.app import main
from fedbnn.deployment.mean_network import MeanAndDeviation, mean_network
from fedbnn.deployment.nearness import nearness
from fedbnn.models.bayes import Gaussian
from fedbnn.models.regression import Mixture, Scale, gaussian_of
from tests.deployment.regression_run import SCALE, made


@pytest.fixture(scope="module")
def point(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "point")


@pytest.fixture(scope="module")
def bayes(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "bayes", "method=local_bnn")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Two sites in one; the second has a single record, which cannot be spared for testing."""
    path, rng = tmp_path_factory.mktemp("data") / "stays.csv", np.random.default_rng(0)
    ages = rng.normal(size=61)
    rows = [f"{age:.2f},{'L' if at == 60 else 'G'},{7 + age + rng.normal():.2f}" for at, age in enumerate(ages)]
    path.write_text("\n".join(["age,site,stay_days", *rows]))
    return (
        "data.source=csv",
        f"data.path={path}",
        "data.target=stay_days",
        "data.target_mean=7",
        "data.target_sd=5",
        "data.client_column=site",
        "data.calibration=0",
        "partition.kind=natural",
    )


def told(file, x):
    session = onnxruntime.InferenceSession(file)
    assert [one.name for one in session.get_outputs()] == ["mean", "sd"]
    return session.run(["mean", "sd"], {"x": x})


def test_a_plain_network_is_the_same_elsewhere(point, tmp_path):
    files = fedbnn.export(point, "client-1", tmp_path / "out")
    assert [file.name for file in files] == ["README.md", "model.onnx", "posterior.safetensors"]
    for count in (1, 40):
        x = point.data.dataset.x_test[:count]
        expected = point.predict("client-1", x).prediction
        mean, sd = told(files[1], x)
        assert mean.dtype == sd.dtype == np.float64
        assert np.allclose(mean, expected.mean.numpy(), atol=1e-4)
        assert np.allclose(sd, expected.sd.numpy(), atol=1e-4)
    card = files[0].read_text()
    assert "its mean differs from the client's own by 0.00 on average (0.000 of what the client takes" in card


def test_a_posterior_is_exported_whole_and_its_mean_as_a_network(bayes, tmp_path):
    files = fedbnn.export(bayes, 0, tmp_path / "out")
    with safe_open(files[2], framework="pt") as stored:
        facts = json.loads(stored.metadata()["fedbnn"])
        assert torch.equal(stored.get_tensor("state.theta"), bayes.host(0).states[0].theta)
        weights = Gaussian(stored.get_tensor("state.theta")).mean
        mean, std = (stored.get_tensor(f"input.{name}") for name in ("mean", "std"))
        scale = Scale(*(float(stored.get_tensor(f"target.{name}")) for name in ("mean", "sd")))
    assert scale == SCALE
    assert (facts["task"], facts["target"]) == ("regression", "")  # the diabetes table names none
    assert "class_names" not in facts
    x = torch.from_numpy(bayes.data.dataset.x_test[:30])
    first, bias, second, other = (weights[slice(*span)] for span in facts["weights"].values())
    hidden = ((x - mean) / std @ first.view(8, 10).T + bias).relu()  # an mlp by hand
    outputs = hidden @ second.view(2, 8).T + other
    expected = 150 + 80 * outputs[:, 0], 80 * (1e-4 + functional.softplus(outputs[:, 1])).sqrt()
    for one, by_hand in zip(told(files[1], x.numpy()), expected, strict=True):
        assert np.allclose(one, by_hand.numpy(), atol=1e-3)


def test_a_fine_unit_far_from_zero_loses_nothing():
    """In single precision, 1e8 has no half."""
    outputs, scale = torch.randn(50, 2, generator=torch.manual_seed(0)), Scale(1e8, 1.0)
    mean, variance = gaussian_of(outputs)
    expected = Mixture(mean[None], variance[None]).in_units(scale)
    mean, sd = MeanAndDeviation(scale)(outputs)
    assert torch.equal(mean, expected.mean)
    assert torch.allclose(sd, expected.sd, rtol=1e-15)
    assert torch.allclose(mean - 1e8, outputs[:, 0].double(), atol=1e-7)


def test_the_card_says_how_far_the_mean_network_is(bayes, tmp_path):
    """Also without the head that FedBNN predicts with."""
    run = made(tmp_path / "run", "method=fedbnn", "methods.fedbnn.prior_steps=2", "methods.fedbnn.mc_samples=2")
    for one in (run, bayes):
        x = one.data.dataset.x_test
        full, network = one.predict(0, x).prediction, mean_network(one, 0)
        mean, sd = network(torch.from_numpy(x))
        apart = (full.mean - mean).abs()
        assert nearness(one, 0, network) == (
            f"On {len(x)} test records its mean differs from the client's own by {float(apart.mean()):.2f} on average "
            f"({float((apart / full.sd).mean()):.3f} of what the client takes as standard deviation), and its `sd` is "
            f"{float(sd.mean()):.2f} on average where the client's own is {float(full.sd.mean()):.2f}."
        )


def test_the_card_says_what_the_model_is(bayes, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as done:
        main(["export", str(bayes.path), "--client", "client-1", "--out", str(out), "--no-onnx"])
    assert done.value.code == 0
    assert not (out / "model.onnx").exists()
    card, per = (out / "README.md").read_text(), bayes.result["per_client"]
    for heading in ("Data", "Method", "Files", "Scores", "Privacy", "Intended use", "Limits"):
        assert f"\n## {heading}\n" in card
    assert f"RMSE | {per['rmse'][1]:.2f} | root mean squared error, in the target's unit" in card
    assert f"CRPS | {per['crps'][1]:.2f} |" in card
    assert f"Coverage | {per['coverage_90'][1]:.1%} |" in card
    assert "Models learn (the target - 150.0) / 80.0, by two declared numbers" in card
    assert f"in training: {len(bayes.site(1).client.train)}\n" in card
    assert "tells no noise below 0.8." in card
    assert "it is no promise for new ones" in card
    for words in ("class", "Class", "--prior", "--abstain", "probabilities", "model.onnx"):
        assert words not in card


def test_a_site_without_test_records_is_compared_on_public_ones_if_there_are_any(table, tmp_path):
    for points, expected in ((20, "On 20 public alignment points its mean differs"), (0, "There are no records to")):
        run = made(tmp_path / str(points), *table, f"data.alignment={points}")
        card = fedbnn.export(run, "L", tmp_path / f"out-{points}")[0].read_text()
        assert expected in card
        assert "This client is unscored" in card
    assert "- Target: stay\\_days, a real number" in card
    with safe_open(tmp_path / "out-0" / "posterior.safetensors", framework="pt") as stored:
        assert json.loads(stored.metadata()["fedbnn"])["target"] == "stay_days"
