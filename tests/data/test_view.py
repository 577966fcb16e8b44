import dataclasses

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.deployment.terms import Terms
from fedbnn.features.maps import fit_features
from fedbnn.methods.parts.feature_model import teacher_outputs
from fedbnn.models.softmax import fit_softmax
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared

SETTINGS = DataSettings(alignment=100, validation=50, inputs="features")
FEATURES = ["data.inputs=features", "data.alignment=100", "partition.clients=3", "partition.records_per_class=6"]
LINEAR = 'models=[{name="mlp",options={hidden=[]}}]'


@pytest.fixture(scope="module")
def digits():
    return load_dataset(DataSettings())


@pytest.fixture(scope="module")
def fed(digits):
    return federate(digits, SETTINGS, PartitionSettings(clients=4, records_per_class=5), 3)


def test_models_see_features_of_the_alignment_set_s_map_and_nothing_else_changes(digits, fed):
    raw = federate(
        digits, dataclasses.replace(SETTINGS, inputs="raw"), PartitionSettings(clients=4, records_per_class=5), 3
    )
    phi = fit_features(torch.from_numpy(raw.alignment()), "auto", 200)
    spread = phi(torch.from_numpy(raw.alignment())).numpy().std(0).mean()
    assert fed.input_shape == (200,)
    assert raw.input_shape == (1, 8, 8)

    def agree(seen, inputs):
        assert seen.dtype == np.float32
        np.testing.assert_allclose(seen * spread, phi(torch.from_numpy(inputs)).numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(np.linalg.norm(seen * spread, axis=1), 1, atol=1e-5)

    agree(fed.alignment(), raw.alignment())
    for i in range(4):
        (seen, y), (inputs, labels) = fed.client_arrays(i), raw.client_arrays(i)
        agree(seen, inputs)
        np.testing.assert_array_equal(y, labels)
    for split in ("test", "validation"):
        (seen, y, _), (inputs, labels, _) = fed.evaluation(split), raw.evaluation(split)
        agree(seen, inputs)
        np.testing.assert_array_equal(y, labels)
    assert fed.manifest() == raw.manifest()


def test_records_of_clients_have_no_part_in_the_map(digits, fed):
    changed = digits.x_train.copy()
    changed[fed.client_indices[0]] += 3
    other = federate(
        dataclasses.replace(digits, x_train=changed), SETTINGS, PartitionSettings(clients=4, records_per_class=5), 3
    )
    np.testing.assert_array_equal(other.alignment(), fed.alignment())
    np.testing.assert_array_equal(other.evaluation("test")[0], fed.evaluation("test")[0])
    assert (other.client_arrays(0)[0] != fed.client_arrays(0)[0]).any()


def test_a_linear_model_on_them_is_that_which_speaks_for_a_client():
    """The penalised softmax model of the feature teacher, fitted here on what sites are given, has the same outputs."""
    raw = Prepared.of(load_config(None, [*FEATURES, "data.inputs=raw"]), ["local"]).sites[0].client
    seen = Prepared.of(load_config(None, [*FEATURES, LINEAR]), ["local"]).sites[0].client
    target = torch.nn.functional.one_hot(seen.train.y, 10).double()
    held = target.sum(0) > 0
    weights = fit_softmax(seen.train.x.double(), target[:, held])
    logits = seen.alignment.double() @ weights[:-1] + weights[-1]
    torch.testing.assert_close(teacher_outputs(raw)[:, held], logits.softmax(1).float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.alignment=0", 'data.inputs = "features", but data.alignment = 0'),
        ("training.augment=flip", "training.augment = 'flip' needs images"),
        ('models=[{name="cnn2"}]', r"model 'cnn2' needs images .* the records are \(200,\)"),
        ("data.inputs=wavelets", "data.inputs = 'wavelets'"),
    ],
)
def test_what_does_not_go_with_features_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        Prepared.of(load_config(None, [*FEATURES, LINEAR, change]), ["local"])


def test_a_deployment_refuses_them():
    config = load_config(None, [*FEATURES, LINEAR])
    with pytest.raises(UserError, match="local engine only"):
        Terms.of(config, Prepared.of(config, ["fedbnn"]).data, "trial")
