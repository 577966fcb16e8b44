"""A mechanism is one class: what it defines is all that the settings, methods, plans and reports need."""

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.methods import FedBNN, FedMD
from fedbnn.methods.mechanisms.mechanism import OutputsMechanism
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.forecast import forecast
from fedbnn.privacy.mechanism import MECHANISMS, Release, Sizes
from fedbnn.runs.config import load_config
from tests.federation_sample import small_sites


@pytest.fixture
def fifth():
    """Clients say which class they think of, and no more; as a release it would be one number."""

    class LabelsOnly(OutputsMechanism):
        name = "labels_only"
        summary = "the most likely class of each point"
        sent = "Labels."
        rule = "mean_probabilities"

        def releases(self, rounds):
            return 3 * rounds

        def release(self, sizes):
            return Release(1, 2.0, 10.0, "one number", at_most=False, joined=True)

        def upload(self, client, message, round_number, outputs):
            phi = outputs()
            return Message({"phi": torch.nn.functional.one_hot(phi.argmax(1), phi.shape[1]).float()})

    yield "labels_only"
    del MECHANISMS["labels_only"]


@pytest.mark.parametrize("method", [FedBNN(prior_steps=2, mc_samples=2), FedMD(digest_steps=2)], ids=lambda m: m.name)
def test_a_fifth_mechanism_is_known_as_soon_as_it_is_defined(fifth, method, tmp_path):
    privacy = PrivacySettings(mechanism=fifth)
    assert privacy.planned(4) == 12
    assert load_config(None, ["privacy.mechanism=labels_only"]).privacy == privacy
    sites = small_sites(3, models=("mlp",), privacy=privacy, ledgers=tmp_path)
    federation = Federation(method, sites)
    federation.run(1)
    assert set(federation.server.phi.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(federation.server.phi_bar, federation.server.phi.mean(0))


def test_its_plan_follows_from_what_one_release_is(fifth):
    plan = forecast(fifth, 1e-5, Sizes(clients=4), noise_multiplier=5.0, releases=1)
    assert plan.deviation == 5.0 * 2.0
    assert plan.one_client == 10.0 / 10.0
    assert plan.all_clients == 2.0


def test_an_unknown_name_is_one_line_with_the_known_ones():
    with pytest.raises(UserError) as caught:
        load_config(None, ["privacy.mechanism=dp_techer"])
    assert str(caught.value) == (
        "privacy.mechanism = 'dp_techer': unknown; did you mean 'dp_teacher'? (there are " + ", ".join(MECHANISMS) + ")"
    )


def test_without_noise_there_is_nothing_to_plan():
    with pytest.raises(UserError, match="mechanism = 'none': it has no noise"):
        forecast("none", 1e-5, Sizes())
