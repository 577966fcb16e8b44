"""Sites that learn numbers: the bits of the local engine, and at each site the predictions of a run folder's client."""

import csv
import json

import numpy as np
import pytest
import torch

import fedbnn
from fedbnn import Federation, InProcess, UserError, Wish
from fedbnn.cli.app import main
from fedbnn.deployment.estimated import SiteEstimate
from fedbnn.deployment.predict import predict
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.models.training import channels_last
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import HandServer, ask, dealt, site_nodes, write_sites
from tests.deployment.regression_sites import diabetes, hospitals, stays


@pytest.mark.parametrize("fresh", [False, True], ids=["one process", "anew each round"])
@pytest.mark.parametrize("method", ["fedbnn", "fedavg", "local_bnn"])
def test_nodes_and_the_local_engine_agree_bit_for_bit(tmp_path, method, fresh):
    config = diabetes(method)
    sites = Prepared.of(config, [method]).sites
    federation = Federation(config.chosen(), sites, seed=config.seed, engine=InProcess())
    files = write_sites(tmp_path, config)
    nodes = site_nodes(files)
    server = HandServer(nodes[0].terms, federation.roster)
    x = channels_last(torch.from_numpy(dealt(config).evaluation("test")[0][:40]))
    for _ in range(config.rounds + 1):
        if fresh:
            nodes = site_nodes(files)
        record, answers = federation.step(), server.step(nodes)
        expected, found = federation.server.tensors(), server.state.tensors()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        for client, answer in answers.items():
            scores = {variant: one.to_dict() for variant, one in record.scores[client].items()}
            assert answer.facts["evaluation"] == json.loads(json.dumps(scores))
            assert answer.facts["info"] == record.turns[client].info
    for client, again in enumerate(site_nodes(files)):
        for variant in (None, *record.scores[0]):
            one, other = federation.predict(client, x, variant), again.predict(x, variant)
            assert torch.equal(one.means, other.means)
            assert torch.equal(one.variances, other.variances)
        with pytest.raises(UserError, match="prior: it is for classes"):
            again.predict(x, None, "own")


def test_a_site_tells_no_more_than_one_of_classes(tmp_path):
    """Its name, its model, arrays, and the scores that every site shares; nothing where it wants to share nothing."""
    config = diabetes("fedavg")
    open_site, silent = (
        site_nodes(write_sites(tmp_path / kind, config, head=f"share_metrics = '{kind}'"))[0] for kind in ("auto", "no")
    )
    roster = roster_of(Prepared.of(config, ["fedavg"]).sites)
    message = HandServer(open_site.terms, roster).message(0)
    told, kept = ([ask(node, kind, 0, message) for kind in ("update", "evaluate")] for node in (open_site, silent))
    assert set(told[0].facts) == {"info", "seconds"}
    assert set(told[1].facts) == {"evaluation"}
    assert set(told[1].facts["evaluation"]["global"]) == {"scores", "pit"}
    assert [answer.facts for answer in kept] == [{}, {}]
    assert told[1].message == Message()


def test_a_target_that_no_training_bears_stops_both_engines_alike(tmp_path):
    config = diabetes("fedavg")
    files = write_sites(tmp_path, config)
    with np.load(files[0].parent / "records.npz") as archive:
        arrays = dict(archive)
    arrays["y_train"] = np.full_like(arrays["y_train"], 3e38)
    np.savez(files[0].parent / "records.npz", **arrays)
    node = site_nodes(files[:1])[0]
    message = HandServer(node.terms, roster_of(Prepared.of(config, ["fedavg"]).sites)).message(0)
    ask(node, "update", 0, message)
    with pytest.raises(UserError, match="predicts values that are not finite: training has diverged"):
        ask(node, "evaluate", 0, message)


# Predictions at a site


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A federation of two hospitals, as a run folder and as sites with the folders of `fedbnn flower init`."""
    folder = tmp_path_factory.mktemp("finished")
    stays(200).drop(columns="ward").to_csv(folder / "all.csv", index=False)
    config = hospitals(folder / "all.csv", "data.calibration=0.3")
    fedbnn.run(config, folder / "run")
    terms = write_federation(folder / "parties", config, "trial")
    nodes = site_nodes([folder / "parties" / "sites" / name / "site.toml" for name in terms.sites])
    server = HandServer(terms, roster_of(Prepared.of(config, ["fedavg"]).sites))
    for _ in range(config.rounds + 1):
        server.step(nodes)
    rng = np.random.default_rng(1)
    np.savez(folder / "new.npz", x=rng.normal((50, 0), (10, 1), (12, 2)).astype(np.float32))
    return folder, fedbnn.load(folder / "run")


def state_of(folder, name):
    return folder / "parties" / "sites" / name / "state"


@pytest.mark.parametrize("variant", [None, "global", "fine_tuned"])
@pytest.mark.parametrize("alpha", [None, 0.2])
def test_a_site_predicts_what_the_client_of_a_run_folder_does(finished, variant, alpha):
    folder, run = finished
    for name in run.clients:
        known = folder / "parties" / "sites" / name / "calibration.npz"
        wish = Wish(alpha=alpha)
        found = predict(state_of(folder, name), folder / "new.npz", None, variant, None, wish, known)
        there = run.predict_file(name, folder / "new.npz", variant=variant, wish=wish)
        assert isinstance(found, SiteEstimate)
        assert torch.equal(found.prediction.means, there.prediction.means)
        assert torch.equal(found.prediction.variances, there.prediction.variances)
        assert found.conformal == there.conformal
        assert (
            (found.target, found.site, found.method)
            == (there.target, there.site, there.method)
            == ("days", name, "fedavg")
        )
        assert found.to_csv() == there.to_csv()
        assert found.to_dict()["records"] == there.to_dict()["records"]


def test_the_command_writes_the_columns_of_a_run_folder(finished, tmp_path, capsys):
    folder, run = finished
    name = run.clients[0]
    known = folder / "parties" / "sites" / name / "calibration.npz"
    asked = ["--input", str(folder / "new.npz"), "--alpha", "0.2"]
    for where, out in (
        (["--state", str(state_of(folder, name)), "--calibration", str(known)], "site.csv"),
        ([str(folder / "run"), "--client", name], "run.csv"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["predict", *where, *asked, "--out", str(tmp_path / out)])
        assert ended.value.code == 0
        assert "Intervals hold the true number of at least 0.8 of new records" in capsys.readouterr().out
    assert (tmp_path / "site.csv").read_text() == (tmp_path / "run.csv").read_text()
    rows = list(csv.DictReader((tmp_path / "site.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        *("mean", "sd", "epistemic", "aleatoric", "low", "high", "promised_low", "promised_high", "novelty", "flags")
    ]


def test_records_that_were_trained_on_calibrate_nothing(finished, tmp_path):
    folder, run = finished
    name = run.clients[0]
    with np.load(folder / "parties" / "sites" / name / "records.npz") as archive:
        np.savez(tmp_path / "trained.npz", x=archive["x_train"][:9], y=archive["y_train"][:9])
    with pytest.raises(UserError, match=r"all of its 9 record\(s\) are among those that were trained on"):
        predict(state_of(folder, name), folder / "new.npz", wish=Wish(alpha=0.2), calibration=tmp_path / "trained.npz")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"prior": "own"}, "prior: it is for classification"),
        ({"wish": Wish(risk=0.1)}, r"abstention \(risk\): it is for classification"),
        ({"wish": Wish(alpha=0.1, within="class")}, "by class: it is for classification"),
        ({"wish": Wish(alpha=0.1)}, "need labelled records that no training saw"),
    ],
)
def test_what_is_asked_of_classes_is_refused(finished, asked, words):
    folder, run = finished
    with pytest.raises(UserError, match=words) as error:
        predict(state_of(folder, run.clients[0]), folder / "new.npz", **asked)
    assert "\n" not in str(error.value)


def test_a_table_calibrates_and_is_predicted_by_its_names(tmp_path):
    """At a site whose records are a table with decimal commas of its own, under terms that describe columns."""
    coded = 'data.columns={age={kind="number", low=0, high=120}, ward={kind="category", values=["A", "B"]}}'
    table = stays(200)
    table.to_csv(tmp_path / "all.csv", index=False)
    config = hospitals(tmp_path / "all.csv", coded)
    terms = write_federation(tmp_path / "parties", config, "trial")
    mine, new = table[:160], table[160:]
    answers = []
    for decimal in (".", ","):
        folder = tmp_path / "parties" / "sites" / "north"
        mine.to_csv(folder / "own.csv", index=False, sep=";", decimal=decimal)
        text = (folder / "site.toml").read_text().split("[data]")[0]
        (folder / "site.toml").write_text(
            f"{text}[data]\nsource = 'csv'\npath = 'own.csv'\ntarget = 'days'\ndecimal = '{decimal}'\n"
            "[model]\nname = 'mlp'\noptions = {hidden = []}\n"
        )
        node = site_nodes([folder / "site.toml"])[0]
        ask(node, "update", 0, HandServer(terms, roster_of(Prepared.of(config, ["fedavg"]).sites)).message(0))
        new.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=decimal)
        said = predict(
            folder / "state",
            tmp_path / "new.csv",
            wish=Wish(alpha=0.3),
            calibration=tmp_path / "new.csv",
        )
        answers.append(said.to_csv())
        low, high = said.promised
        assert np.mean((low <= new["days"]) & (new["days"] <= high)) >= 0.7  # of the very records that it was fitted to
    assert answers[0] == answers[1]
