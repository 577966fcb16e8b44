import json
import shutil
import sys
import tomllib

import numpy as np
import pytest
from safetensors.torch import load_file

import fedbnn
from fedbnn.cli.app import main
from fedbnn.data import SOURCES
from fedbnn.federation.loop import Federation
from fedbnn.methods import METHODS
from fedbnn.models.architectures import MODELS
from fedbnn.runs.config import Config, parse_config

COMMANDS = ["run", "compare", "report", "methods", "models", "datasets", "config"]


@pytest.fixture
def sets(tiny):
    """`--set` for the tiny federation and then for what a test wants to change."""

    def sets(*changes):
        return [part for change in (*tiny, *changes) for part in ("--set", change)]

    return sets


@pytest.fixture
def refused(call):
    """A call that must end in one line for the user; the line."""

    def refused(*arguments):
        code, out, err = call(*arguments)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert out == ""
        return err

    return refused


def everything_in(path):
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None)
        for file in sorted(path.rglob("*"))
    }


def without_times(value):
    """A result without what a clock said."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k and "elapsed" not in k}
    if isinstance(value, list):
        return [without_times(entry) for entry in value]
    return value


def result_of(folder):
    return without_times(json.loads((folder / "result.json").read_text()))


def metrics_of(folder):
    return without_times([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])


def newest(folder):
    return sorted((folder / "checkpoint").glob("round-*"))[-1]


def tensors_of(folder):
    """Bytes of every tensor of the newest checkpoint."""
    return {
        (file.name, name): (tuple(tensor.shape), tensor.numpy().tobytes())
        for file in sorted(newest(folder).glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


# What needs no run


def test_version(call):
    assert call("--version") == (0, f"fedbnn {fedbnn.__version__}\n", "")


def test_help(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_every_command(call, command, flag):
    code, out, err = call(command, flag)
    assert (code, err) == (0, "")
    assert f"{command} " in out
    assert "Usage" in out


@pytest.mark.parametrize(
    ("command", "kind", "names"),
    [("methods", "method", METHODS), ("models", "model", MODELS), ("datasets", "source", SOURCES)],
)
def test_lists(call, command, kind, names):
    code, out, err = call(command)
    assert (code, err) == (0, "")
    assert all(name in out for name in names)
    code, out, err = call(command, "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)
    assert [entry[kind] for entry in entries] == list(names)
    assert all(entry["summary"].strip() for entry in entries)


def test_methods_say_what_they_keep_and_send(call):
    _, out, _ = call("methods", "--json")
    told = {entry["method"]: entry for entry in json.loads(out)}
    assert all(entry.keys() == {"method", "summary", "keeps", "sends", "mixed"} for entry in told.values())
    assert (told["fedavg"]["keeps"], told["fedavg"]["sends"]) == (["weights"], ["weights", "records"])
    assert (told["fedbnn"]["sends"], told["fedbnn"]["mixed"]) == (["phi"], True)
    assert told["local"]["sends"] == []
    _, out, _ = call("methods")
    assert "sends phi; any architectures" in " ".join(out.split())


def test_config_prints_the_default_configuration(call):
    code, out, err = call("config")
    assert (code, err) == (0, "")
    assert parse_config(tomllib.loads(out)) == Config()


@pytest.mark.parametrize("arguments", [["frobnicate"], ["run", "--frobnicate"], ["report"], ["run", "a", "b"]])
def test_bad_usage(call, arguments):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


# Runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny):
    """A run to the end, which no test may change."""
    folder = tmp_path_factory.mktemp("cli") / "finished"
    with pytest.raises(SystemExit) as stopped:
        main(["run", *(part for change in tiny for part in ("--set", change)), "--out", str(folder), "--json"])
    assert not stopped.value.code
    return folder


def test_run_prints_a_table(call, sets, tmp_path):
    code, out, err = call("run", *sets("rounds=1", "method=local"), "--out", tmp_path / "run")
    assert code == 0
    assert "local" in out
    assert "digits, 3 clients, 1 rounds; scored on test records" in out
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in out
    assert "round 1/1" in err
    assert (tmp_path / "run" / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_run_prints_json(call, sets, tmp_path, finished):
    code, out, _ = call("run", *sets(), "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "run" / "result.json").read_text())
    assert without_times(json.loads(out)) == result_of(finished)


def test_run_reads_a_file_and_changes(call, sets, tmp_path):
    (tmp_path / "mine.toml").write_text('method = "local"\nseed = 4\n')
    code, out, _ = call("run", tmp_path / "mine.toml", *sets("rounds=1"), "--out", tmp_path / "run", "--json")
    assert code == 0
    assert [json.loads(out)[key] for key in ("method", "seed", "rounds")] == ["local", 4, 1]


def test_the_default_folder(call, sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("run", *sets("rounds=1", "method=local", "seed=3"))[0] == 0
    assert (tmp_path / "runs" / "digits-local-seed3" / "result.json").exists()


def test_compare_two_methods_and_two_seeds(call, sets, tmp_path):
    arguments = [
        "compare",
        *sets("rounds=1"),
        "--methods",
        "fedmd, local",
        "--seeds",
        "0,5",
        "--out",
        tmp_path / "both",
    ]
    code, out, _ = call(*arguments, "--json")
    assert code == 0
    results = json.loads(out)
    expected = [("fedmd", 0), ("local", 0), ("fedmd", 5), ("local", 5)]
    assert [(result["method"], result["seed"]) for result in results] == expected
    listed = json.loads((tmp_path / "both" / "comparison.json").read_text())["runs"]
    assert [(entry["method"], entry["seed"]) for entry in listed] == expected
    for entry, result in zip(listed, results, strict=True):
        folder = tmp_path / "both" / entry["folder"]
        assert json.loads((folder / "result.json").read_text()) == result
        assert (folder / "report.html").exists()
    assert (tmp_path / "both" / "report.html").exists()
    for seed in (0, 5):
        one, other = (tmp_path / "both" / f"{name}-seed{seed}" / "partition.json" for name in ("fedmd", "local"))
        assert one.read_bytes() == other.read_bytes()

    before = everything_in(tmp_path / "both")
    code, out, err = call(*arguments, "--resume")
    assert code == 0
    assert "mean ± sd over 2 seeds" in " ".join(out.split())
    assert err.count("finished already") == 4
    after = everything_in(tmp_path / "both")
    assert all(after[name] == before[name] for name in before if name.endswith("result.json"))
    assert "already holds this run" in call(*arguments)[2]


def test_a_run_of_a_comparison_is_the_run_itself(call, sets, tmp_path, finished):
    assert call("compare", *sets(), "--methods", "local,fedbnn", "--out", tmp_path / "both")[0] == 0
    assert result_of(tmp_path / "both" / "fedbnn-seed0") == result_of(finished)


def test_report_again(call, sets, tmp_path):
    folder = tmp_path / "run"
    call("run", *sets("rounds=1", "method=local"), "--out", folder)
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    code, out, err = call("report", folder)
    assert (code, out.strip(), err) == (0, str(folder / "report.html"), "")
    assert (folder / "report.html").read_bytes() == page


def test_resuming_a_finished_run_works_nothing_out_again(call, sets, finished, monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("a round was worked out again")

    monkeypatch.setattr(Federation, "step", forbidden)
    monkeypatch.setattr(Federation, "evaluate", forbidden)
    before = everything_in(finished)
    code, out, err = call("run", *sets(), "--out", finished, "--resume", "--json")
    assert code == 0
    assert "is finished already" in err
    assert json.loads(out) == json.loads((finished / "result.json").read_text())
    after = everything_in(finished)
    assert {name: after[name] for name in before if name != "report.html"} == {
        name: before[name] for name in before if name != "report.html"
    }
    assert after["report.html"][1] == before["report.html"][1]


def interrupt_at(monkeypatch, number):
    """Ctrl-C when this round begins."""
    step = Federation.step

    def interrupted(self, *arguments, **options):
        if self.round_number + 1 == number:
            raise KeyboardInterrupt
        return step(self, *arguments, **options)

    monkeypatch.setattr(Federation, "step", interrupted)


def assert_same_run(one, other):
    assert result_of(one) == result_of(other)
    assert metrics_of(one) == metrics_of(other)
    assert newest(one).name == newest(other).name
    assert tensors_of(one) == tensors_of(other)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_interrupted_and_resumed_is_the_same_run(call, sets, tmp_path, finished, number):
    arguments = ["run", *sets(), "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, number)
        code, _, err = call(*arguments)
    assert code == 130
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "result.json").exists()
    code, _, err = call(*arguments, "--resume")
    assert code == 0
    assert ("going on after round" in err) == (number > 0)
    assert_same_run(tmp_path / "run", finished)


def test_interrupted_says_how_to_go_on(call, sets, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 1)
    code, _, err = call("run", *sets(), "--out", tmp_path / "run")
    assert code == 130
    assert "--resume goes on after the last finished round" in err


@pytest.mark.parametrize("method", ["fedmd", "local_bnn", "local"])
def test_other_methods_resume_bit_for_bit(call, sets, tmp_path, method):
    assert call("run", *sets(f"method={method}"), "--out", tmp_path / "whole")[0] == 0
    arguments = ["run", *sets(f"method={method}"), "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 2)
        assert call(*arguments)[0] == 130
    assert call(*arguments, "--resume")[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_begun_before_a_setting_existed_goes_on_where_that_stands_at_its_default(
    call, refused, sets, tmp_path, finished
):
    arguments = ["run", *sets(), "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 2)
        assert call(*arguments)[0] == 130
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    del config["methods"]["fedbnn"]["rehearsal"], config["data"]["inputs"]
    file.write_text(json.dumps(config))
    text = refused("run", *sets("methods.fedbnn.rehearsal=0.5"), "--out", tmp_path / "run", "--resume")
    assert "methods.fedbnn.rehearsal was 1.0, is 0.5" in text
    assert call(*arguments, "--resume")[0] == 0
    file.write_text((finished / "config.json").read_text())
    assert_same_run(tmp_path / "run", finished)


def test_a_run_with_a_setting_that_is_no_more_is_refused(refused, sets, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"abolished": 3}))
    assert "abolished was 3, is None" in refused("run", *sets(), "--out", tmp_path / "run", "--resume")


def test_interrupted_between_checkpoints(call, sets, tmp_path):
    changes = sets("rounds=4", "checkpoint_every=2", "participation=0.5")
    assert call("run", *changes, "--out", tmp_path / "whole")[0] == 0
    arguments = ["run", *changes, "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 4)
        assert call(*arguments)[0] == 130
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "cli')
    code, _, err = call(*arguments, "--resume")
    assert code == 0
    assert "going on after round 2" in err
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_corrupt_checkpoint_costs_one_round(call, sets, tmp_path, finished):
    arguments = ["run", *sets(), "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 2)
        assert call(*arguments)[0] == 130
    file = newest(tmp_path / "run") / "client-0001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    code, _, err = call(*arguments, "--resume")
    assert code == 0
    assert "checkpoint round-00001 is corrupt (client-0001.safetensors does not match its checksum)" in err
    assert "going on from round 0 instead" in err
    assert "Traceback" not in err
    assert_same_run(tmp_path / "run", finished)


def test_no_good_checkpoint_is_left(refused, call, sets, tmp_path):
    arguments = ["run", *sets("method=local"), "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 2)
        assert call(*arguments)[0] == 130
    for manifest in (tmp_path / "run" / "checkpoint").glob("*/manifest.json"):
        manifest.unlink()
    before = everything_in(tmp_path / "run")
    assert "no good one is left" in refused(*arguments, "--resume")
    assert everything_in(tmp_path / "run") == before


def test_stopped_after_the_last_round(call, sets, tmp_path, finished, monkeypatch):
    """The result is made from the checkpoint and the metrics, without another round."""
    arguments = ["run", *sets(), "--out", tmp_path / "run"]
    assert call(*arguments)[0] == 0
    (tmp_path / "run" / "result.json").unlink()
    interrupt_at(monkeypatch, 3)
    assert call(*arguments, "--resume")[0] == 0
    assert_same_run(tmp_path / "run", finished)


# Mistakes: one line, code 2, nothing written


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["roundz=3"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (["methods.fedbnn.gama=0.1"], "unknown key 'methods.fedbnn.gama'; did you mean 'gamma'?"),
        (["rounds=many"], "rounds = 'many': Input should be a valid integer"),
        (["seed=-1"], "seed = -1: Input should be greater than or equal to 0"),
        (["method=fedbnnn"], "method = 'fedbnnn': unknown; did you mean 'fedbnn'?"),
        (["rounds"], "--set rounds: write it as dotted.key=value"),
        (["partition.classes_per_client=11"], "partition.classes_per_client = 11, but the data has 10 classes"),
        (["partition.records_per_class=200"], "are missing"),
        (["data.alignment=2000"], "773 are missing"),  # 120 for the clients + 2000 - 1347
        (["data.alignment=0"], "data.alignment must be at least 1"),
        (["partition.kind=iid", "partition.clients=1400", "data.alignment=1"], "54 are missing"),
        (["partition.kind=dirichlet", "partition.alpha=0.001", "partition.clients=60"], "got no record"),
        (["partition.kind=natural"], "names no clients"),
        (["partition.kind=iid", "partition.small_share=0.5"], "partition.small_share = 0.5 needs partition.kind"),
        (["data.source=digit"], "did you mean 'digits'?"),
        (["data.source=npz", "data.path=/no/such/file.npz"], "there is no such file"),
        (["evaluation.split=validation"], "data.validation = 0"),
        (["engine.device=gpu"], "engine.device = 'gpu': must be auto, cpu, cuda, cuda:N"),
        (['models=[{name="cnn4"}]'], "unknown model 'cnn4'; did you mean 'cnn3'?"),
        (['models=[{name="mlp", options={depth=2}}]'], "its options are hidden"),
        (['models=[{name="not_there.at_all:make"}]'], "No module named 'not_there'"),
        (['models=[{name="mlp"}, {name="cnn3", options={channels=[2, 2, 2, 2]}}]'], "images of at least 16x16"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["compare", "--methods", "fedbnn,local"]], ids=["run", "compare"])
def test_a_mistake_in_the_configuration(refused, sets, tmp_path, command, changes, expected):
    assert expected in refused(*command, *sets(*changes), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["run"], ["compare", "--methods", "local"]], ids=["run", "compare"])
def test_a_device_that_is_not_here(refused, sets, tmp_path, monkeypatch, command):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("fedbnn.runs.experiment.load_dataset", lambda *_: pytest.fail("work has begun"))
    said = refused(*command, *sets("engine.device=cuda"), "--out", tmp_path / "run")
    assert "engine.device = 'cuda': PyTorch sees no CUDA device here" in said
    assert not (tmp_path / "run").exists()


def test_too_few_records_says_how_many(refused, sets, tmp_path):
    text = refused("run", *sets("partition.clients=10", "partition.records_per_class=40"), "--out", tmp_path / "run")
    # Every class has 10 * 5 / 10 = 5 holders of 40 records: 200 are needed of each, 2000 in all.
    train = 1347
    assert f"{2000 - train} are missing in all" in text
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_there(refused, tmp_path):
    assert "no configuration file" in refused("run", tmp_path / "absent.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_toml(refused, tmp_path):
    (tmp_path / "bad.toml").write_text("rounds 3")
    assert "cannot be read as TOML" in refused("run", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("nn.Linear(64, 7)", "gives outputs of shape (7,) for a record, but the data has 10 classes"),
        ("nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))", "use torch.nn.GroupNorm instead"),
        ("nn.Linear(63, 10)", "cannot take records of shape (1, 8, 8)"),
        ("nn.Identity()", "no trainable parameters"),
    ],
    ids=["width", "batchnorm", "shape", "empty"],
)
def test_a_model_that_cannot_be_used(refused, sets, tmp_path, monkeypatch, request, body, expected):
    name = f"own_model_{request.node.callspec.id}"
    (tmp_path / f"{name}.py").write_text(
        f"from torch import nn\ndef make(input_shape, classes):\n    return nn.Sequential(nn.Flatten(), {body})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        text = refused("run", *sets(f'models=[{{name="{name}:make"}}]'), "--out", tmp_path / "run")
    finally:
        sys.modules.pop(name, None)
    assert expected in text
    assert not (tmp_path / "run").exists()


def archive(path, spoil):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.normal(size=(60, 5)),
        "y_train": np.arange(60) % 3,
        "x_test": rng.normal(size=(30, 5)),
        "y_test": np.arange(30) % 3,
    }
    spoil(arrays)
    np.savez(path, **arrays)
    return [
        "data.source=npz",
        f"data.path={path}",
        "data.alignment=9",
        "partition.classes_per_client=2",
        "partition.records_per_class=5",
    ]


def test_own_arrays_run(call, sets, tmp_path):
    changes = archive(tmp_path / "mine.npz", lambda arrays: None)
    code, out, err = call("run", *sets(*changes, "rounds=1"), "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["bytes_up_per_client_round"] == 9 * 3 * 4


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("array", ["x_train", "x_test"])
def test_arrays_that_are_not_finite(refused, sets, tmp_path, array, value):
    def spoil(arrays):
        arrays[array][17, 2] = value

    changes = archive(tmp_path / "mine.npz", spoil)
    text = refused("run", *sets(*changes), "--out", tmp_path / "run")
    assert f"{array} holds NaN or infinity in 1 record(s), the first at index 17" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_with_another_configuration(refused, sets, finished, resume):
    before = everything_in(finished)
    text = refused("run", *sets("methods.fedbnn.gamma=0.25"), "--out", finished, *resume)
    assert "another configuration (methods.fedbnn.gamma was 0.7, is 0.25)" in text
    assert everything_in(finished) == before


def test_a_finished_folder_without_resume(refused, sets, finished):
    before = everything_in(finished)
    assert "already holds this run (finished): add --resume" in refused("run", *sets(), "--out", finished)
    assert everything_in(finished) == before


def test_the_engine_is_no_part_of_the_configuration(call, sets, finished):
    assert call("run", *sets("engine.workers=7"), "--out", finished, "--resume")[0] == 0


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_file_in_place_of_the_folder(refused, sets, tmp_path, command):
    (tmp_path / "file").write_text("do not touch")
    assert "is a file" in refused(command, *sets(), "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "do not touch"


def test_a_foreign_folder(refused, sets, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not touch")
    before = everything_in(tmp_path)
    assert "is not empty and holds no run" in refused("run", *sets(), "--out", tmp_path)
    assert everything_in(tmp_path) == before


def test_an_unknown_method_to_compare(refused, sets, tmp_path):
    text = refused("compare", *sets(), "--methods", "fedbnn,fedmb", "--out", tmp_path / "both")
    assert "method = 'fedmb': unknown; did you mean 'fedmd'?" in text
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("seeds", ["one", "0,x", "-1", "1.5", "0;1", "0 1"])
def test_bad_seeds(refused, sets, tmp_path, seeds):
    text = refused("compare", *sets(), "--methods", "local", "--seeds", seeds, "--out", tmp_path / "both")
    assert "is not a whole number from 0 up" in text
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--methods", ","], id="no method"),
        pytest.param(["--methods", "local,local"], id="method twice"),
        pytest.param(["--methods", "local", "--seeds", "0,0"], id="seed twice"),
        pytest.param(["--methods", "local", "--seeds", "²"], id="superscript"),
    ],
)
def test_lists_that_cannot_be_compared(refused, sets, tmp_path, arguments):
    refused("compare", *sets("rounds=1"), *arguments, "--out", tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_comparison_that_clashes_with_one_old_run_writes_nothing(call, refused, sets, tmp_path):
    both = tmp_path / "both"
    assert call("compare", *sets("rounds=1", "seed=0"), "--methods", "local", "--out", both)[0] == 0
    before = everything_in(both)
    assert "another configuration" in refused("compare", *sets("rounds=2"), "--methods", "fedmd,local", "--out", both)
    assert everything_in(both) == before


@pytest.mark.parametrize("name", ["comparison.json", "thesis.tex"])
def test_a_comparison_into_a_foreign_folder(refused, sets, tmp_path, name):
    (tmp_path / name).write_text("do not touch")
    before = everything_in(tmp_path)
    refused("compare", *sets("rounds=1"), "--methods", "local", "--out", tmp_path)
    assert everything_in(tmp_path) == before


def test_brackets_in_a_path(call, sets, tmp_path):
    arguments = ["run", *sets("rounds=1", "method=local"), "--out", tmp_path / "odd[" / "b] [bold]"]
    assert call(*arguments)[0] == 0
    code, _, err = call(*arguments, "--resume")
    assert code == 0
    assert str(tmp_path / "odd[" / "b] [bold]") in err


def test_report_where_there_is_no_run(refused, tmp_path):
    assert "no result.json" in refused("report", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "no folder" in refused("report", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_report_of_an_unfinished_run(refused, call, sets, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 1)
        assert call("run", *sets(), "--out", tmp_path / "run")[0] == 130
    assert "not finished" in refused("report", tmp_path / "run")


def test_a_client_that_fails_is_named(call, sets, tmp_path, monkeypatch):
    def fails(*arguments):
        raise FloatingPointError("the client's own mistake")

    monkeypatch.setattr(METHODS["local"], "client_update", fails)
    code, out, err = call("run", *sets("method=local"), "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert err.startswith("error: client 0 ('client-0') failed:")
    assert "the client's own mistake" in err
