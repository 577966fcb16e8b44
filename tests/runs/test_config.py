import dataclasses
import json
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings
from fedbnn.methods import METHODS, FedBNN, FedMD, Local
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.runs.config import (
    Config,
    EngineSettings,
    Methods,
    as_of_today,
    default_toml,
    fields_of,
    load_config,
    parse_config,
)

TABLES = ["data", "partition", "training", "evaluation", "engine", "privacy", *(f"methods.{name}" for name in METHODS)]


def every_field(value, prefix=""):
    """Dotted name, field and value of every field below `value`; of a list of tables, those of the first."""
    for name, field in fields_of(type(value)).items():
        inner = getattr(value, name)
        yield f"{prefix}{name}", field, inner
        first = inner[0] if isinstance(inner, tuple) else inner
        yield from every_field(first, f"{prefix}{name}.")


def refusal(raw):
    with pytest.raises(UserError) as caught:
        parse_config(raw)
    text = str(caught.value)
    assert "\n" not in text
    return text


def refused_override(*overrides):
    with pytest.raises(UserError) as caught:
        load_config(None, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_default_toml_is_the_default_configuration():
    assert parse_config(tomllib.loads(default_toml())) == Config()


def test_the_default_toml_read_from_a_file(tmp_path):
    path = tmp_path / "default.toml"
    path.write_text(default_toml(), encoding="utf-8")
    assert load_config(path) == Config()


def test_every_field_is_described_and_printed():
    document = tomllib.loads(default_toml())
    seen = 0
    for dotted, field, _ in every_field(Config()):
        assert field.description, dotted
        assert field.description.strip(), dotted
        assert "\n" not in field.description, dotted
        assert f"# {field.description}" in default_toml(), dotted
        at = document
        for part in dotted.split("."):
            at = at[0] if isinstance(at, list) else at
            assert part in at, dotted
            at = at[part]
        seen += 1
    assert seen > 50


def test_the_default_toml_states_ranges_and_choices():
    text = default_toml()
    assert "take part in a round; others' last upload is reused (> 0, <= 1)" in text
    assert "(one of: test, validation)" in text
    assert "(one of: none, flip, shift, flip_shift)" in text
    assert "one of alignment points; 0 leaves all to what the consensus has taught before (>= 0)" in text


def test_a_printed_configuration_with_other_values_is_read_as_these():
    text = default_toml()
    changed = {
        'augment = "none"': 'augment = "flip_shift"',
        "rehearsal = 1.0": "rehearsal = 0.5",
        "head = true": "head = false",
        "gamma = 0.9\n": "gamma = 0.25\n",
    }
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    read = parse_config(tomllib.loads(text))
    assert read.training == TrainingSettings(augment="flip_shift")
    assert read.methods.fedbnn == FedBNN(head=False, rehearsal=0.5)
    assert read.methods.fedmd == FedMD(gamma=0.25)


@pytest.mark.parametrize(
    ("raw", "key", "nearest"),
    [
        ({"round": 3}, "round", "rounds"),
        ({"data": {"sorce": "digits"}}, "data.sorce", "source"),
        ({"partition": {"client": 3}}, "partition.client", "clients"),
        ({"models": [{"nme": "mlp"}]}, "models.0.nme", "name"),
        ({"models": [{"name": "mlp"}, {"shares": 2}]}, "models.1.shares", "share"),
        ({"training": {"batchsize": 3}}, "training.batchsize", "batch_size"),
        ({"engine": {"worker": 3}}, "engine.worker", "workers"),
        ({"methods": {"fedbnnn": {}}}, "methods.fedbnnn", "fedbnn"),
        ({"methods": {"fedbnn": {"gama": 0.5}}}, "methods.fedbnn.gama", "gamma"),
        ({"methods": {"fedmd": {"digest_step": 5}}}, "methods.fedmd.digest_step", "digest_steps"),
        ({"privacy": {"epsilonn": 5}}, "privacy.epsilonn", "epsilon"),
        ({"privacy": {"mechanisms": "none"}}, "privacy.mechanisms", "mechanism"),
    ],
)
def test_an_unknown_key_names_the_nearest(raw, key, nearest):
    text = refusal(raw)
    assert f"unknown key '{key}'" in text
    assert f"did you mean '{nearest}'?" in text


def test_an_unknown_key_lists_what_there_is():
    text = refusal({"evaluation": {"zzz": 1}})
    assert "did you mean" not in text
    assert text.endswith("(known here: every, split, foreign)")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"rounds": "ten"}, "rounds = 'ten': "),
        ({"rounds": 2.0}, "rounds = 2.0: "),
        ({"rounds": True}, "rounds = True: "),
        ({"seed": "1"}, "seed = '1': "),
        ({"method": 3}, "method = 3: "),
        ({"engine": {"debug": 1}}, "engine.debug = 1: "),
        ({"data": {"path": 5}}, "data.path = 5: "),
        ({"training": 3}, "training = 3: "),
        ({"models": "mlp"}, "models = 'mlp': "),
        ({"methods": {"fedbnn": {"gamma": "high"}}}, "methods.fedbnn.gamma = 'high': "),
        ({"rounds": 0}, "rounds = 0: Input should be greater than or equal to 1"),
        ({"seed": -1}, "seed = -1: Input should be greater than or equal to 0"),
        ({"participation": 0}, "participation = 0: Input should be greater than 0"),
        ({"participation": 1.5}, "participation = 1.5: Input should be less than or equal to 1"),
        ({"models": [{"share": 0.0}]}, "models.0.share = 0.0: Input should be greater than 0"),
        ({"models": []}, "models = []: "),
        ({"methods": {"fedbnn": {"gamma": 1.01}}}, "methods.fedbnn.gamma = 1.01: "),
        ({"data": {"test_fraction": 1}}, "data.test_fraction = 1: Input should be less than 1"),
        ({"participation": math.nan}, "participation = nan: Input should be a finite number"),
        ({"methods": {"local": {"learning_rate": math.inf}}}, "methods.local.learning_rate = inf: "),
        ({"models": [{"share": math.nan}]}, "models.0.share = nan: "),
        ({"partition": {"kind": "clases"}}, "partition.kind = 'clases': Input should be 'classes', 'iid'"),
        ({"evaluation": {"split": "train"}}, "evaluation.split = 'train': Input should be 'test' or 'validation'"),
        ({"methods": {"fedbnn": {"head": "x"}}}, "methods.fedbnn.head = 'x': Input should be a valid boolean"),
        ({"methods": {"fedbnn": {"trust": 0.0}}}, "methods.fedbnn.trust = 0.0: Input should be greater than 0"),
        (
            {"training": {"augment": "rotate"}},
            "training.augment = 'rotate': Input should be 'none', 'flip', 'shift' or ",
        ),
        (
            {"methods": {"fedbnn": {"rehearsal": -0.1}}},
            "methods.fedbnn.rehearsal = -0.1: Input should be greater than ",
        ),
        (
            {"methods": {"fedbnn_paper": {"gamma": 1.1}}},
            "methods.fedbnn_paper.gamma = 1.1: Input should be less than or equal to 1",
        ),
        ({"privacy": {"mechanism": "dp"}}, "privacy.mechanism = 'dp': unknown (there are "),
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon = 0: Input should be greater than 0"),
        ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon = -1.0: Input should be greater than 0"),
        ({"privacy": {"epsilon": math.inf}}, "privacy.epsilon = inf: "),
        ({"privacy": {"epsilon": math.nan}}, "privacy.epsilon = nan: "),
        ({"privacy": {"epsilon": "3"}}, "privacy.epsilon = '3': "),
        ({"privacy": {"delta": 0.0}}, "privacy.delta = 0.0: Input should be greater than 0"),
        ({"privacy": {"delta": 1}}, "privacy.delta = 1: Input should be less than 1"),
        ({"privacy": {"releases": -1}}, "privacy.releases = -1: Input should be greater than or equal to 0"),
        ({"privacy": {"releases": 1.5}}, "privacy.releases = 1.5: "),
        ({"privacy": {"noise": "none"}}, "privacy.noise = 'none': Input should be 'continuous' or 'discrete'"),
        ({"privacy": {"features": "pca"}}, "privacy.features = 'pca': "),
        ({"privacy": {"dimensions": 2}}, "privacy.dimensions = 2: Input should be greater than or equal to 3"),
        ({"privacy": {"force": 1}}, "privacy.force = 1: "),
        ({"privacy": {"ledgers": 5}}, "privacy.ledgers = 5: "),
    ],
)
def test_a_bad_value_is_one_line_with_field_and_value(raw, expected):
    assert refusal(raw).startswith(expected)


def test_a_key_with_a_line_break_is_still_one_line():
    refusal({"a\nb": 1})


def test_an_unknown_method_names_the_nearest():
    text = refusal({"method": "fedbnnn"})
    assert text.startswith("method = 'fedbnnn': unknown; did you mean 'fedbnn'?")
    assert all(name in text for name in METHODS)


def test_with_method_checks_too():
    with pytest.raises(UserError, match="'fedmq': unknown; did you mean 'fedmd'"):
        Config().with_method("fedmq")


def test_with_method_changes_nothing_else():
    config = Config(seed=3)
    other = config.with_method("local")
    assert other == dataclasses.replace(config, method="local")
    assert config.with_method("local", 9) == dataclasses.replace(config, method="local", seed=9)
    assert isinstance(other.chosen(), Local)


def test_the_chosen_method_has_its_settings():
    config = parse_config({"methods": {"fedbnn": {"gamma": 0.25}}})
    assert config.chosen() == FedBNN(gamma=0.25)
    assert config.with_method("fedmd").chosen() == FedMD()


def test_dates_are_refused():
    assert "dates" in refused_override("data.path=2020-01-01")


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("rounds=7", lambda c: c.rounds == 7),
        ("rounds = 7", lambda c: c.rounds == 7),
        ("participation=0.5", lambda c: c.participation == 0.5),
        ("participation=1", lambda c: c.participation == 1.0),
        ("methods.fedbnn.learning_rate=1e-4", lambda c: c.methods.fedbnn.learning_rate == 1e-4),
        ("method=local", lambda c: c.method == "local"),
        ('method="local"', lambda c: c.method == "local"),
        ("method='local'", lambda c: c.method == "local"),
        ("data.path=/some/where=else.npz", lambda c: c.data.path == "/some/where=else.npz"),
        ("data.path=", lambda c: c.data.path == ""),
        ("engine.debug=true", lambda c: c.engine.debug is True),
        (
            'models=[{name="mlp"}, {name="cnn2", share=2}]',
            lambda c: c.models == (ModelSettings("mlp"), ModelSettings("cnn2", 2.0)),
        ),
        (
            'models=[{name="mlp", options={hidden=[3, 4]}}]',
            lambda c: c.models[0].options == {"hidden": [3, 4]},
        ),
        ("engine={workers=3}", lambda c: c.engine == EngineSettings(workers=3)),
        ("methods.fedbnn={gamma=0.5}", lambda c: c.methods.fedbnn == FedBNN(gamma=0.5)),
    ],
)
def test_an_override_is_read(override, read):
    assert read(load_config(None, [override]))


def test_later_overrides_win():
    assert load_config(None, ["rounds=3", "rounds=4"]).rounds == 4


def test_overrides_go_over_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("rounds = 3\nseed = 5\n[data]\nalignment = 7\nvalidation = 9\n")
    config = load_config(path, ["rounds=4", "data.alignment=8"])
    assert (config.rounds, config.seed, config.data.alignment, config.data.validation) == (4, 5, 8, 9)


@pytest.mark.parametrize("override", ["rounds", "=3", " =3", ""])
def test_an_override_without_key_or_value_is_explained(override):
    text = refused_override(override)
    assert text.startswith(f"--set {override}: write it as dotted.key=value")


def test_an_override_through_a_scalar():
    assert "'rounds' is a value, not a table" in refused_override("rounds=2", "rounds.x=3")
    assert "'models' is a value, not a table" in refused_override('models=[{name="mlp"}]', "models.0.name=cnn2")


def test_an_override_that_makes_a_table_of_a_scalar():
    assert refused_override("rounds.x=3").startswith("rounds = {'x': 3}: ")


def test_an_override_of_an_unknown_key():
    assert "did you mean 'gamma'?" in refused_override("methods.fedbnn.gammma=0.5")


def test_an_override_of_the_wrong_type():
    assert refused_override("rounds=abc").startswith("rounds = 'abc': ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no configuration file and no preset .*absent\.toml \(presets: .*\)"):
        load_config(tmp_path / "absent.toml")


@pytest.mark.parametrize("content", [b"rounds = ", b"[data\n", b"rounds = 1\nrounds = 2\n", b"\xff\xfe"])
def test_a_file_that_is_not_toml(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.toml: cannot be read as TOML") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_a_folder_instead_of_a_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read as TOML"):
        load_config(tmp_path)


@pytest.mark.parametrize("method", ["fedbnn", "fedmd"])
def test_settings_that_are_no_more_do_not_part_a_run_from_itself(method):
    """A run from then is known by today's configuration, if they stood where they always did."""
    today = Config(method=method).to_json()
    gone = {"weights": "uniform"} | ({"restart": "prior"} if method == "fedbnn" else {})
    stored = today | {"methods": {method: today["methods"][method] | gone}}
    assert as_of_today(stored) == today
    other = today | {"methods": {method: today["methods"][method] | {"weights": "data"}}}
    assert as_of_today(other) == other


@pytest.mark.parametrize("methods", [None, 3, [], {"fedbnn": 3}])
def test_what_is_no_configuration_comes_back_as_it_is(methods):
    stored = Config().to_json() | {"methods": methods}
    assert as_of_today(stored) == stored


def test_to_json_leaves_the_engine_out():
    written = Config(engine=EngineSettings(workers=5, debug=True, device="cuda:1")).to_json()
    assert "engine" not in written
    assert written == Config().to_json()


@pytest.mark.parametrize("method", METHODS)
def test_to_json_keeps_only_the_chosen_method(method):
    written = Config(method=method).to_json()
    assert list(written["methods"]) == [method]
    assert written["methods"][method].keys() == fields_of(METHODS[method]).keys()
    assert "engine" not in written
    assert written.keys() == fields_of(Config).keys() - {"engine"}


shares = st.floats(0.01, 100)
rates = st.floats(1e-8, 10.0)
configs = st.builds(
    Config,
    method=st.sampled_from(list(METHODS)),
    seed=st.integers(0, 2**64),
    rounds=st.integers(1, 10**6),
    participation=st.floats(0, 1, exclude_min=True),
    checkpoint_every=st.integers(1, 100),
    data=st.builds(
        DataSettings,
        source=st.sampled_from(["digits", "npz", "csv"]),
        path=st.text(),
        target=st.text(),
        test_fraction=st.floats(0, 1, exclude_min=True, exclude_max=True),
        alignment=st.integers(0, 10**6),
        validation=st.integers(0, 10**6),
    ),
    partition=st.builds(
        PartitionSettings,
        kind=st.sampled_from(["classes", "iid", "dirichlet", "quantity", "natural"]),
        clients=st.integers(1, 10**4),
        alpha=st.floats(0, 1e6, exclude_min=True),
    ),
    models=st.lists(
        st.builds(
            ModelSettings,
            name=st.sampled_from(["mlp", "cnn2", "a.b:c"]),
            share=shares,
            options=st.dictionaries(st.text(), st.one_of(st.integers(-5, 5), st.text(), st.lists(st.integers(0, 9)))),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    training=st.builds(
        TrainingSettings,
        local_epochs=st.integers(1, 99),
        warmup_epochs=st.integers(0, 99),
        augment=st.sampled_from(["none", "flip", "shift", "flip_shift"]),
    ),
    privacy=st.builds(
        PrivacySettings,
        mechanism=st.sampled_from(["none", "dp_teacher", "dp_moments", "output_perturbation"]),
        epsilon=st.floats(0, 1e9, exclude_min=True),
        delta=st.floats(0, 1, exclude_min=True, exclude_max=True),
        releases=st.integers(0, 10**6),
        noise=st.sampled_from(["continuous", "discrete"]),
        features=st.sampled_from(["auto", "scattering", "fourier"]),
        dimensions=st.integers(3, 10**4),
        ledgers=st.text(),
        force=st.booleans(),
    ),
    methods=st.builds(
        Methods,
        fedbnn=st.builds(
            FedBNN,
            gamma=st.floats(0, 1),
            learning_rate=rates,
            consensus=st.just("corrected"),
            head=st.booleans(),
            rehearsal=st.floats(0, 100),
        ),
        fedmd=st.builds(
            FedMD,
            learning_rate=rates,
            gamma=st.floats(0, 1),
        ),
    ),
)


@given(configs)
def test_any_configuration_survives_its_json(config):
    back = parse_config(json.loads(json.dumps(config.to_json())))
    # The engine and the settings of methods not chosen are left out on purpose; everything else is kept.
    kept = dataclasses.replace(
        config, engine=EngineSettings(), methods=Methods(**{config.method: getattr(config.methods, config.method)})
    )
    assert back == kept
    assert back.to_json() == config.to_json()


def test_privacy_settings_are_read_from_a_file_and_change_what_a_run_is(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[privacy]\nmechanism = "dp_moments"\nepsilon = 8\nreleases = 3\nnoise = "discrete"\n')
    config = load_config(path, ["privacy.delta=1e-6"])
    assert config.privacy == PrivacySettings("dp_moments", 8.0, 1e-6, 3, "discrete")
    assert config.privacy.on
    assert not Config().privacy.on
    for name, value in (("epsilon", 7.0), ("mechanism", "dp_teacher"), ("ledgers", "kept"), ("dimensions", 50)):
        other = dataclasses.replace(config, privacy=dataclasses.replace(config.privacy, **{name: value}))
        assert other.to_json() != config.to_json()
