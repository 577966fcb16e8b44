import dataclasses

import numpy as np
import pandas
import pytest
import torch

from fedbnn import Dataset, DataSettings, FedAvg, Federation, PartitionSettings, TrainingSettings, UserError, federate
from fedbnn.federation.sites import make_sites


def pictures(inputs="raw"):
    """Small coloured images in two classes, and a federation that has seen them."""
    rng = np.random.default_rng(0)
    x = rng.random((90, 3, 8, 8)).astype(np.float32)
    y = (x[:, 0].mean((1, 2)) > 0.5).astype(np.int64)
    settings = DataSettings(alignment=20, inputs=inputs)
    data = federate(
        Dataset("pictures", x[:60], y[:60], x[60:], y[60:], ("dark", "bright")),
        settings,
        PartitionSettings(kind="iid", clients=2),
        0,
    )
    sites = make_sites(data, ["cnn2" if inputs == "raw" else "mlp"], TrainingSettings(local_epochs=1, warmup_epochs=1))
    federation = Federation(FedAvg(), sites)
    federation.run(1)
    return data, federation


@pytest.fixture(scope="module", params=["raw", "features"])
def trained(request):
    return pictures(request.param)


def test_raw_inputs_of_every_form_give_the_bits_of_scaled_ones(trained):
    data, federation = trained
    raw = data.dataset.x_test
    expected = federation.predict(0, torch.from_numpy(data.evaluation("test")[0]))
    for form in (raw, torch.from_numpy(raw), raw.astype(np.float64), raw.transpose(0, 2, 3, 1)):
        found = federation.predict(0, form, raw=True)
        assert torch.equal(found.probs, expected.probs)
        assert torch.equal(found.aleatoric, expected.aleatoric)
    assert torch.equal(federation.predict(0, data.evaluation("test")[0]).probs, expected.probs)
    assert not torch.equal(federation.predict(0, raw + 1, raw=True).probs, expected.probs)


def test_bytes_are_divided_by_255_as_those_of_a_file_are():
    data, federation = pictures()
    raw = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    scaled = data.seen(raw.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
    assert torch.equal(federation.predict(0, raw, raw=True).probs, federation.predict(0, scaled).probs)


def test_tables_of_pandas_are_taken_as_they_stand():
    rng = np.random.default_rng(2)
    x, y = rng.normal(3, 2, (80, 4)).astype(np.float32), np.arange(80) % 2
    dataset = Dataset("table", x[:60], y[:60], x[60:], y[60:], ("no", "yes"))
    data = federate(dataset, DataSettings(alignment=10), PartitionSettings(kind="iid", clients=2), 0)
    federation = Federation(FedAvg(), make_sites(data, ["mlp"], TrainingSettings(local_epochs=1, warmup_epochs=1)))
    federation.run(1)
    expected = federation.predict(1, data.seen(x[60:])).probs
    frame = pandas.DataFrame(x[60:], columns=list("abcd"))
    assert torch.equal(federation.predict(1, frame, raw=True).probs, expected)
    assert torch.equal(federation.predict(1, x[60:].tolist(), raw=True).probs, expected)
    with pytest.raises(UserError, match=r"shape \(3,\), those of the data set have \(4,\)"):
        federation.predict(1, frame[["a", "b", "c"]], raw=True)
    with pytest.raises(UserError, match="numbers are needed"):
        federation.predict(1, frame.assign(d="x"), raw=True)
    with pytest.raises(UserError, match="not of one length"):
        federation.predict(1, [[1.0], [1.0, 2.0]], raw=True)


def test_what_does_not_fit_is_told(trained):
    data, federation = trained
    raw = data.dataset.x_test
    with pytest.raises(UserError, match=r"shape \(3, 8, 7\), those of the data set have \(3, 8, 8\)"):
        federation.predict(0, raw[..., :7], raw=True)
    with pytest.raises(UserError, match="x has no records"):
        federation.predict(0, raw[:0], raw=True)
    with pytest.raises(UserError, match="NaN or infinity in 30 record"):
        federation.predict(0, raw * np.nan, raw=True)
    with pytest.raises(UserError, match="models see"):
        federation.predict(0, raw[:, 0])
    if data.view is not None:
        with pytest.raises(UserError, match="need raw=True"):
            federation.predict(0, raw)


def test_sites_without_a_view_say_so(trained):
    data, federation = trained
    sites = [dataclasses.replace(site, view=None) for site in federation.sites]
    with pytest.raises(UserError, match="make them with make_sites"):
        Federation(FedAvg(), sites).predict(0, data.dataset.x_test, raw=True)
