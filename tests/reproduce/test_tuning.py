"""Searches that ship, candidates that are drawn, and what a candidate is judged by."""

import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.methods import METHODS
from fedbnn.reproduce.tuning.search import load_search
from fedbnn.reproduce.tuning.space import Knob, Sampler, shipped
from fedbnn.reproduce.tuning.trials import cost
from fedbnn.reproduce.tuning.write import toml
from fedbnn.runs.config import Config, load_config, parse_config, preset

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
STORED = json.loads((EXPERIMENTS / "results" / "tune.json").read_text())
STORED = {{"fedbnn": "fedbnn_paper"}.get(name, name): trials for name, trials in STORED.items()}  # as it is called now


@pytest.mark.parametrize("name", ["homogeneous", "mixed", "cpu"])
def test_every_candidate_of_a_search_that_ships_is_scored_on_validation_records(name):
    tuning = load_search(EXPERIMENTS / "tune" / f"{name}.toml")
    for row in tuning.contents.search:
        for candidate in tuning.tried(row).candidates or [{}]:
            for cell in tuning.cells(row, 1, candidate, Path("runs")):
                assert cell.config.evaluation.split == "validation"
                assert cell.config.data.validation > 0


@pytest.mark.parametrize("method", list(STORED))
def test_a_search_draws_the_candidates_again_that_it_drew_before(method):
    """What was stored of the search on digits, told to a new sampler, leads to the same candidates."""
    tuning = load_search(EXPERIMENTS / "tune" / "homogeneous.toml")
    sampler = Sampler(tuning.tried(method).space)
    defaults, *drawn = STORED[method]
    assert defaults["settings"] == {}
    assert len(drawn) == tuning.contents.trials - 1
    for trial in drawn:
        assert sampler.ask() == trial["settings"]
        sampler.tell(trial["criterion"])


@pytest.mark.parametrize("method", list(STORED))
def test_the_preset_has_the_best_of_what_was_tried(method):
    best = min(STORED[method], key=lambda trial: trial["criterion"])["settings"]
    changes = [f"methods.{method}.{name}={json.dumps(value)}" for name, value in best.items()]
    ours = load_config(preset(Path("digits-homogeneous"))).with_method(method)
    assert ours.to_json() == load_config(None, [*changes, 'models=[{name="cnn2"}]', f"method={method}"]).to_json()


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_a_space_whose_candidates_are_valid(method):
    sampler = Sampler(shipped(method))
    seen = []
    for _ in range(30):
        candidate = sampler.ask()
        changes = [f"methods.{method}.{name}={json.dumps(value)}" for name, value in candidate.items()]
        load_config(None, changes)  # raises where a value is not allowed
        seen.append(json.dumps(candidate))
        sampler.tell(math.inf if len(seen) % 3 == 0 else float(len(seen)))
    assert len(set(seen)) > 20


def test_a_range_between_whole_numbers_gives_whole_numbers_and_choices_may_be_anything():
    space = {"steps": Knob(low=1, high=9), "models": Knob(choices=[[{"name": "mlp"}], [{"name": "cnn2"}]])}
    sampler, steps, models = Sampler(space), set(), []
    for _ in range(40):
        candidate = sampler.ask()
        steps.add(candidate["steps"])
        models.append(candidate["models"])
        sampler.tell(0.0)
    assert all(isinstance(one, int) for one in steps)
    assert steps <= set(range(1, 10))
    assert len(steps) > 4
    assert [{"name": "mlp"}] in models
    assert [{"name": "cnn2"}] in models


@given(st.floats(0.05, 0.95), st.floats(1, 50))
def test_what_is_drawn_over_another_setting_keeps_its_product(product, strength):
    class Fixed:
        def suggest_float(self, *_, **__):
            return product

    value = Knob(low=0.05, high=0.95, over="strength").draw(Fixed(), "rate", {"strength": strength})
    assert value * strength == pytest.approx(product, rel=0.11)  # two digits, twice


@given(
    st.dictionaries(
        st.sampled_from(["personal", "general", "global", "global_own_prior", "fine_tuned"]),
        st.fixed_dictionaries({name: st.floats(0, 10) for name in ("nll", "all_class_nll", "own_class_accuracy")}),
        min_size=1,
    )
)
def test_a_run_is_judged_by_the_best_of_its_models_in_each_score(variants):
    values = {name: [of[name] for of in variants.values()] for name in ("nll", "all_class_nll", "own_class_accuracy")}
    total, accuracy = cost(variants, ["nll + all_class_nll", "own_class_accuracy"])
    assert total == pytest.approx(min(values["nll"]) + min(values["all_class_nll"]))
    assert accuracy == -max(values["own_class_accuracy"])


def test_a_score_that_is_no_number_is_never_the_best():
    assert cost({"personal": {"nll": math.nan}}, ["nll"]) == [math.inf]


def test_a_configuration_survives_being_written():
    raw = {
        "rounds": 3,
        "models": [{"name": "mlp", "options": {"hidden": [8]}}, {"name": "cnn2", "share": 0.5}],
        "methods": {"fedbnn": {"kl_weight": 1e-05, "consensus": "sharpened"}, "local": {}},
        "data": {"source": "digits", "validation": 9},
    }
    back = tomllib.loads("\n".join(toml(raw)))
    assert parse_config(back).to_json() == parse_config(raw).to_json() != Config().to_json()
