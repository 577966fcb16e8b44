import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn import UserError
from fedbnn.deployment.terms import AlignmentTerms, Terms, alignment_hash, alignment_of, read_terms
from fedbnn.methods import METHODS
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings
from tests.deployment.deployment_sample import dealt, small_config, small_terms

TERMS = small_terms()
TEXT = TERMS.to_json()


def changed(**changes):
    return json.dumps(json.loads(TEXT) | changes)


def test_terms_say_what_the_configuration_says():
    config = small_config("fedmd", "seed=4", "methods.fedmd.gamma=0.25", "privacy.ledgers=elsewhere")
    data = dealt(config)
    terms = Terms.of(config, data, "trial-1")
    assert terms.chosen() == config.chosen()
    assert terms.sites == data.client_names
    assert (terms.seed, terms.rounds, terms.training) == (4, config.rounds, config.training)
    assert terms.privacy == dataclasses.replace(config.privacy, ledgers="")
    assert terms.input_shape == (1, 8, 8)
    assert terms.class_names == data.dataset.class_names
    raw = data.dataset.x_train[data.alignment_indices]
    assert terms.alignment.points == 20 == len(raw)
    assert terms.alignment.sha256 == alignment_hash(raw) == alignment_hash(alignment_of(data))
    assert "digits" in terms.alignment.source


def test_another_data_sets_inputs_are_the_alignment_set_where_it_comes_from_there(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((50, 8, 8)).astype(np.float32)
    labels = np.arange(50) % 2
    np.savez(tmp_path / "other.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
    config = small_config("fedbnn", f"data.alignment_source={tmp_path / 'other.npz'}")
    data = dealt(config)
    terms = Terms.of(config, data, "other")
    assert terms.alignment.sha256 == alignment_hash(data.other_alignment)
    assert terms.alignment.points == 20


ODD_NAMES = {
    "blank at the end": (("a ", "b"), "class_names.0 = 'a '"),
    "line feed": (("a", "b\n"), r"class_names.1 = 'b\\n'"),
    "empty": (("", "b"), "class_names.0 = ''"),
    "long": (("a", "b" * 201), "class_names.1 = 'bbb"),
    "half of a character": (("\ud800", "b"), r"class_names.0 = '\\ud800'"),
    "twice": (("a", "a"), "each name may stand there only once"),
}


@pytest.mark.parametrize("kind", ODD_NAMES)
def test_names_that_cannot_stand_in_terms_are_told_in_one_line(kind):
    """Labels and groups of a file may be anything."""
    names, words = ODD_NAMES[kind]
    config = small_config()
    data = dealt(config)
    others = tuple(f"class {number}" for number in range(2, 10))
    odd = dataclasses.replace(data.dataset, class_names=(*names, *others))
    with pytest.raises(UserError, match=words):
        Terms.of(config, dataclasses.replace(data, dataset=odd), "trial")


@pytest.mark.parametrize("run", ["a\n", "A", "", "-a", "a" * 61, "\ud800"])
def test_a_run_has_a_plain_name(run):
    config = small_config()
    with pytest.raises(UserError, match="run = "):
        Terms.of(config, dealt(config), run)


names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)
terms_strategy = st.builds(
    Terms,
    run=st.from_regex(r"[a-z0-9][a-z0-9-]{0,59}", fullmatch=True),
    method=st.sampled_from(sorted(METHODS)),
    settings=st.just({}),
    seed=st.integers(0, 2**62),
    rounds=st.integers(1, 1000),
    participation=st.floats(0, 1, exclude_min=True),
    sites=st.lists(names, min_size=1, max_size=4, unique=True).map(tuple),
    class_names=st.lists(names, min_size=2, max_size=4, unique=True).map(tuple),
    input_shape=st.sampled_from([(5,), (1, 8, 8)]),
    alignment=st.builds(
        AlignmentTerms, st.text(max_size=20), st.integers(0, 9999), st.binary(min_size=32, max_size=32).map(bytes.hex)
    ),
    training=st.builds(TrainingSettings, batch_size=st.integers(1, 99)),
    privacy=st.builds(PrivacySettings, epsilon=st.floats(1e-6, 1e6), mechanism=st.sampled_from(["none", "dp_teacher"])),
    evaluate_every=st.integers(1, 9),
)


@given(terms_strategy)
def test_reading_what_was_written_gives_the_same_terms(terms):
    once = Terms.from_json(terms.to_json())
    again = Terms.from_json(once.to_json())
    assert again == once
    assert again.digest == once.digest
    assert dataclasses.replace(once, settings={}) == terms
    assert once.chosen() == METHODS[terms.method]()


def test_the_digest_is_of_the_terms_and_not_of_the_layout_of_their_file():
    shuffled = json.dumps(dict(reversed(json.loads(TEXT).items())), indent=7)
    assert Terms.from_json(shuffled).digest == TERMS.digest
    assert Terms.from_json(changed(participation=1)).digest == TERMS.digest
    assert TERMS.key == f"trial-{TERMS.digest[:12]}"
    settings = {name: value for name, value in TERMS.settings.items() if name != "gamma"}
    assert Terms.from_json(changed(settings=settings)).digest == TERMS.digest  # gamma had its default


ELSEWHERE = ("method", "settings", "columns", "target")  # columns: test_site_table, target: test_regression_terms


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Terms) if f.name not in ELSEWHERE])
def test_the_digest_depends_on_every_field(field):
    other = {
        "run": "other",
        "seed": 1,
        "rounds": 3,
        "participation": 0.5,
        "sites": ["a", "b", "c"],
        "class_names": [str(k) for k in range(11)],
        "input_shape": [1, 8, 9],
        "alignment": TERMS.to_dict()["alignment"] | {"points": 21},
        "training": TERMS.to_dict()["training"] | {"local_epochs": 2},
        "privacy": TERMS.to_dict()["privacy"] | {"epsilon": 2.0},
        "evaluate_every": 2,
        "multiplicity": 2,
        "signers": ["00" * 32, "01" * 32, "02" * 32],
    }[field]
    assert Terms.from_json(changed(**{field: other})).digest != TERMS.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "Trial"}, "terms: run = 'Trial': "),
        ({"run": "../up"}, "run = '../up'"),
        ({"run": "a\n"}, "run = 'a\\n'"),
        ({"method": "fedbnnn"}, "method = 'fedbnnn': unknown; did you mean 'fedbnn'?"),
        ({"settings": {"gama": 1.0}}, "terms: settings: unknown key 'gama'; did you mean 'gamma'?"),
        ({"settings": {"gamma": 2.0}}, "terms: settings: gamma = 2.0: Input should be"),
        ({"sites": ["a", "a"]}, "sites = ['a', 'a']: each name may stand there only once"),
        ({"sites": []}, "sites = []"),
        ({"class_names": ["a"]}, "class_names = ['a']"),
        ({"input_shape": [8, 8]}, "input_shape = [8, 8]: must be [channels, height, width]"),
        ({"input_shape": [0]}, "input_shape.0 = 0"),
        ({"rounds": "3"}, "rounds = '3'"),
        ({"privacy": {"ledgers": "here"}}, "privacy.ledgers must be empty"),
        ({"privacy": {"epsilon": -1}}, "privacy.epsilon = -1"),
        ({"alignment": {"source": "", "points": 1}}, "alignment.sha256 is missing"),
        ({"alignment": {"source": "", "points": 1, "sha256": "12"}}, "alignment.sha256 = '12'"),
        ({"round": 3}, "unknown key 'round'; did you mean 'rounds'?"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(change, words):
    with pytest.raises(UserError) as error:
        Terms.from_json(changed(**change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_what_are_no_terms_is_refused(text):
    with pytest.raises(UserError, match=r"^terms: "):
        Terms.from_json(text)


def test_a_missing_field_is_named():
    raw = json.loads(TEXT)
    del raw["rounds"]
    with pytest.raises(UserError, match="terms: rounds is missing"):
        Terms.from_json(json.dumps(raw))


def test_a_file_is_named_in_what_is_said_of_it(tmp_path):
    file = tmp_path / "terms.json"
    with pytest.raises(UserError, match="no such file"):
        read_terms(file)
    file.write_text(TEXT)
    assert read_terms(file) == TERMS
    file.write_text(changed(rounds=0))
    with pytest.raises(UserError, match=r"terms = '.*terms.json': rounds = 0"):
        read_terms(file)
