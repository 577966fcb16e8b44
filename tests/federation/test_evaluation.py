import copy
import json

import numpy as np
import pytest
import torch

from fedbnn.federation.evaluation import Evaluation, evaluate
from fedbnn.models.bayes import Prediction


@pytest.fixture
def sent():
    rng = np.random.default_rng(0)
    draws = torch.from_numpy(rng.dirichlet(np.ones(4), (3, 50))).float()
    y = torch.from_numpy(rng.integers(0, 4, 50))
    return json.loads(json.dumps(evaluate(Prediction.from_draws(draws), y, y < 3).to_dict()))


def test_what_was_sent_comes_back(sent):
    assert Evaluation.from_dict(sent).to_dict() == sent
    assert (
        Evaluation.from_dict(sent).ranked.count.sum() == np.sum(sent["confusion"]) == sum(sent["reliability"]["count"])
    )
    without = {name: value for name, value in sent.items() if name != "confusion"}
    assert Evaluation.from_dict(without).to_dict() == without


def changed(sent, change):
    other = copy.deepcopy(sent)
    change(other)
    return other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.pop("ranked"), "an evaluation has"),
        (lambda one: one.update(more=1), "an evaluation has"),
        (lambda one: one["ranked"]["count"].__setitem__(0, -1), "a count is not between"),
        (lambda one: one["ranked"]["edges"].__setitem__(1, 0.2), "do not divide 0 to 1 evenly"),
        (lambda one: one["ranked"]["correct"].__setitem__(0, 2**30), "do not count the same"),
        (lambda one: one["ranked"].update(count=one["ranked"]["correct"], correct=one["ranked"]["count"]), "the same"),
        (lambda one: one["confusion"][0].__setitem__(0, 9), "do not count the same"),
        (lambda one: one.update(confusion="x"), "a confusion matrix"),
        (lambda one: one.update(confusion=None), "a confusion matrix"),
        (lambda one: one.update(ranked=[]), "must be an object"),
    ],
)
def test_what_does_not_agree_with_itself_is_refused(sent, change, words):
    with pytest.raises(ValueError, match=words):
        Evaluation.from_dict(changed(sent, change))
