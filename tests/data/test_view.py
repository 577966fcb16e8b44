import dataclasses

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.deployment.terms import Terms
from fedbnn.features.maps import fit_features
from fedbnn.methods.head import Head
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
    phi = fit_features(torch.from_numpy(raw.alignment()), "auto", 401)
    on_ad = phi.coordinates(torch.from_numpy(raw.alignment())).double().numpy()
    factor = np.sqrt(400 / on_ad.var(0).sum())
    assert fed.input_shape == (400,)
    assert raw.input_shape == (1, 8, 8)

    def agree(seen, inputs):
        assert seen.dtype == np.float32
        expected = (phi.coordinates(torch.from_numpy(inputs)).double().numpy() - on_ad.mean(0)) * factor
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)

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


@pytest.mark.parametrize(
    ("inputs", "augment"),
    [
        ("features", "none"),
        ("mirrored_features", "flip"),
        ("kernel_features", "none"),
        ("mirrored_kernel_features", "flip"),
    ],
)
def test_they_are_those_of_fedbnns_heads(inputs, augment):
    changes = [*FEATURES, "data.inputs=raw", f"training.augment={augment}"]
    raw = Prepared.of(load_config(None, changes), ["local"]).sites[0].client
    seen = Prepared.of(load_config(None, [*FEATURES, LINEAR, f"data.inputs={inputs}"]), ["local"]).sites[0].client
    head = Head.of(raw, 1.0, 1.0)
    features = head.features if "kernel" in inputs else head.standard
    assert torch.equal(seen.alignment, features.alignment.float())
    assert torch.equal(seen.train.x, features(raw.train.x).float())


def test_mirrored_features_do_not_tell_an_image_from_its_mirror_image(digits):
    turned = dataclasses.replace(digits, x_test=digits.x_test[..., ::-1].copy())
    partition = PartitionSettings(clients=4, records_per_class=5)

    def test_records(source, inputs):
        return federate(source, dataclasses.replace(SETTINGS, inputs=inputs), partition, 3).evaluation("test")[0]

    one, other = (test_records(source, "mirrored_features") for source in (digits, turned))
    np.testing.assert_allclose(one, other, atol=1e-3 * one.std())  # scattering is in single precision
    one, other = (test_records(source, "features") for source in (digits, turned))
    assert abs(one - other).max() > one.std()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.alignment=0", 'data.inputs = "features", but data.alignment = 0'),
        ("training.augment=flip", "training.augment = 'flip' needs images"),
        ('models=[{name="cnn2"}]', r"model 'cnn2' needs images .* the records are \(400,\)"),
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
