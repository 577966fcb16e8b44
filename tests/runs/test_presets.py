"""Configurations that come with the package, and which methods `compare` takes when it is not told."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbnn.base.errors import UserError
from fedbnn.cli.app import main
from fedbnn.methods import METHODS
from fedbnn.runs.config import PRESETS, Config, load_config, parse_config, presets
from fedbnn.runs.experiment import Prepared

AVERAGING = [name for name, cls in METHODS.items() if cls.one_architecture]
WITHOUT_ALIGNMENT = ("fedproto", "fml", "fedkd", "flexifed", "local_bnn", "local")  # of those that mix architectures
NORMALISED = 'models=[{name="transformer"}]'
MIXED = 'models=[{name="mlp"}, {name="cnn2"}]'
FAST = (
    "rounds=1",
    "methods.pfedgp.embedding=4",
    "methods.pfedgp.train_chains=2",
    "methods.pfedgp.test_chains=2",
    "methods.pfedbayes.iterations=1",
    "methods.pfedbayes.mc_samples=2",
    "methods.pfedme.iterations=1",
    "methods.feddf.distill_steps=1",
    "methods.local_bnn.mc_samples=2",
    "methods.dp_fedavg.steps=1",
)

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line: exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return call


def sets(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


# The presets


def test_presets_are_listed(call: Call) -> None:
    code, out, err = call("presets")
    assert (code, err) == (0, "")
    assert presets()
    assert all(name in out for name in presets())
    code, out, err = call("presets", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [{"preset": name, "summary": text} for name, text in presets().items()]
    assert all(text.strip() and not text.startswith("#") for text in presets().values())


def test_help_names_the_command(call: Call) -> None:
    assert "presets" in call("--help")[1]
    code, out, err = call("presets", "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_a_configuration(name: str) -> None:
    config = load_config(Path(name))
    assert config == parse_config(tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8")))
    assert config != Config()


def test_every_preset_file_is_listed() -> None:
    assert set(presets()) == {file.stem for file in PRESETS.iterdir()}


def test_all_methods_run_on_one_architecture_but_one_that_needs_another() -> None:
    config = load_config(Path("digits-homogeneous"), ["rounds=1"])
    Prepared.of(config, [name for name in METHODS if name != "fedbn"])
    Prepared.of(load_config(Path("digits-homogeneous"), ["rounds=1", NORMALISED]), ["fedbn"])
    assert "leaves normalisation layers" in Prepared.of(config, []).refusal(config, "fedbn")


@pytest.mark.parametrize("command", [["run"], ["compare", "--methods", "fedavg"]], ids=["run", "compare"])
def test_a_preset_is_taken_by_its_name(call: Call, tiny: tuple[str, ...], tmp_path: Path, command: list[str]) -> None:
    own = [change for change in tiny if not change.startswith("models=")]  # these are the preset's matter
    arguments = [*command, "digits-homogeneous", *sets(*own, "rounds=1", "method=fedavg")]
    code, out, err = call(*arguments, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    assert json.loads(out)["per_client"]["model"] == ["cnn2"] * 3


def test_a_file_of_the_same_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("digits-homogeneous")).seed == 0
    (tmp_path / "digits-homogeneous").write_text('seed = 41\nmethod = "local"\n')
    config = load_config(Path("digits-homogeneous"))
    assert (config.seed, config.method) == (41, "local")
    assert [model.name for model in config.models] == [model.name for model in Config().models]


def test_an_unknown_name_lists_the_presets(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("run", "digits-homogenous")
    assert (code, out) == (2, "")
    assert "no configuration file and no preset digits-homogenous" in err
    assert all(name in err for name in presets())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no preset"):
        load_config(tmp_path / "digits-homogeneous")  # a name, not a place


# Which methods are compared


def test_compare_leaves_out_what_mixed_architectures_do_not_allow(
    call: Call, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = call("compare", *sets(*tiny, *FAST, MIXED), "--out", tmp_path / "out", "--json")
    assert code == 0, err
    allowed = [name for name in METHODS if name not in AVERAGING]
    assert [result["method"] for result in json.loads(out)] == allowed
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith(f"note: left out: {', '.join(AVERAGING)}: each averages weights")
    assert "mlp: client-0, client-2; cnn2: client-1" in notes[0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == sorted(
        f"{name}-seed0" for name in allowed
    )


def test_compare_takes_all_methods_that_fit_the_model(call: Call, tiny: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = call("compare", *sets(*tiny, *FAST), "--out", tmp_path / "out", "--json")
    assert code == 0, err
    assert [result["method"] for result in json.loads(out)] == [name for name in METHODS if name != "fedbn"]
    assert "note: left out: fedbn: " in err
    assert err.count("left out") == 1
    for result in json.loads(out):
        assert 0 <= result["own_class_accuracy"] <= 1


def test_compare_without_an_alignment_set_leaves_out_what_needs_one(
    call: Call, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = call(
        "compare", *sets(*tiny, *FAST, MIXED, "data.alignment=0"), "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    without = [name for name in METHODS if name in WITHOUT_ALIGNMENT]
    assert [result["method"] for result in json.loads(out)] == without
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    told = [name.strip() for note in notes for name in note.removeprefix("note: left out: ").split(":")[0].split(",")]
    assert sorted(told) == sorted({*METHODS} - {*without})


@pytest.mark.parametrize("methods", ["fedavg", "local,fedavg"])
def test_asked_for_explicitly_it_is_refused(call: Call, tiny: tuple[str, ...], tmp_path: Path, methods: str) -> None:
    code, out, err = call("compare", "--methods", methods, *sets(*tiny, MIXED), "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith("error: method 'fedavg' averages weights")
    assert list(tmp_path.iterdir()) == []


# A file of one's own on top of a preset


def test_a_file_may_build_on_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "table"\nseed = 3\n[methods.fedbnn]\nmc_samples = 7\n[data]\nsource = "digits"\n')
    mine, below = load_config(file, ["rounds=4"]), load_config(Path("table"))
    assert (mine.seed, mine.rounds, mine.data.source) == (3, 4, "digits")
    assert mine.data.alignment == below.data.alignment  # of a table, what is not said is the preset's
    assert mine.models == below.models
    assert mine.methods.fedbnn.mc_samples == 7
    assert mine.methods.fedbnn.kl_weight == below.methods.fedbnn.kl_weight


def test_a_file_on_an_unknown_preset_is_refused(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for named in ('"tabel"', "3"):
        file.write_text(f"preset = {named}\n")
        code, out, err = call("run", file)
        assert (code, out) == (2, "")
        assert err.startswith("error: preset = ")
        assert "is not one of: digits-homogeneous, images, private-images" in err
    assert "did you mean" in load_refusal(file, "tabel")


def load_refusal(file: Path, name: str) -> str:
    file.write_text(f'preset = "{name}"\n')
    with pytest.raises(UserError) as refused:
        load_config(file)
    return str(refused.value)


@pytest.mark.parametrize("kind", ["images", "table"])
def test_the_private_preset_is_the_other_with_noise(kind: str) -> None:
    plain, private = load_config(Path(kind)), load_config(Path(f"private-{kind}"))
    assert not plain.privacy.on
    assert private.privacy.on
    assert {**private.to_json(), "privacy": None} == {**plain.to_json(), "privacy": None}
