import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.utils.validation import check_is_fitted

import fedbnn
from fedbnn import UserError, load_config
from fedbnn.deployment.client_classifier import ClientClassifier
from fedbnn.deployment.client_regressor import ClientRegressor
from tests.deployment.sklearn_checks import WITHOUT_FIT, passes
from tests.deployment.test_loaded import FAST


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    fedbnn.run(load_config(None, FAST), folder)
    return folder


def test_it_says_what_the_run_says(folder):
    run = fedbnn.load(folder)
    x, y = run.data.dataset.x_test, np.array(run.class_names)[run.data.dataset.y_test]
    for options in ({}, {"variant": "fine_tuned"}, {"prior": "own"}):
        expected = run.predict("client-1", x, **options)
        found = fedbnn.estimator(folder, "client-1", **options)
        assert np.array_equal(found.predict_proba(x), expected.prediction.probs.numpy())
        assert np.array_equal(found.predict_proba(x.reshape(len(x), -1)), expected.prediction.probs.numpy())
        assert found.predict(x).tolist() == expected.labels
        assert found.score(x, y) == pytest.approx(np.mean(np.array(expected.labels) == y))
    assert found.classes_.tolist() == list(run.class_names)
    assert found.n_features_in_ == 64
    other = fedbnn.estimator(folder, 0)
    assert other.set_params(client=1, prior="own").predict(x).tolist() == expected.labels
    assert not np.array_equal(other.predict_proba(x), other.set_params(prior=None).predict_proba(x))
    assert is_classifier(found)
    check_is_fitted(found)


@pytest.mark.parametrize("check", WITHOUT_FIT)
def test_the_checks_of_scikit_learn_that_fit_nothing_pass(folder, check):
    passes(check, ClientClassifier(str(folder)))


def test_tools_of_scikit_learn_take_it(folder):
    run = fedbnn.load(folder)
    data = run.data.dataset
    x, y = data.x_test.reshape(len(data.x_test), -1), np.array(data.class_names)[data.y_test]
    client = clone(fedbnn.estimator(folder, 1))
    pixels = permutation_importance(client, x[:60], y[:60], n_repeats=1, random_state=0)
    assert pixels.importances_mean.shape == (64,)
    scaled = CalibratedClassifierCV(FrozenEstimator(client), cv=3).fit(x[:200], y[:200])
    assert np.allclose(scaled.predict_proba(x[200:]).sum(1), 1)


def test_mistakes_are_told(folder, tmp_path):
    client = fedbnn.estimator(folder)
    with pytest.raises(UserError, match="trained in its federation"):
        client.fit(np.zeros((2, 64)), [0, 1])
    with pytest.raises(UserError, match="a record has 63 values, those of the run have 64"):
        client.predict(np.zeros((2, 63)))
    with pytest.raises(UserError, match=r"for regression, but data\.task = 'classification'"):
        ClientRegressor(folder).predict(np.zeros((2, 64)))
    with pytest.raises(UserError, match="no such client"):
        fedbnn.estimator(folder, "nobody")
    with pytest.raises(UserError, match="holds no run"):
        fedbnn.estimator(tmp_path)
