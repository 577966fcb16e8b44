"""What parties of a regression agree on: a number and its public scale, instead of classes."""

import dataclasses
import json

import pytest

from fedbnn.base.errors import UserError
from fedbnn.deployment.agreement import Refused, check_terms
from fedbnn.deployment.terms import TargetTerms, Terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.methods import METHODS
from fedbnn.models.regression import OUTPUTS, Scale
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import dealt, small_terms
from tests.deployment.regression_sites import diabetes, hospitals, stays

CONFIG = diabetes()
TERMS = Terms.of(CONFIG, dealt(CONFIG), "trial")


def changed(**changes):
    return json.dumps(json.loads(TERMS.to_json()) | changes)


def test_terms_name_the_number_and_its_scale(tmp_path):
    stays().to_csv(tmp_path / "stays.csv", index=False)
    config = hospitals(tmp_path / "stays.csv", 'data.columns={hospital={kind="ignore"}}', "data.client_column=ward")
    terms = Terms.of(config, dealt(config), "trial")
    assert terms.target == TargetTerms("days", 90.0, 10.0)
    assert json.loads(terms.to_json())["target"] == {"name": "days", "mean": 90.0, "sd": 10.0}
    assert TERMS.target == TargetTerms("", 150.0, 80.0)  # as published with the data set
    assert TERMS.scale == Scale(150.0, 80.0)
    assert (TERMS.class_names, TERMS.classes, TERMS.outputs, TERMS.regression) == ((), 0, OUTPUTS, True)
    assert Terms.from_json(TERMS.to_json()) == TERMS


def test_terms_of_classes_are_what_they_were():
    terms = small_terms()
    later = {"columns", "target"}  # no part of the digest of terms without any
    assert terms.to_dict().keys() == {field.name for field in dataclasses.fields(Terms)} - later
    assert (terms.target, terms.scale, terms.regression) == (None, None, False)
    assert terms.classes == terms.outputs == 10


@pytest.mark.parametrize("field", ["name", "mean", "sd"])
def test_the_digest_depends_on_all_of_the_target(field):
    target = TERMS.to_dict()["target"]
    other = target | {field: "weight" if field == "name" else target[field] + 1}
    asked = Terms.from_json(changed(target=other))
    assert asked.digest != TERMS.digest
    assert Terms.from_json(changed(target=target | {"mean": 150})).digest == TERMS.digest
    with pytest.raises(Refused, match=rf"asks for target.{field} = .*, agreed was "):
        check_terms(asked, TERMS)


def test_classes_are_not_a_number():
    classes = changed(class_names=["no", "yes"], target=None)
    with pytest.raises(Refused, match=r"asks for class_names = .*target = None"):
        check_terms(Terms.from_json(classes), TERMS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class_names": ["no", "yes"]}, "terms: class_names and target are both given"),
        ({"target": None}, "terms: class_names is empty and target is missing"),
        ({"class_names": ["yes"]}, "class_names = ['yes']: at least 2 are needed"),
        ({"target": {"name": "", "mean": 0.0}}, "terms: target.sd is missing"),
        ({"target": {"name": "", "mean": 0.0, "sd": 0.0}}, "terms: target.sd = 0.0"),
        ({"target": {"name": "", "mean": 0.0, "sd": -1.0}}, "terms: target.sd = -1.0"),
        ({"target": {"name": "", "mean": float("nan"), "sd": 1.0}}, "terms: target.mean = nan"),
        ({"target": {"name": "", "mean": 0.0, "sd": float("inf")}}, "terms: target.sd = inf"),
        ({"target": {"name": "", "mean": "0", "sd": 1.0}}, "terms: target.mean = '0'"),
        ({"target": {"name": "a\nb", "mean": 0.0, "sd": 1.0}}, "terms: target.name = 'a\\nb'"),
        ({"target": {"name": "", "mean": 0.0, "sd": 1.0, "unit": "d"}}, "unknown key 'target.unit'"),
        ({"target": 3}, "terms: target = 3"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(change, words):
    with pytest.raises(UserError) as error:
        Terms.from_json(changed(**change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_terms_in_code_are_of_one_task_too():
    with pytest.raises(UserError, match="class_names and target are both given"):
        dataclasses.replace(TERMS, class_names=("no", "yes"))
    with pytest.raises(UserError, match="class_names is empty and target is missing"):
        dataclasses.replace(TERMS, target=None)


PRIVACY = TERMS.to_dict()["privacy"]
CANNOT = {
    "mechanism": ({"privacy": PRIVACY | {"mechanism": "dp_teacher"}}, "privacy.mechanism = 'dp_teacher' is for class"),
    "secure": (
        {"privacy": PRIVACY | {"mechanism": "dp_moments", "aggregation": "secure"}},
        "privacy.mechanism = 'dp_moments' is for classification",
    ),
    "robust": ({"settings": {"robust": "geometric"}}, "methods.fedbnn.robust = 'geometric' joins what clients say of"),
}


@pytest.mark.parametrize("kind", CANNOT)
def test_what_regression_does_not_have_is_refused_as_the_terms_are_read(kind):
    change, words = CANNOT[kind]
    with pytest.raises(UserError) as error:
        Terms.from_json(changed(**change))
    assert str(error.value).startswith(f"terms: {words}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_taken_or_refused_as_on_the_local_engine(method):
    if METHODS[method].regression:
        assert Terms.from_json(changed(method=method, settings={})).method == method
        return
    refusal = Prepared.of(CONFIG, []).refusal(CONFIG, method)
    assert refusal == f"method '{method}' is for classification, but data.task = 'regression'"
    with pytest.raises(UserError) as error:
        Terms.from_json(changed(method=method, settings={}))
    assert str(error.value) == f"terms: {refusal}"


def test_what_cannot_be_had_is_refused_before_any_work(tmp_path):
    for changes in (("method=pfedgp",), ("privacy.mechanism=dp_teacher",), ("privacy.mechanism=dp_moments",)):
        with pytest.raises(UserError, match=r"is for classification, but data\.task = 'regression'"):
            write_federation(tmp_path / "new", diabetes("fedbnn", *changes))
    assert list(tmp_path.iterdir()) == []
