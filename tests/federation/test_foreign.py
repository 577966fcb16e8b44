"""Foreign inputs: asked about after the last round only, by every scored model, and without a trace elsewhere."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.engines import InProcess
from fedbnn.federation.evaluation import DETECTION, SCORES, evaluate, with_detection
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedBNN
from fedbnn.models.bayes import Prediction, entropy
from fedbnn.models.training import TrainingSettings
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import run

NOISE = np.random.default_rng(0).integers(0, 256, (90, 8, 8)).astype(np.uint8)


def drawn(records: int, seed: int) -> Prediction:
    """The prediction of three weight draws."""
    logits = torch.randn(3, records, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs = logits.softmax(2)
    return Prediction(probs.mean(0), logits.mean(0), entropy(probs).mean(0), probs)


def test_detection_is_the_auroc_of_foreign_against_own_records():
    known, foreign = drawn(50, 1), drawn(30, 2)
    own = torch.arange(50) % 3 == 0
    scored = evaluate(known, torch.arange(50) % 4, own)
    found = with_detection(scored, known, own, foreign)
    truth = np.repeat([0, 1], [int(own.sum()), 30])
    for name, part in zip(DETECTION, ("epistemic", "total"), strict=True):
        uncertainty = np.concatenate([getattr(known, part)[own].numpy(), getattr(foreign, part).numpy()])
        assert found.scores[name] == pytest.approx(roc_auc_score(truth, uncertainty), abs=1e-12)
    assert {name: found.scores[name] for name in SCORES} == scored.scores


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("foreign") / "noise.npz"
    np.savez(path, x_test=NOISE, y_test=np.zeros(90, dtype=int))
    return path


@pytest.fixture(scope="module")
def sites():
    data = DataSettings(alignment=30)
    partition = PartitionSettings(clients=3, classes_per_client=3, records_per_class=4)
    dealt = federate(load_dataset(data), data, partition, 0)
    training = TrainingSettings(local_epochs=1, warmup_epochs=2)
    made = make_sites(dealt, ["mlp", "cnn2"], training, foreign=NOISE[:, None].astype(np.float32) / 255)
    expected = (NOISE[:, None].astype(np.float32) / 255 - dealt.mean) / dealt.std
    np.testing.assert_allclose(made[0].foreign.numpy(), expected, rtol=1e-5, atol=1e-6)
    return made


def scores_of(engine, sites):
    federation = Federation(FedBNN(prior_steps=2, mc_samples=2), sites, engine=engine)
    federation.step()
    asked, plain = federation.evaluate(foreign=True), federation.evaluate()
    again = federation.predict(0, sites[0].foreign), federation.predict(0, sites[0].evaluation.x)
    as_dicts = [{c: {v: e.to_dict() for v, e in found.items()} for c, found in one.items()} for one in (asked, plain)]
    return (*as_dicts, again)


def test_engines_agree_and_other_scores_stay(sites, two_workers):
    asked, plain, (foreign, known) = scores_of(InProcess(), sites)
    pooled, pooled_plain, _ = scores_of(two_workers, sites)
    assert asked == pooled
    assert plain == pooled_plain
    for client, found in asked.items():
        for variant in ("personal", "general"):
            scores = found[variant]["scores"]
            assert {name for name in scores if name.startswith("ood_")} == set(DETECTION)
            assert scores.keys() - set(DETECTION) == plain[client][variant]["scores"].keys()
            for name in DETECTION:
                del scores[name]
    # The models were asked with the very weight draws that `predict` uses.
    own = sites[0].own
    truth = np.repeat([0, 1], [int(own.sum()), 90])
    uncertainty = np.concatenate([known.epistemic[own].numpy(), foreign.epistemic.numpy()])
    assert pooled[0]["personal"]["scores"]["ood_auroc_epistemic"] == pytest.approx(roc_auc_score(truth, uncertainty))
    assert asked == plain


def finished(tmp_path, overrides):
    returned = run(load_config(None, overrides), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    return returned, lines


def test_a_run_says_how_well_foreign_inputs_are_told(tmp_path, tiny, archive):
    overrides = [*tiny, "method=fedbnn", "rounds=1"]
    result, lines = finished(tmp_path / "with", [*overrides, f"evaluation.foreign={archive}"])
    plain, plain_lines = finished(tmp_path / "without", overrides)
    for name in DETECTION:
        per_client = result["per_client"][name]
        assert len(set(per_client)) > 1
        assert all(0 <= value <= 1 for value in per_client)
        assert result[name] == result["variants"]["personal"][name] == pytest.approx(np.mean(per_client), rel=1e-12)
        assert [line["round"] for line in lines if name in line] == [1] * 3
        assert name not in plain
        assert name not in plain["variants"]["personal"]
        assert name not in result["curve"]
        assert not any(name in line for line in plain_lines)
    assert result["nll"] == plain["nll"]
    assert result["uncertainty"] == plain["uncertainty"]
    assert result.keys() - plain.keys() == set(DETECTION)
    assert "AUROC, epistemic uncertainty" in (tmp_path / "with" / "report.html").read_text()
    assert "AUROC, epistemic uncertainty" not in (tmp_path / "without" / "report.html").read_text()
    manifest = json.loads((tmp_path / "with" / "partition.json").read_text())
    assert manifest["foreign"] == str(archive)
    assert manifest.keys() - json.loads((tmp_path / "without" / "partition.json").read_text()).keys() == {
        "foreign",
        "foreign_fingerprint",
    }
    # A run that stopped between its last round and its result says the same.
    (tmp_path / "with" / "result.json").unlink()
    again = run(load_config(None, [*overrides, f"evaluation.foreign={archive}"]), tmp_path / "with", resume=True)
    assert {name: again[name] for name in DETECTION} == {name: result[name] for name in DETECTION}


def test_plain_networks_have_no_epistemic_part(tmp_path, tiny, archive):
    result, _ = finished(tmp_path / "run", [*tiny, "method=fedavg", "rounds=1", f"evaluation.foreign={archive}"])
    assert set(result["variants"]) == {"global", "fine_tuned", "global_own_prior"}
    for scores in result["variants"].values():
        assert scores["ood_auroc_epistemic"] == 0.5
        assert scores["ood_auroc_total"] != 0.5


def test_foreign_inputs_of_another_shape_are_refused_before_any_work(tmp_path, tiny):
    path = tmp_path / "large.npz"
    np.savez(path, x_test=np.zeros((5, 9, 9), np.uint8), y_test=np.zeros(5, dtype=int))
    with pytest.raises(UserError, match=r"evaluation.foreign = .*shape \(1, 9, 9\)"):
        run(load_config(None, [*tiny, f"evaluation.foreign={path}"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
