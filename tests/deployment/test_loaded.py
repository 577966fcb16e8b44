import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import fedbnn
from fedbnn import Federation, UserError, load_config
from fedbnn.cli.app import main
from fedbnn.models.conformal import Conformal
from fedbnn.runs.experiment import Prepared

FAST = (
    "method=fedavg",
    "rounds=1",
    "partition.kind=iid",
    "partition.clients=2",
    "training.warmup_epochs=3",
    "training.local_epochs=2",
    "data.alignment=20",
    "data.calibration=0.3",
    "engine.debug=true",
    'models=[{name="mlp"}]',
)


@pytest.fixture(scope="module")
def config():
    return load_config(None, FAST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    fedbnn.run(config, folder)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return fedbnn.load(folder)


def test_a_loaded_run_predicts_the_bits_of_the_one_that_ran(run, config):
    federation = Federation(config.chosen(), Prepared.of(config, ["fedavg"]).sites, seed=config.seed)
    federation.run(1)
    x = run.data.dataset.x_test[:30]
    for client, name in enumerate(run.clients):
        for options in ({}, {"variant": "fine_tuned"}, {"prior": "own"}, {"prior": range(1, 11)}):
            expected = federation.predict(client, x, raw=True, **options)
            found = run.predict(name, x, **options)
            assert torch.equal(found.prediction.probs, expected.probs)
            assert torch.equal(found.prediction.draws, expected.draws)
            assert torch.equal(run.predict(client, x, **options).prediction.probs, expected.probs)
    assert found.asked == "given"
    assert run.round_number == 1


def test_what_a_run_knows_of_itself(run, config):
    assert run.config.to_json() == config.to_json()
    assert run.clients == ("client-0", "client-1")
    scores = run.scores()
    assert isinstance(scores, pandas.DataFrame)
    assert scores["name"].tolist() == list(run.clients)
    assert scores["ece"].tolist() == run.result["per_client"]["ece"]


@pytest.mark.parametrize("within", ["client", "class"])
def test_sets_rest_on_the_clients_own_records_that_were_kept_back(run, within):
    x = run.data.dataset.x_test
    site = run.site(1)
    rows = run.data.calibration_indices[1]
    assert len(site.calibration) == len(rows) > 100
    assert set(rows.tolist()).isdisjoint(np.concatenate(run.data.client_indices).tolist())
    found = run.predict(1, x, alpha=0.1, prior="uniform", within=within)
    known = run.predict(1, run.data.dataset.x_train[rows], prior="uniform").prediction.probs
    expected = Conformal.fit(known, run.data.dataset.y_train[rows], 0.1, within=within)
    held = expected.sets(found.prediction.probs)
    assert found.sets == [tuple(np.array(run.class_names)[row]) for row in held]
    if within == "client":  # these are new records of the same kind
        low, _ = expected.likely_coverage(0.9999)
        covered = held[np.arange(len(x)), run.data.dataset.y_test].mean()
        assert low - 0.06 < covered
        assert held.sum(1).mean() < 5


def test_answers_are_right_as_often_as_was_promised(run):
    data = run.data.dataset
    found = run.predict(0, data.x_test, risk=0.2)
    answered = ~np.array(found.abstains)
    right = np.array(found.labels) == np.array(data.class_names)[data.y_test]
    assert answered.mean() > 0.1
    assert 1 - right[answered].mean() <= 0.2
    assert right[answered].mean() >= right.mean()


def test_other_labelled_records_may_be_given(run, tmp_path):
    data = run.data.dataset
    x, y = data.x_test[:200], data.y_test[:200]
    found = run.predict(0, data.x_test[200:], alpha=0.1, calibration=(x, y))
    by_name = run.predict(0, data.x_test[200:], alpha=0.1, calibration=(x, np.array(data.class_names)[y]))
    expected = Conformal.fit(run.predict(0, x).prediction.probs, y, 0.1)
    assert np.array_equal(found.calibrated.sets(found.prediction), expected.sets(found.prediction.probs))
    assert by_name.sets == found.sets
    own = run.data.client_indices[1][:5]
    mixed = np.concatenate([data.x_train[own], x[:50]]), np.concatenate([data.y_train[own], y[:50]])
    assert "5 of them equal training records" in run.predict(0, x, alpha=0.1, calibration=mixed).promises[-1]
    with pytest.raises(UserError, match="all of its 5 record"):
        run.predict(0, x, alpha=0.1, calibration=(data.x_train[own], data.y_train[own]))
    with pytest.raises(UserError, match="3 records, but 2 labels"):
        run.predict(0, x, alpha=0.1, calibration=(x[:3], y[:2]))
    with pytest.raises(UserError, match="'x' is not a class"):
        run.predict(0, x, alpha=0.1, calibration=(x[:1], ["x"]))


def ask(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(["predict", *map(str, arguments)])
    told = capsys.readouterr()
    return done.value.code, told.out, " ".join(told.err.split())


def test_the_command_writes_sets_abstention_and_flags(run, folder, tmp_path, capsys):
    x = run.data.dataset.x_test[:15].copy()
    x[3] = np.random.default_rng(0).uniform(0, x.max(), x[3].shape)  # noise
    np.savez(tmp_path / "x.npz", x=x)
    expected = run.predict("client-1", x, alpha=0.2, risk=0.2)
    options = [folder, "--client", "client-1", "--input", tmp_path / "x.npz", "--alpha", 0.2, "--abstain-risk", 0.2]
    code, out, _ = ask(capsys, *options, "--out", tmp_path / "p.csv")
    assert code == 0
    assert "Sets hold the true class of at least 0.8" in " ".join(out.split())
    with (tmp_path / "p.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["set"] for row in rows] == ["; ".join(one) for one in expected.sets]
    assert [row["abstain"] == "yes" for row in rows] == expected.abstains
    assert rows[3]["flags"] == "foreign"
    assert [row["flags"] == "foreign" for row in rows] == (expected.novelty > 1).tolist()
    code, out, _ = ask(capsys, *options, "--json")
    assert json.loads(out) == json.loads(json.dumps(expected.to_dict()))
    ask(capsys, *options, "--out", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["sets"], expected.calibrated.sets(expected.prediction))
        assert archive["abstain"].tolist() == expected.abstains
    labelled = {"x": run.data.dataset.x_test[15:], "y": run.data.dataset.y_test[15:]}
    np.savez(tmp_path / "known.npz", **labelled)
    code, out, _ = ask(
        capsys, *options, "--json", "--calibration", tmp_path / "known.npz", "--by-class", "--score", "lac"
    )
    told = json.loads(out)["promise"]["sets"]
    assert (told["within"], told["score"], sum(told["records"].values())) == ("class", "lac", len(labelled["y"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--client", "client-9"], "client 'client-9': there is no such client"),
        ([], "whose model?"),
        (["--client", "client-0", "--state", "x"], "whose model?"),
        (["--client", "client-0", "--alpha", "1"], "alpha = 1.0"),
        (["--client", "client-0", "--alpha", "0.1", "--prior", "estimate"], "prior 'estimate' depends on the new"),
        (["--client", "client-0", "--alpha", "0.1", "--score", "x"], "score = 'x': it is lac or aps"),
        (["--client", "client-0", "--variant", "personal"], "variant 'personal': method 'fedavg' scores global"),
        (["--client", "client-0", "--alpha", "0.1", "--calibration", "x.txt"], "must end in .npz or .csv"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, tmp_path, capsys, options, words):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.float32))
    code, _, error = ask(capsys, folder, "--input", tmp_path / "x.npz", *options)
    assert code == 2
    assert words in error


def copied(folder, tmp_path, **changes):
    """The run with another config.json."""
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / "copy" / "config.json"
    stored = json.loads(file.read_text())
    for key, value in changes.items():
        table, _, name = key.rpartition("__")
        (stored[table] if table else stored)[name] = value
    file.write_text(json.dumps(stored))
    return tmp_path / "copy"


def test_code_that_a_folder_names_is_not_run_unasked(folder, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    for changes in ({"models": [{"name": "evil:net", "share": 1.0, "options": {}}]}, {"method": "evil:Method"}):
        other = copied(folder, tmp_path, **changes)
        with pytest.raises(UserError, match=r"uses code of its own \('evil:"):
            fedbnn.load(other)
        shutil.rmtree(other)


def test_another_partition_or_no_state_is_refused(folder, tmp_path):
    other = fedbnn.load(copied(folder, tmp_path, seed=1))
    with pytest.raises(UserError, match="the data are not those of the run"):
        _ = other.clients
    with pytest.raises(UserError, match="holds no run"):
        fedbnn.load(tmp_path)
    stopped = fedbnn.load(tmp_path / "copy")
    (tmp_path / "copy" / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        _ = stopped.result
    (tmp_path / "copy" / "config.json").write_text((folder / "config.json").read_text())
    again = fedbnn.load(tmp_path / "copy")
    for state in (tmp_path / "copy" / "checkpoint").glob("*/client-*"):
        state.unlink()
    with pytest.raises(UserError, match="no good one is left"):
        again.predict(0, again.data.dataset.x_test)
    shutil.rmtree(tmp_path / "copy" / "checkpoint")
    with pytest.raises(UserError, match="holds no checkpoint"):
        fedbnn.load(tmp_path / "copy").predict(0, again.data.dataset.x_test)


def test_columns_of_a_table_are_found_by_name(tmp_path, config):
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(size=(120, 3)), columns=["age", "height", "weight"]).astype(np.float32)
    table["sick"] = np.where(table["age"] + table["weight"] > 0, "yes", "no")
    table.to_csv(tmp_path / "all.csv", index=False)
    changes = ["data.source=csv", f"data.path={tmp_path / 'all.csv'}", "data.target=sick", "data.calibration=0"]
    fedbnn.run(load_config(None, [*FAST, *changes]), tmp_path / "run")
    run = fedbnn.load(tmp_path / "run")
    turned = table[["weight", "sick", "height", "age"]]
    turned.to_csv(tmp_path / "new.csv", index=False)
    expected = run.predict(0, table[["age", "height", "weight"]].to_numpy()).prediction.probs
    assert torch.equal(run.predict(0, turned).prediction.probs, expected)
    assert torch.equal(run.predict_file(0, tmp_path / "new.csv").prediction.probs, expected)
    with pytest.raises(UserError, match="x has no column 'age'"):
        run.predict(0, turned[["weight", "height"]])
    with pytest.raises(UserError, match="need labelled records that no training saw"):
        run.predict(0, turned, alpha=0.1)
    fresh = pandas.DataFrame(rng.normal(size=(40, 3)), columns=["age", "height", "weight"])
    fresh.assign(sick=np.where(fresh["age"] + fresh["weight"] > 0, "yes", "no")).to_csv(
        tmp_path / "known.csv", index=False
    )
    found = run.predict_file(0, tmp_path / "new.csv", wish=fedbnn.Wish(alpha=0.2), calibration=tmp_path / "known.csv")
    assert found.calibrated.conformal.records == 40
    Path(tmp_path / "wrong.csv").write_text("age,height,weight,sick\n1,2,3,maybe\n")
    with pytest.raises(UserError, match="'maybe' is not a class"):
        run.predict_file(0, tmp_path / "new.csv", wish=fedbnn.Wish(alpha=0.2), calibration=tmp_path / "wrong.csv")
