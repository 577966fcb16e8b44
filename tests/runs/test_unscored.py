"""A site too small for test records of its own takes part like any other, and is in no score."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

import fedbnn
from fedbnn.deployment.card import model_card
from fedbnn.deployment.mean_network import mean_network
from fedbnn.deployment.nearness import nearness
from fedbnn.deployment.node import Node
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.evaluation import SCORES
from fedbnn.report.load import load
from fedbnn.reproduce.collect import by_model, over_models
from fedbnn.runs.config import load_config
from fedbnn.runs.standing import standing
from tests.deployment.deployment_sample import HandServer, site_nodes
from tests.federation_sample import small_sites

TINY = "Winzling"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Three sites in one table; the last has one record of each class, of which none can be spared."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    with (folder / "all.csv").open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["site", "a", "b", "ill"])
        for site, count in (("Graz", 60), ("Linz", 60), (TINY, 2)):
            for at in range(count):
                ill = at % 2
                rows.writerow([site, f"{rng.normal(2 * ill):.4f}", f"{rng.normal(-ill):.4f}", ("no", "yes")[ill]])
    settings = {
        "data.source": "'csv'",
        "data.path": f"'{folder / 'all.csv'}'",
        "data.target": "'ill'",
        "data.client_column": "'site'",
        "data.alignment": 20,
        "partition.kind": "'natural'",
        "training.warmup_epochs": 2,
        "rounds": 1,
        "methods.fedbnn.prior_steps": 3,
        "models": "[{name = 'mlp'}]",
        "engine.debug": "true",
    }
    return load_config(None, [f"{key}={value}" for key, value in settings.items()])


class Told(fedbnn.Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """Its folder, and what was told."""
    out, told = tmp_path_factory.mktemp("runs") / "run", Told()
    fedbnn.run(config, out, observer=told)
    return out, told.notes


def test_the_tiny_site_takes_part_and_means_are_over_the_others(finished):
    out, notes = finished
    assert f"unscored for want of test records of their own: '{TINY}'" in notes
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    per = result["per_client"]
    assert per["name"][2] == TINY
    assert per["bytes_up"][2] == per["bytes_up"][0] > 0
    for name in SCORES:
        values = per[name]
        assert values[2] is None
        if name not in ("ece", "mce"):  # of pooled predictions
            assert result[name] == pytest.approx(np.mean(values[:2]), rel=1e-12)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["name"] for line in lines if "nll" in line} == {"Graz", "Linz"}
    assert {line["name"] for line in lines if line["round"] == 1 and "bytes_up" in line} == {"Graz", "Linz", TINY}
    assert standing(out).scores["nll"] == pytest.approx(result["nll"], rel=1e-12)


def test_report_scores_and_card_say_so(finished):
    out, _ = finished
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"{TINY}: unscored, for want of test records of their own." in page
    assert page.count(">unscored<") == len(SCORES) - 1  # all-class NLL has no column
    [run] = load(out).runs
    assert run.result.per_client.unscored == [2]
    found = fedbnn.load(out)
    assert found.scores()["nll"].isna().tolist() == [False, False, True]
    answer = found.predict(TINY, torch.zeros(3, 2).numpy()).prediction.probs
    torch.testing.assert_close(answer.sum(1), torch.ones(3, dtype=answer.dtype))
    card = model_card(found, 2, nearness(found, 2, mean_network(found, 2)))
    assert "This client is unscored: it has no test records of its own." in card
    assert "On 20 public alignment points it names" in card


def test_whom_nobody_can_score_changes_no_other_score():
    sites = small_sites(clients=3, models=("mlp",))
    nobody = dataclasses.replace(sites[1], own=torch.zeros_like(sites[1].own))
    method = fedbnn.methods.FedBNN(prior_steps=3, mc_samples=2)
    rounds = fedbnn.Federation(method, sites).run(1)
    fewer = fedbnn.Federation(method, [sites[0], nobody, sites[2]]).run(1)
    for one, other in zip(rounds, fewer, strict=True):
        assert list(other.scores) == [0, 2]
        assert list(other.turns) == [0, 1, 2]
        for client in (0, 2):
            ours = {name: of.to_dict() for name, of in one.scores[client].items()}
            assert ours == {name: of.to_dict() for name, of in other.scores[client].items()}


def test_a_federation_in_which_nobody_can_be_scored_is_refused(config):
    data = fedbnn.federate(fedbnn.load_dataset(config.data), config.data, config.partition, 0)
    elsewhere = np.full(len(data.dataset.y_test), "Wien")
    nobody = dataclasses.replace(data, dataset=dataclasses.replace(data.dataset, group_test=elsewhere))
    with pytest.raises(fedbnn.UserError, match="no client has test records of its own: nobody could be scored"):
        fedbnn.make_sites(nobody)


def test_deployed_the_site_starts_and_shares_no_scores(config, tmp_path):
    terms = write_federation(tmp_path / "trial", config)
    files = [tmp_path / "trial" / "sites" / name / "site.toml" for name in terms.sites]
    with np.load(files[2].parent / "records.npz") as archive:
        assert set(archive.files) == {"x_train", "y_train"}
    nodes: list[Node] = site_nodes(files)
    assert [node.site.scored for node in nodes] == [True, True, False]
    server = HandServer(terms, fedbnn.federation.loop.roster_of([node.site for node in nodes]))
    for _ in range(2):
        answers = server.step(nodes)
        assert ["evaluation" in answers[client].facts for client in range(3)] == [True, True, False]
        assert answers[2].message.nbytes == answers[0].message.nbytes


def test_studies_take_means_over_those_who_are_scored():
    rest = {name: [0.5, None, 0.7] for name in SCORES} | {"weights": [1, 2, 3], "records": [4, 5, 6]}
    found = by_model({"model": ["mlp", "mlp", "cnn2"], "seconds": [1.0, 2.0, 3.0], **rest})
    assert found["mlp"] == {
        "clients": 2, "scored": 1, "weights": 1.5, "records": 4.5, "seconds": 1.5,
        **dict.fromkeys(("own_class_accuracy", "all_class_accuracy", "nll", "brier", "all_class_nll"), 0.5),
    }  # fmt: skip
    assert "scored" not in found["cnn2"]
    assert over_models(found, ["mlp", "cnn2"], "nll") == pytest.approx(0.6)
