"""Suggestions: each is one that the federation accepts, and the best follows from the facts."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.cli.app import app, main
from fedbnn.data import federate, load_dataset
from fedbnn.reproduce.tuning.search import load_search
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared
from fedbnn.runs.suggest import Facts, suggest

ONE = 'models=[{name="cnn2"}]'
PRIVATE = ('privacy.mechanism="dp_teacher"', "privacy.epsilon=3.0")
IMAGES = Facts(
    images=True,
    clients=20,
    records=250,
    least=250,
    classes=10,
    held=5,
    architectures=1,
    alignment=2000,
    epsilon=None,
    delta=1e-5,
    dimensions=100,
    multiplicity=1,
    photographs=True,
    rounds=10,
)


def facts_of(*changes):
    config = load_config(None, ["rounds=2", *changes])
    data = federate(load_dataset(config.data), config.data, config.partition, config.seed)
    return Facts.of(config, data)


@pytest.mark.parametrize(
    "changes", [(), (ONE,), (ONE, "data.alignment=0"), ("data.alignment=0",), (ONE, *PRIVATE)], ids=str
)
def test_every_suggestion_is_accepted_by_the_federation_it_is_made_for(changes):
    for one in suggest(facts_of(*changes)):
        words = shlex.split(one.command)
        assert words[::2] == ["--set"] * (len(words) // 2)
        wanted = ["data.alignment=200" if word.startswith("data.alignment=2000") else word for word in words[1::2]]
        config = load_config(None, ["rounds=2", *changes, *wanted])
        assert config.method == one.method
        Prepared.of(config, [config.method])


def test_different_networks_leave_fedbnn_alone():
    assert [one.method for one in suggest(replace(IMAGES, architectures=2))] == ["fedbnn"]
    assert "weights cannot be averaged" in suggest(replace(IMAGES, architectures=2))[0].why


def test_one_network_on_images_may_as_well_average_a_linear_model():
    best, other = suggest(IMAGES)
    assert (best.method, other.method) == ("fedbnn", "feddyn")
    assert "data.inputs=mirrored_kernel_features" in other.settings
    assert "data.inputs=kernel_features" in suggest(replace(IMAGES, photographs=False))[1].settings
    assert [one.method for one in suggest(replace(IMAGES, images=False))] == ["fedbnn"]


def test_few_alignment_points_are_told():
    assert "40 alignment points are few" in suggest(replace(IMAGES, alignment=40))[0].why
    assert "few" not in suggest(IMAGES)[0].why


def test_where_noise_drowns_all_a_client_stays_alone():
    assert [one.method for one in suggest(replace(IMAGES, epsilon=3.0))] == ["fedbnn", "local_bnn"]
    assert [one.method for one in suggest(replace(IMAGES, epsilon=0.01, records=20, clients=2))] == ["local_bnn"]


@given(
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 3000),
    st.integers(2, 100),
    st.integers(1, 3),
    st.integers(0, 3000),
    st.none() | st.floats(0.01, 20),
)
@settings(max_examples=60)
def test_there_is_always_a_suggestion_with_a_reason(images, clients, records, classes, networks, points, epsilon):
    facts = replace(
        IMAGES,
        images=images,
        clients=clients,
        records=records,
        classes=classes,
        held=min(classes, 5),
        architectures=networks,
        alignment=points,
        epsilon=epsilon,
    )
    found = suggest(facts)
    assert found
    assert all(one.why and one.where for one in found)
    if networks > 1:
        assert not {"fedavg", "feddyn"} & {one.method for one in found}


def test_regression_is_refused_with_commands_that_tell_instead(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "diabetes.toml"
    config = load_config(example)
    data = federate(load_dataset(config.data), config.data, config.partition, config.seed)
    with pytest.raises(UserError, match="these are of classification") as refused:
        Facts.of(config, data)
    told = re.findall("`fedbnn (.+?)`", str(refused.value))
    commands = typer.main.get_command(app).commands
    given = {}
    for line in told:
        name, *words = line.replace("CONFIG", str(example)).replace("RECORDS", "20").split()
        given[name] = commands[name].make_context(name, words).params
    assert list(given) == ["compare", "tune"]
    assert given["compare"]["methods"] is None  # all that this federation allows
    tuning = load_search(example, changes=given["tune"]["changes"], aim=[given["tune"]["aim"]])
    assert tuning.cells("fedbnn", 0, {}, tmp_path)[0].config.data.validation == 20


def test_the_command_prints_what_to_run(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["suggest", "images", "--json"])
    assert not stopped.value.code
    found = json.loads(capsys.readouterr().out)
    assert found[0]["method"] == "fedbnn"
    with pytest.raises(SystemExit):
        main(["suggest", "images"])
    assert "fedbnn run images --set method=fedbnn" in capsys.readouterr().out
