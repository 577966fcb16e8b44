import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.ensemble import StackingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

import fedbnn
from fedbnn import UserError
from fedbnn.deployment.client_classifier import ClientClassifier
from fedbnn.deployment.client_regressor import ClientRegressor
from tests.deployment.regression_run import made
from tests.deployment.sklearn_checks import WITHOUT_FIT, passes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "mine")


def test_it_says_what_the_run_says(run):
    x, y = run.data.dataset.x_test, run.data.dataset.y_test
    for options in ({}, {"variant": "fine_tuned"}):
        expected = run.predict("client-1", x, **options).prediction
        found = fedbnn.estimator(run.path, "client-1", **options)
        mean, sd = found.predict(x, return_std=True)
        assert mean.dtype == np.float64
        assert torch.equal(torch.from_numpy(mean), expected.mean)
        assert torch.equal(torch.from_numpy(sd), expected.sd)
        assert np.array_equal(found.predict(x), mean)
        assert found.score(x, y) == r2_score(y, mean)
    assert found.score(x, y) > 0.2  # it has learned something
    assert found.n_features_in_ == 10
    assert np.array_equal(found.predict(x.tolist()), mean)
    other = fedbnn.estimator(run, 0)
    assert not np.array_equal(other.predict(x), mean)
    assert np.array_equal(other.set_params(client=1, variant="fine_tuned").predict(x), mean)
    assert is_regressor(found)
    check_is_fitted(found)


@pytest.mark.parametrize("check", WITHOUT_FIT)
def test_the_checks_of_scikit_learn_that_fit_nothing_pass(run, check):
    passes(check, ClientRegressor(str(run.path)))


def test_tools_of_scikit_learn_take_it(run):
    x, y = run.data.dataset.x_test, run.data.dataset.y_test
    client = clone(fedbnn.estimator(run.path, 1))
    piped = make_pipeline(FunctionTransformer(lambda table: table.to_numpy()), client)
    assert np.array_equal(piped.predict(pandas.DataFrame(x)), client.predict(x))
    mean, sd = piped.predict(pandas.DataFrame(x), return_std=True)
    assert np.array_equal(sd, client.predict(x, return_std=True)[1])
    assert clone(piped).score(pandas.DataFrame(x), y) == r2_score(y, mean)
    found = permutation_importance(client, x, y, n_repeats=3, random_state=0).importances_mean
    assert found[[2, 8]].min() > found[[0, 4]].max()  # mass and triglycerides tell more than age and cholesterol
    both = [(name, FrozenEstimator(fedbnn.estimator(run.path, name))) for name in run.clients]
    stacked = StackingRegressor(both, LinearRegression(), cv="prefit").fit(x[:60], y[:60])
    by_hand = LinearRegression().fit(np.stack([one.predict(x[:60]) for _, one in both], 1), y[:60])
    expected = by_hand.predict(np.stack([one.predict(x[60:]) for _, one in both], 1))
    assert np.allclose(stacked.predict(x[60:]), expected)


def test_mistakes_are_told(run):
    x, client = run.data.dataset.x_test, fedbnn.estimator(run)
    for refuses in (client, make_pipeline(client)):
        with pytest.raises(UserError, match="trained in its federation"):
            refuses.fit(x, run.data.dataset.y_test)
    with pytest.raises(UserError, match="no such client"):
        fedbnn.estimator(run, "nobody")
    with pytest.raises(UserError, match=r"prior: it is for classification, but data\.task = 'regression'"):
        fedbnn.estimator(run, prior="own")
    with pytest.raises(UserError, match=r"for classification, but data\.task = 'regression'"):
        ClientClassifier(run).predict(x)
