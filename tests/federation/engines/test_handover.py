import dataclasses

import torch

from fedbnn.federation.engines import handover
from fedbnn.privacy import Budget, PrivacySettings
from tests.federation_sample import small_sites, with_client


def test_a_client_takes_its_settings_and_its_cap_along(tmp_path):
    sites = small_sites(clients=2, privacy=PrivacySettings("dp_teacher"), ledgers=tmp_path / "ledgers")
    sites = [with_client(sites[0], cap=Budget(7.0, 1e-6)), sites[1]]
    handover.write(tmp_path / "sites", sites)
    for site, found in zip(sites, handover.Handed(tmp_path / "sites", {0, 1}).values(), strict=True):
        assert torch.equal(found.client.identity, site.client.identity)
        for field in dataclasses.fields(site.client):
            if field.name not in ("train", "alignment", "identity"):
                assert getattr(found.client, field.name) == getattr(site.client, field.name)
