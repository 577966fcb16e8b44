import csv
import json
import re
import shutil

import numpy as np
import pytest
import torch

from fedbnn import Federation, UserError
from fedbnn.cli.app import main
from fedbnn.deployment.node import Node
from fedbnn.deployment.predict import predict
from fedbnn.federation.calibrated import Wish
from fedbnn.federation.message import Message
from fedbnn.models.conformal import Conformal
from fedbnn.models.training import channels_last
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import HandServer, ask, dealt, site_nodes, small_config, write_sites
from tests.deployment.test_site import NAMES, table

CONFIG = small_config("fedavg", "rounds=1")
RAW = dealt(CONFIG).dataset.x_test[:12]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished federation of three sites, and the same one on the local engine."""
    folder = tmp_path_factory.mktemp("finished")
    federation = Federation(CONFIG.chosen(), Prepared.of(CONFIG, ["fedavg"]).sites, seed=CONFIG.seed)
    nodes = site_nodes(write_sites(folder, CONFIG))
    server = HandServer(nodes[0].terms, federation.roster)
    for _ in range(CONFIG.rounds + 1):
        federation.step(evaluate=False)
        server.step(nodes)
    np.savez(folder / "x.npz", x=RAW, other=np.arange(3))
    return folder, federation


def state_of(folder, client=0):
    return folder / f"site-{client}" / "state"


@pytest.mark.parametrize("variant", [None, "global", "fine_tuned", "global_own_prior"])
def test_predictions_are_those_of_the_local_engine(finished, variant):
    folder, federation = finished
    for client in range(3):
        found = predict(state_of(folder, client), folder / "x.npz", variant=variant)
        x = channels_last(torch.from_numpy(dealt(CONFIG).seen(RAW)))
        expected = federation.predict(client, x, variant)
        assert torch.equal(found.prediction.probs, expected.probs)
        assert torch.equal(found.prediction.aleatoric, expected.aleatoric)
        assert found.labels == [found.class_names[k] for k in expected.labels.tolist()]


def test_every_form_of_output_says_the_same(finished, tmp_path):
    folder, _ = finished
    found = predict(state_of(folder), folder / "x.npz")
    for name in ("p.csv", "p.json", "p.npz"):
        arguments = ["predict", "--state", str(state_of(folder)), "--input", str(folder / "x.npz")]
        with pytest.raises(SystemExit) as done:
            main([*arguments, "--out", str(tmp_path / name)])
        assert done.value.code == 0
    with (tmp_path / "p.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        "class",
        *(f"p({name})" for name in found.class_names),
        "total",
        "epistemic",
        "aleatoric",
        "novelty",
        "flags",
    ]
    probs = np.array([[row[f"p({name})"] for name in found.class_names] for row in rows], dtype=np.float32)
    assert np.array_equal(probs, found.prediction.probs.numpy())
    assert [row["class"] for row in rows] == found.labels
    total, epistemic, aleatoric = (
        np.array([row[name] for row in rows], dtype=np.float32) for name in ("total", "epistemic", "aleatoric")
    )
    assert np.array_equal(total, found.prediction.total.numpy())
    assert np.allclose(epistemic + aleatoric, total, atol=1e-6)
    told = json.loads((tmp_path / "p.json").read_text())
    assert told == json.loads(json.dumps(found.to_dict()))
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["probs"], probs)
        assert np.array_equal(archive["aleatoric"], aleatoric)
        assert tuple(archive["class_names"]) == found.class_names


def test_the_command_prints_a_table_or_json(finished, capsys):
    folder, _ = finished
    arguments = ["predict", "--state", str(state_of(folder)), "--input", str(folder / "x.npz")]
    with pytest.raises(SystemExit):
        main(arguments)
    shown = capsys.readouterr().out
    assert "2 more; --out FILE.csv" in shown
    assert "epistemic" in shown
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(json.dumps(predict(state_of(folder), folder / "x.npz").to_dict()))
    assert len(told["records"]) == 12


@pytest.mark.parametrize(
    ("text", "prior", "words"),
    [
        ("own", "own", "the site's own class shares"),
        ("uniform", "uniform", "every class equally likely"),
        ("estimate", "estimate", "estimated from these records"),
        ("1,2,3,4,5,6,7,8,9,10", range(1, 11), "as given"),
        ("3=1,5=3", [0, 0, 0, 1, 0, 3, 0, 0, 0, 0], "as given"),
    ],
)
def test_a_prior_may_be_asked_for_and_is_told(finished, tmp_path, capsys, text, prior, words):
    folder, federation = finished
    x = channels_last(torch.from_numpy(dealt(CONFIG).seen(RAW)))
    expected = federation.predict(0, x, prior=prior)
    arguments = ["predict", "--state", str(state_of(folder)), "--input", str(folder / "x.npz"), "--prior", text]
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(tmp_path / "p.npz")])
    assert f"label prior: {words}" in " ".join(capsys.readouterr().out.split())
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["probs"], expected.probs.numpy())
        assert np.array_equal(archive["prior"], expected.prior.numpy())
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["asked_prior"] == (text if isinstance(prior, str) else "given")
    assert list(told["prior"].values()) == expected.prior.tolist()
    assert sum(told["prior"].values()) == pytest.approx(1)
    assert not np.array_equal(expected.probs.numpy(), federation.predict(0, x).probs.numpy()) or text == "uniform"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unifrom", "prior 'unifrom': it is own, uniform, estimate, 10 shares .* did you mean 'uniform'?"),
        ("0.5,0.5", "it has 2 shares, there are 10 classes"),
        ("3=1,12=1", "there is no class '12'"),
        ("3=-1", "every share must be a number of at least 0"),
        ("0,0,0,0,0,0,0,0,0,0", "must have a sum above 0"),
    ],
)
def test_a_prior_that_is_none_is_told_before_any_work(finished, tmp_path, capsys, text, words):
    state = str(state_of(finished[0]))
    with pytest.raises(SystemExit) as done:
        main(["predict", "--state", state, "--input", str(tmp_path / "none.npz"), "--prior", text])
    assert done.value.code == 2
    assert re.search(words, " ".join(capsys.readouterr().err.split()))


def test_the_only_array_may_have_any_name_and_bytes_are_divided_by_255(finished, tmp_path):
    folder, _ = finished
    raw = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", pictures=raw)
    np.savez(tmp_path / "floats.npz", x=raw[:, None].astype(np.float32) / np.float32(255))
    one, other = (predict(state_of(folder), tmp_path / name).prediction for name in ("bytes.npz", "floats.npz"))
    assert torch.equal(one.probs, other.probs)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": RAW[..., :-1]}, r"shape \(1, 8, 7\), agreed was \(1, 8, 8\)"),
        ({"x": RAW[:0]}, "has no records"),
        ({"x": np.where(RAW > 0.9, np.nan, RAW)}, "NaN or infinity"),
        ({"a": RAW, "b": RAW}, "has no array 'x'; it has: 'a', 'b'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(finished, tmp_path, arrays, words):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=words):
        predict(state_of(finished[0]), tmp_path / "x.npz")


def test_what_cannot_be_done_is_told(finished, tmp_path, capsys):
    folder, _ = finished
    state, x = state_of(folder), folder / "x.npz"
    with pytest.raises(UserError, match="no site has worked there yet"):
        predict(tmp_path, x)
    with pytest.raises(UserError, match=r"must end in \.npz or \.csv"):
        predict(state, tmp_path / "x.txt")
    with pytest.raises(
        UserError, match="variant 'personal': method 'fedavg' scores global, fine_tuned, global_own_prior"
    ):
        predict(state, x, variant="personal")
    with pytest.raises(UserError, match="--run other: there is no such run"):
        predict(state, x, run="other")
    with pytest.raises(SystemExit) as done:
        main(["predict", "--state", str(state), "--input", str(x), "--out", str(tmp_path / "p.txt")])
    assert done.value.code == 2
    assert "must end in .csv, .json, .npz" in " ".join(capsys.readouterr().err.split())


def test_of_several_runs_one_has_to_be_chosen(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0] / "site-1", folder)
    state = folder / "state"
    [key] = [path.name for path in (state / "runs").iterdir()]
    (state / "site.json").write_text(json.dumps({"site": str(folder / "site.toml")}))
    shutil.copytree(state / "runs" / key, state / "runs" / "trial-older")
    with pytest.raises(UserError, match=f"several runs: choose one with --run .{key}, trial-older."):
        predict(state, finished[0] / "x.npz")
    expected = predict(state_of(finished[0], 1), finished[0] / "x.npz").prediction
    for run in (key, "trial-older"):
        assert torch.equal(predict(state, finished[0] / "x.npz", run=run).prediction.probs, expected.probs)


def test_before_the_first_round_nothing_is_predicted(tmp_path):
    file = write_sites(tmp_path, CONFIG)[0]
    node = Node.from_file(file)
    with pytest.raises(UserError, match="not taken part in any run yet"):
        predict(file.parent / "state", tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=RAW)
    node.state.begin(node.terms, node.site.client)
    with pytest.raises(UserError, match="nothing has been learned yet"):
        predict(file.parent / "state", tmp_path / "x.npz")


def test_columns_of_a_table_are_found_by_name(tmp_path):
    file = table(tmp_path / "site", ["sick", *NAMES])
    node = Node.from_file(file)
    ask(node, "update", 0, Message())
    state = file.parent / "state"
    (tmp_path / "one.csv").write_text("age,height,weight,sick\n1,2,3,yes\n4,5,6,no\n")
    (tmp_path / "other.csv").write_text("weight,note,age,height\n3,0,1,2\n6,0,4,5\n")
    one, other = (predict(state, tmp_path / name).prediction.probs for name in ("one.csv", "other.csv"))
    assert torch.equal(one, other)
    (tmp_path / "short.csv").write_text("weight,age\n3,1\n")
    with pytest.raises(UserError, match="feature = 'height' is not a column of --input"):
        predict(state, tmp_path / "short.csv")


def test_inputs_unlike_all_of_the_alignment_set_are_told(finished, tmp_path):
    folder, _ = finished
    usual = predict(state_of(folder), folder / "x.npz").novelty
    noise = np.random.default_rng(0).uniform(0, RAW.max(), RAW.shape).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=noise)
    strange = predict(state_of(folder), tmp_path / "x.npz").novelty
    assert float(usual.median()) < 1 < float(strange.min())


def test_sets_and_abstention_rest_on_a_file_of_labelled_records(finished, tmp_path, capsys):
    folder, federation = finished
    data = dealt(CONFIG).dataset
    x, y = data.x_test[12:212], data.y_test[12:212]
    np.savez(tmp_path / "known.npz", x=x, y=np.array(data.class_names)[y])
    found = predict(state_of(folder), folder / "x.npz", wish=Wish(0.2, 0.3), calibration=tmp_path / "known.npz")
    known = federation.predict(0, channels_last(torch.from_numpy(dealt(CONFIG).seen(x)))).probs
    expected = Conformal.fit(known, y, 0.2)
    assert np.array_equal(found.calibrated.sets(found.prediction), expected.sets(found.prediction.probs))
    assert found.calibrated.abstention.records == 200
    with pytest.raises(UserError, match="need labelled records that no training saw"):
        predict(state_of(folder), folder / "x.npz", wish=Wish(0.2))
    rows = dealt(CONFIG).client_indices[0]
    np.savez(tmp_path / "own.npz", x=data.x_train[rows], y=data.y_train[rows])
    with pytest.raises(UserError, match=r"--calibration .*own.npz: all of its \d+ record"):
        predict(state_of(folder), folder / "x.npz", wish=Wish(0.2), calibration=tmp_path / "own.npz")
    arguments = ["predict", "--state", str(state_of(folder)), "--input", str(folder / "x.npz"), "--alpha", "0.2"]
    with pytest.raises(SystemExit):
        main([*arguments, "--calibration", str(tmp_path / "known.npz"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [tuple(record["set"]) for record in told["records"]] == found.sets


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": RAW}, "has no array 'y'"),
        ({"x": RAW, "y": np.zeros(12)}, "y is float64"),
        ({"x": RAW, "y": np.full(12, 10)}, "outside 0 .. 9"),
        ({"x": RAW, "y": np.full(12, "ten")}, "'ten' is not a class"),
        ({"x": RAW, "y": np.zeros(11, int)}, "12 records but .* 11 labels"),
        ({"x": RAW[..., :-1], "y": np.zeros(12, int)}, r"shape \(1, 8, 7\), those of the run have"),
        ({"x": RAW * np.nan, "y": np.zeros(12, int)}, "NaN or infinity"),
    ],
)
def test_labelled_records_that_do_not_fit_are_refused(finished, tmp_path, arrays, words):
    np.savez(tmp_path / "known.npz", **arrays)
    source = finished[0] / "x.npz"
    with pytest.raises(UserError, match=words):
        predict(state_of(finished[0]), source, wish=Wish(0.2), calibration=tmp_path / "known.npz")
