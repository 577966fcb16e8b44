"""Mistakes in Python's calls: one line that names the argument, before any work is done."""

import numpy as np
import pytest

import fedbnn
from tests.federation_sample import small_sites

SETTINGS = fedbnn.DataSettings(alignment=30)
DATASET = fedbnn.load_dataset(SETTINGS)
PARTITION = fedbnn.PartitionSettings(clients=2, classes_per_client=3, records_per_class=4)
DATA = fedbnn.federate(DATASET, SETTINGS, PARTITION, 0)


@pytest.fixture(scope="module")
def sites():
    return small_sites(clients=2, models=("mlp",))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fedbnn.Config(roundz=3), "Config: unknown key 'roundz'; did you mean 'rounds'?"),
        (lambda: fedbnn.Config(rounds="a"), "Config: rounds = 'a': Input should be a valid integer"),
        (lambda: fedbnn.Config("fedbnn", -1), "Config: seed = -1: Input should be greater than or equal to 0"),
        (lambda: fedbnn.DataSettings(3), "DataSettings: source = 3: Input should be a valid string"),
        (lambda: fedbnn.FedBNN(gamma=3), "FedBNN: gamma = 3: Input should be less than or equal to 1"),
        (lambda: fedbnn.ModelSettings("mlp", bodie="x"), "ModelSettings: unknown key 'bodie'; did you mean 'body'?"),
        (lambda: fedbnn.load_dataset("digits"), "settings: a 'str' was given; give fedbnn.DataSettings"),
        (lambda: fedbnn.Dataset("a", [[1.0]], [0], [[1.0]], [0], ("a", "b")), "x_train: a 'list' was given"),
        (lambda: fedbnn.federate(SETTINGS, DATASET, PARTITION, 0), "dataset: a 'DataSettings' was given"),
        (lambda: fedbnn.federate(DATASET, SETTINGS, PARTITION, "0"), "seed: a 'str' was given; give a whole number"),
        (lambda: fedbnn.make_sites(DATASET), "data: a 'Dataset' was given; give what fedbnn.federate returns"),
        (lambda: fedbnn.make_sites(DATA, "mlp"), "models: a 'str' was given; give a list"),
        (lambda: fedbnn.make_sites(DATA, []), "models: the list is empty"),
        (lambda: fedbnn.make_sites(DATA, split="tets"), "split = 'tets': it is test or validation"),
        (lambda: fedbnn.make_sites(DATA, training={}), "training: a 'dict' was given"),
        (lambda: fedbnn.WorkerPool(0), "workers = 0: the number of processes"),
        (lambda: fedbnn.compare(fedbnn.Config(), "fedbnn", "nowhere"), "methods: a 'str' was given; give a list"),
    ],
)
def test_mistakes_are_told(call, words):
    with pytest.raises(fedbnn.UserError) as caught:
        call()
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda sites: fedbnn.Federation("fedbnn", sites), "method: a 'str' was given; give a method"),
        (lambda sites: fedbnn.Federation(fedbnn.Local, sites), "method: the class Local was given"),
        (lambda sites: fedbnn.Federation(fedbnn.Local(), []), "sites: the list is empty"),
        (lambda sites: fedbnn.Federation(fedbnn.Local(), sites, participation=3), "participation = 3: the share"),
        (
            lambda sites: fedbnn.Federation(fedbnn.Local(), sites).predict(9, np.zeros((1, 1, 8, 8))),
            "client = 9: there are 2, numbered from 0",
        ),
    ],
)
def test_mistakes_around_a_federation_are_told(call, words, sites):
    with pytest.raises(fedbnn.UserError) as caught:
        call(sites)
    assert str(caught.value).startswith(words)


def test_settings_by_position_are_what_they_are_by_name():
    assert fedbnn.PartitionSettings("iid", 3) == fedbnn.PartitionSettings(kind="iid", clients=3)
    with pytest.raises(fedbnn.UserError, match="PartitionSettings: kind = 'iid': Got multiple values"):
        fedbnn.PartitionSettings("iid", kind="iid")
