import json
import math

import numpy as np
import pytest
import torch

from fedbnn import UserError
from fedbnn.federation.calibrated import Calibrated, Wish, seen_before
from fedbnn.models.bayes import Prediction
from fedbnn.models.conformal import Conformal
from fedbnn.models.training import Records
from tests.federation_sample import small_sites

NAMES = ("a", "b", "c")


def prediction(seed, n):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    draws = torch.from_numpy(rng.dirichlet(np.ones(3), (2, n)) * 0.3 + 0.7 * np.eye(3)[y]).float()
    return Prediction.from_draws(draws), torch.from_numpy(y)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_are_those_of_the_probabilities_under_the_same_prior(score):
    """A label prior turns calibration and new records alike; one of them alone would break the promise."""
    (known, y), (new, _) = prediction(0, 50), prediction(1, 20)
    ratio = torch.tensor([1.0, 4.0, 0.5], dtype=torch.float64)
    fitted = Calibrated.fit(Wish(alpha=0.2, score=score), known.under(ratio), y)
    expected = Conformal.fit(known.under(ratio).probs, y, 0.2, score).sets(new.under(ratio).probs)
    assert np.array_equal(fitted.sets(new.under(ratio)), expected)
    assert fitted.abstains(new) is None


def test_no_record_for_calibration_means_every_class_and_no_answer():
    known, y = prediction(0, 0)
    new, _ = prediction(1, 4)
    fitted = Calibrated.fit(Wish(alpha=0.1, risk=0.1), known, y)
    assert fitted.sets(new).all()
    assert fitted.abstains(new).all()
    assert "too few to leave any class out" in fitted.in_words(NAMES)[0]
    assert "No answer is given" in fitted.in_words(NAMES)[1]
    json.dumps(fitted.to_dict(NAMES), allow_nan=False)


def test_what_is_promised_is_told_with_what_it_rests_on():
    known, y = prediction(0, 200)
    fitted = Calibrated.fit(Wish(alpha=0.1, risk=0.05), known, y, doubtful=3)
    sets, answers, doubt = fitted.in_words(NAMES)
    low, high = fitted.conformal.likely_coverage()
    assert sets == (
        "Sets hold the true class of at least 0.9 of new records like the 200 for calibration; with these very ones, "
        f"between {low:.3f} and {high:.3f}"
    )
    assert "at most 0.05 of all answers are wrong (confidence 0.9)" in answers
    assert doubt.startswith("3 of them equal training records")
    few = torch.arange(20)
    by_class = Calibrated.fit(Wish(alpha=0.1, within="class"), Prediction.from_draws(known.draws[:, few]), y[few] % 2)
    assert "in every set, for want of records: " in by_class.in_words(NAMES)[0]
    assert "'c'" in by_class.in_words(NAMES)[0]
    told = fitted.to_dict(NAMES)
    assert told["sets"]["records"] == {name: int((y == i).sum()) for i, name in enumerate(NAMES)}
    assert told["abstention"]["answered"] <= 200
    assert math.isfinite(told["abstention"]["bound"])


def test_a_prior_that_new_records_decide_on_is_refused():
    with pytest.raises(UserError, match="prior 'estimate' depends on the new records"):
        Wish(alpha=0.1).check_prior("estimate")
    Wish().check_prior("estimate")
    Wish(risk=0.1).check_prior("uniform")


@pytest.mark.parametrize("wish", [{"alpha": 1.5}, {"risk": 0.0}, {"score": "x"}, {"within": "x"}, {"confidence": 1.0}])
def test_a_wish_that_cannot_be_is_told_before_any_work(wish):
    with pytest.raises(UserError, match=f"{next(iter(wish))} = "):
        Wish(**wish)


def test_training_records_are_no_calibration_records():
    sites = small_sites(clients=2)
    clients = [site.client for site in sites]
    with pytest.raises(UserError, match=r"mine: all of its 12 record\(s\) are among those that were trained on"):
        seen_before("mine", clients, sites[1].client.train)
    mixed = Records(
        torch.cat([sites[0].client.train.x[:3], sites[0].evaluation.x[:5]]),
        torch.cat([sites[0].client.train.y[:3], sites[0].evaluation.y[:5]]),
    )
    assert seen_before("mine", clients, mixed) == 3
    assert seen_before("mine", clients[1:], mixed) == 0
