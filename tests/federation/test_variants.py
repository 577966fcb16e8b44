"""Which of a method's models are scored: from the method through the federation into a run's files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.federation.engines import Engine, InProcess
from fedbnn.federation.evaluation import SCORES, evaluate
from fedbnn.federation.loop import Federation
from fedbnn.federation.method import Method
from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.methods import METHODS, FedAvg
from fedbnn.models.bayes import average
from fedbnn.runs.config import load_config
from tests.federation_sample import SMALL_METHODS, described, models_for, small_sites

VARIANTS = {
    "fedbnn": ["personal", "general"],
    "fedbnn_paper": ["personal"],
    "fedmd": ["personal"],
    "feddf": ["global", "fine_tuned", "global_own_prior"],
    "fedavg": ["global", "fine_tuned", "global_own_prior"],
    "fedprox": ["global", "fine_tuned", "global_own_prior"],
    "pfedme": ["personal", "global", "global_own_prior"],
    "scaffold": ["global", "fine_tuned", "global_own_prior"],
    "fedopt": ["global", "fine_tuned", "global_own_prior"],
    "fedbn": ["personal", "fine_tuned"],
    "mocha": ["personal"],
    "ifca": ["personal", "fine_tuned"],
    "apfl": ["personal", "global", "global_own_prior"],
    "perfedavg": ["personal", "global", "global_own_prior"],
    "ditto": ["personal", "global", "global_own_prior"],
    "fedrep": ["personal"],
    "feddyn": ["global", "fine_tuned", "global_own_prior"],
    "fedpd": ["global", "fine_tuned", "global_own_prior"],
    "fedsplit": ["global", "fine_tuned", "global_own_prior"],
    "pfedbayes": ["personal", "global", "global_own_prior"],
    "pfedgp": ["personal"],
    "fola": ["global", "fine_tuned", "global_own_prior"],
    "fedproto": ["personal"],
    "fml": ["personal", "global", "global_own_prior"],
    "fedkd": ["personal", "global", "global_own_prior"],
    "fedhenn": ["personal"],
    "flexifed": ["personal", "fine_tuned"],
    "fedbe": ["global", "fine_tuned", "global_own_prior"],
    "fedpa": ["global", "fine_tuned", "global_own_prior"],
    "pvi": ["global", "fine_tuned", "global_own_prior"],
    "fedppd": ["global", "fine_tuned", "global_own_prior"],
    "beta_predbayes": ["global", "fine_tuned", "global_own_prior"],
    "lr_bpfl": ["personal", "global", "global_own_prior"],
    "fedma": ["global", "fine_tuned", "global_own_prior"],
    "dp_fedavg": ["global", "fine_tuned", "global_own_prior"],
    "dp_fedsgd": ["global", "fine_tuned", "global_own_prior"],
    "dp_scaffold": ["global", "fine_tuned", "global_own_prior"],
    "pate": ["personal"],
    "local_bnn": ["personal"],
    "local": ["personal"],
}


@pytest.fixture(scope="module", params=["in process", "two workers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return InProcess() if request.param == "in process" else request.getfixturevalue("two_workers")


def test_the_table_above_has_every_method() -> None:
    assert VARIANTS.keys() == METHODS.keys()


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_every_variant_is_scored_the_headline_first(method: Method[Any, Any]) -> None:
    sites = small_sites(2, models=models_for(method))
    federation = Federation(method, sites)
    record = federation.step()
    assert list(record.scores) == [0, 1]
    for client, found in record.scores.items():
        assert list(found) == VARIANTS[method.name]
        for variant, evaluation in found.items():
            prediction = federation.predict(client, sites[client].evaluation.x, variant)  # type: ignore[arg-type]
            again = evaluate(prediction, sites[client].evaluation.y, sites[client].own)
            assert again.scores == evaluation.scores, variant
            assert again.to_dict() == evaluation.to_dict()


def test_fedavgs_global_is_the_servers_model_and_fine_tuned_the_clients(engine: Engine, tmp_path: Path) -> None:
    sites = small_sites(3, models=("cnn2",))
    federation = Federation(FedAvg(learning_rate=5e-3), sites, participation=0.6, engine=engine)
    record = federation.run(2)[-1]
    federation.save(tmp_path)
    for site in sites:
        client = site.client.index
        server = federation.server.tensors()["weights"]
        own = load_file(tmp_path / f"client-{client:04d}.safetensors")["weights"]
        assert not torch.equal(server, own)
        for variant, weights in (("global", server), ("fine_tuned", own)):
            expected = average(site.client.network, iter([weights]), site.evaluation.x)
            found = federation.predict(client, site.evaluation.x, variant)  # type: ignore[arg-type]
            torch.testing.assert_close(found.probs, expected.probs, rtol=1e-5, atol=1e-7)
            scores = evaluate(expected, site.evaluation.y, site.own).scores
            assert record.scores[client][variant].scores == pytest.approx(scores, rel=1e-5)
        headline = federation.predict(client, site.evaluation.x)
        assert torch.equal(headline.probs, federation.predict(client, site.evaluation.x, "global").probs)
    assert record.scores[0]["global"].scores != record.scores[0]["fine_tuned"].scores


@pytest.mark.parametrize(
    ("name", "variant", "allowed"),
    [
        ("fedavg", "personal", "global, fine_tuned, global_own_prior"),
        ("pfedme", "fine_tuned", "personal, global, global_own_prior"),
        ("local", "global", "personal"),
    ],
)
def test_a_variant_the_method_does_not_have(engine: Engine, name: str, variant: Any, allowed: str) -> None:
    method = next(one for one in SMALL_METHODS if one.name == name)
    sites = small_sites(2, models=("mlp",))
    federation = Federation(method, sites, engine=engine)
    federation.step(evaluate=False)
    with pytest.raises(UserError) as caught:
        federation.predict(1, sites[1].evaluation.x[:3], variant)
    assert str(caught.value) == f"variant '{variant}': method '{name}' scores {allowed}"
    assert federation.predict(1, sites[1].evaluation.x[:3]).probs.shape == (3, 10)  # the engine is still there


# What a run writes


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k and k != "elapsed"}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "result.json").read_text()), lines


@pytest.mark.parametrize("name", ["fedavg", "pfedme", "fola", "fedbnn", "fedbnn_paper"])
def test_a_runs_files_hold_every_variant(name: str, tiny: tuple[str, ...], tmp_path: Path) -> None:
    returned = fedbnn.run(load_config(None, [*tiny, f"method={name}", "rounds=1"]), tmp_path / "run")
    result, lines = read(tmp_path / "run")
    assert returned == result
    headline, *others = VARIANTS[name]
    assert result["scored"] == headline
    assert list(result["variants"]) == [headline, *others]
    assert {score: result[score] for score in SCORES} == result["variants"][headline]
    last = [line for line in lines if line["round"] == 1]
    assert len(last) == 3
    for line in lines:
        assert list(line.get("variants", {})) == others
        for found in line.get("variants", {}).values():
            assert found.keys() == {*SCORES, "reliability"}
    for variant in others:
        found = [line["variants"][variant] for line in last]
        for score in ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "all_class_nll"):
            mean = sum(one[score] for one in found) / 3
            assert result["variants"][variant][score] == pytest.approx(mean, rel=1e-12)
        bins = sum(
            (ReliabilityBins.from_dict(one["reliability"]) for one in found[1:]),
            ReliabilityBins.from_dict(found[0]["reliability"]),
        )
        assert result["variants"][variant]["ece"] == pytest.approx(bins.ece, rel=1e-12)
    for score in ("nll", "own_class_accuracy"):
        assert result[score] == pytest.approx(sum(line[score] for line in last) / 3, rel=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes"])
def test_a_resumed_run_has_the_same_variants(name: str, tiny: tuple[str, ...], tmp_path: Path) -> None:
    config = load_config(
        None, [*tiny, f"method={name}", "methods.pfedbayes.iterations=2", "methods.pfedbayes.mc_samples=2"]
    )
    fedbnn.run(config, tmp_path / "whole")
    step = Federation.step

    def interrupted(self: Federation, *arguments: Any, **options: Any) -> Any:
        if self.round_number == 1:
            raise KeyboardInterrupt
        return step(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fedbnn.run(config, tmp_path / "halved")
    fedbnn.run(config, tmp_path / "halved", resume=True)
    whole, halved = (without_times(list(read(tmp_path / folder))) for folder in ("whole", "halved"))
    assert whole == halved
    assert list(whole[0]["variants"]) == VARIANTS[name]
    assert all("variants" in line for line in whole[1])
