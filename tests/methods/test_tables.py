"""FedBNN with its defaults on a table, against the logistic regression that every site could have fitted alone."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.loop import Federation
from fedbnn.federation.metrics import nll, reliability
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedBNN
from fedbnn.runs.results import summary


@pytest.mark.parametrize("seed", [0, 1])
def test_its_likelihood_is_no_worse_than_that_of_logistic_regression_at_each_site(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1200, 8)) * [1, 30, 0.1, 5, 1, 1, 2, 1] + [0, 130, 0, 55, 0, 0, 0, 0]
    z = (x - x.mean(0)) / x.std(0)
    y = (z[:, 0] + z[:, 1] * z[:, 2] - z[:, 3] + rng.logistic(size=1200) > 0).astype(int)
    np.savez(tmp_path / "table.npz", x_train=x[:700], y_train=y[:700], x_test=x[700:], y_test=y[700:])
    settings = DataSettings(source="npz", path=str(tmp_path / "table.npz"), alignment=150)
    partition = PartitionSettings(kind="quantity", clients=4, records_per_client=60, alpha=2.0)
    sites = make_sites(federate(load_dataset(settings), settings, partition, seed), rounds=4, seed=seed)
    federation = Federation(FedBNN(), sites, seed=seed)
    for _ in range(4):
        federation.step(evaluate=False)
    found = summary([scores["personal"] for scores in federation.step().scores.values()])
    alone, labels = [], []
    for site in sites:
        regression = LogisticRegression(max_iter=2000).fit(site.client.train.x.numpy(), site.client.train.y.numpy())
        alone.append(regression.predict_proba(site.evaluation.x.numpy()))
        labels.append(site.evaluation.y.numpy())
    assert found["nll"] < np.mean([nll(probs, y) for probs, y in zip(alone, labels, strict=True)])
    assert found["ece"] < reliability(np.concatenate(alone), np.concatenate(labels)).ece
