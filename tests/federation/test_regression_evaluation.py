import json
import math

import numpy as np
import pytest
import torch

from fedbnn.federation.evaluation import DETECTION, Evaluation, evaluate, scored_from, with_detection
from fedbnn.federation.metrics.regression import pit_counts
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES, RegressionEvaluation
from fedbnn.models.regression import Mixture


def mixture(n: int = 400, seed: int = 0) -> tuple[Mixture, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    mean, y = torch.randn(n, generator=g).double() * 5, torch.randn(n, generator=g).double() * 2
    return Mixture(mean[None], torch.full((1, n), 4.0).double()), mean + y


def test_scores_are_means_over_the_records_that_are_marked() -> None:
    said, y = mixture()
    own = torch.arange(400) % 3 == 0
    found = evaluate(said, y, own)
    assert isinstance(found, RegressionEvaluation)
    apart = (said.mean - y)[own].numpy()
    assert found.scores["rmse"] == pytest.approx(np.sqrt(np.mean(apart**2)))
    assert found.scores["mae"] == pytest.approx(np.mean(np.abs(apart)))
    assert found.scores["nll"] == pytest.approx(float(said.nll(y)[own].mean()))
    assert found.scores["crps"] == pytest.approx(float(said.crps(y)[own].mean()))
    z = 1.6448536269514722  # the normal quantile at 0.95
    assert found.scores["width_90"] == pytest.approx(2 * z * 2)
    assert found.scores["coverage_90"] == pytest.approx(np.mean(np.abs(apart) <= z * 2))
    assert found.pit.count.sum() == int(own.sum())


def test_counts_of_clients_add_up_and_tell_coverage() -> None:
    u = np.random.default_rng(0).random(5000)
    one, other = pit_counts(u[:2000]), pit_counts(u[2000:])
    both = one + other
    assert both.count.tolist() == pit_counts(u).count.tolist()
    levels, held = both.coverage
    assert levels.tolist() == pytest.approx([step / 10 for step in range(11)])
    assert held.tolist() == pytest.approx([np.mean(np.abs(2 * u - 1) < level) for level in levels], abs=1e-9)
    assert both.share.sum() == pytest.approx(1)


@pytest.mark.parametrize("values", [[], [[0.5]], [1.1], [-0.1], [math.nan]])
def test_what_is_no_probability_is_not_counted(values: list) -> None:
    with pytest.raises(ValueError, match="values"):
        pit_counts(values)


def test_foreign_inputs_are_told_by_variance() -> None:
    said, y = mixture(50)
    strange = Mixture(torch.tensor([[0.0] * 5, [9.0] * 5]).double(), torch.full((2, 5), 4.0).double())
    found = with_detection(evaluate(said, y, torch.ones(50, dtype=torch.bool)), said, torch.ones(50) > 0, strange)
    assert [found.scores[name] for name in DETECTION] == [1.0, 1.0]
    assert scored_from(json.loads(json.dumps(found.to_dict()))).scores == found.scores


def test_what_was_written_is_read() -> None:
    said, y = mixture()
    found = evaluate(said, y, torch.ones(400, dtype=torch.bool))
    again = scored_from(json.loads(json.dumps(found.to_dict())))
    assert isinstance(again, RegressionEvaluation)
    assert not isinstance(again, Evaluation)
    assert again.scores == found.scores
    assert again.pit.count.tolist() == found.pit.count.tolist()
    assert tuple(again.scores) == REGRESSION_SCORES


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["scores"].update(rmse=-1.0),
        lambda told: told["scores"].update(crps=math.inf),
        lambda told: told["scores"].update(coverage_90=1.5),
        lambda told: told["scores"].update(nll=math.nan),
        lambda told: told["scores"].update(mine=1.0),
        lambda told: told["scores"].update(mae="1"),
        lambda told: told["scores"].pop("width_90"),
        lambda told: told["pit"]["count"].__setitem__(0, -1),
        lambda told: told["pit"]["edges"].__setitem__(1, 0.07),
        lambda told: told["pit"].pop("count"),
        lambda told: told.update(reliability={}),
        lambda told: told.update(scores=[1]),
        lambda told: told.update(pit=None),
    ],
)
def test_what_nobody_could_have_scored_is_refused(change) -> None:
    said, y = mixture()
    told = evaluate(said, y, torch.ones(400, dtype=torch.bool)).to_dict()
    told = json.loads(json.dumps(told))
    change(told)
    with pytest.raises(ValueError, match=r"\w"):
        scored_from(told)
