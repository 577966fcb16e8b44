"""Public features of a user's own: a class that settings name by where it is."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.deployment.terms import Terms
from fedbnn.features import FeatureMap
from fedbnn.features.public import public
from fedbnn.federation.loop import Federation
from fedbnn.methods import FedBNN
from fedbnn.privacy import PrivacySettings
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared
from tests.federation_sample import small_sites

PATH = "tests.features.test_own_map:Columns"


@dataclass(frozen=True)
class Columns(FeatureMap):
    """The first numbers of a record, less their mean on the alignment set."""

    centre: torch.Tensor

    @classmethod
    def fit(cls, alignment, dimensions, generator):
        return cls(torch.ones(1), alignment.flatten(1)[:, : dimensions - 1].mean(0))

    @property
    def shape(self):
        return (1, 8, 8)

    @property
    def dimensions(self):
        return len(self.centre) + 1

    def coordinates(self, x):
        return x.flatten(1)[:, : len(self.centre)] - self.centre


class Wrong(Columns):
    @property
    def dimensions(self):
        return 3


def test_private_clients_learn_on_it_and_no_record_is_longer_than_one(tmp_path):
    privacy = PrivacySettings(mechanism="dp_teacher", features=PATH, dimensions=12, delta=1e-3)
    sites = small_sites(2, models=("mlp",), privacy=privacy, ledgers=tmp_path)
    federation = Federation(FedBNN(prior_steps=2, mc_samples=2), sites)
    federation.run(1)
    gate = sites[0].client.gate
    assert type(gate.public.map).__name__ == "Columns"
    assert gate.shape.features == 12
    assert gate.public.map(1e6 * sites[0].client.train.x).norm(dim=1).max() <= 1
    assert gate.guarantee().epsilon == pytest.approx(3, rel=1e-3)


def test_the_same_name_with_another_map_is_another_question(monkeypatch):
    alignment = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    first = public(alignment, PATH, 12).digest
    monkeypatch.setattr("fedbnn.features.public._known", {})
    assert public(alignment, PATH, 12).digest == first
    monkeypatch.setattr("fedbnn.features.public._known", {})
    monkeypatch.setattr(Columns, "coordinates", lambda self, x: 2 * x.flatten(1)[:, : len(self.centre)])
    assert public(alignment, PATH, 12).digest != first


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.features.test_own_map:PATH", "is not a class that is derived from fedbnn.features.FeatureMap"),
        ("tests.features.nowhere:X", "cannot be imported"),
        (PATH.replace("Columns", "Wrong"), "it says dimensions = 3, and gives 12"),
    ],
)
def test_what_is_no_map_is_told_in_one_line(name, words):
    with pytest.raises(UserError, match=words) as caught:
        public(torch.rand(20, 1, 8, 8), name, 12)
    assert str(caught.value).startswith(f"privacy.features = '{name}'")
    assert "\n" not in str(caught.value)


def test_a_mistyped_name_is_told_with_the_known_ones():
    with pytest.raises(UserError, match=r"privacy\.features = 'furier': unknown; did you mean 'fourier'\? \(there are"):
        load_config(None, ["privacy.features=furier"])


def test_terms_of_a_deployment_import_no_code():
    config = load_config(None, ["partition.clients=3"])
    named = replace(config, privacy=replace(config.privacy, features=PATH))
    data = Prepared.of(config, []).data
    with pytest.raises(UserError, match="known to the local engine only"):
        Terms.of(named, data, "run")
    written = Terms.of(config, data, "run").to_json().replace('"features": "auto"', f'"features": "{PATH}"')
    with pytest.raises(UserError, match="known to the local engine only"):
        Terms.from_json(written)
