"""Sites on bodies of their own, which are in their own files alone."""

import json

import pytest
import torch

from fedbnn import UserError, make_sites
from fedbnn.data.check import check_data
from fedbnn.deployment.predict import predict
from fedbnn.deployment.server_file import read_server
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.state import model_facts, remember_site
from fedbnn.deployment.terms import read_terms
from fedbnn.federation.loop import roster_of
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import HandServer, dealt, site_nodes, small_config, write_sites

BODY = "tests.features.bodies.own_bodies:wide"
CONFIG = small_config("fedbnn", f'models=[{{name="mlp",body="{BODY}",components=10}}]', 'training.augment="flip"')


@pytest.fixture
def files(tmp_path):
    return write_sites(tmp_path, CONFIG, f'body = "{BODY}"\ncomponents = 10')


def test_a_site_sees_what_a_client_of_the_dealt_data_does(files):
    expected = make_sites(dealt(CONFIG), CONFIG.models, CONFIG.training, rounds=CONFIG.rounds)
    for file, dealt_site in zip(files, expected, strict=True):
        settings = read_site(file)
        site = load_site(settings, read_terms(settings.terms))
        assert torch.equal(site.client.train.x, dealt_site.client.train.x)
        assert torch.equal(site.client.alignment, dealt_site.client.alignment)
        assert (site.client.model, site.client.training) == (dealt_site.client.model, dealt_site.client.training)
        assert torch.equal(site.evaluation.x, dealt_site.evaluation.x)


def test_sites_learn_and_predict_on_inputs_as_loaded(files):
    nodes = site_nodes(files)
    terms = nodes[0].terms
    server = HandServer(terms, roster_of([node.site for node in nodes]))
    server.step(nodes)
    settings, data = read_site(files[0]), dealt(CONFIG)
    remember_site(settings.state, files[0])
    found = predict(settings.state, files[0].parent / "alignment.npz")
    expected = nodes[0].predict(nodes[0].site.client.alignment, None, None)
    assert len(found.labels) == data.alignment_points
    torch.testing.assert_close(found.prediction.probs, expected.probs)


def test_simulated_sites_on_flower_see_what_local_clients_do(tmp_path):
    """From the configuration as JSON, as each of Ray's processes reads it."""
    pytest.importorskip("flwr")
    from fedbnn.deployment.flower.simulation import _nodes

    nodes = _nodes(json.dumps(CONFIG.to_json()), str(tmp_path / "sites"), str(tmp_path / "ledgers"), "cpu")
    for node, site in zip(nodes, Prepared.of(CONFIG, [CONFIG.method]).sites, strict=True):
        assert node.site.client.model.body == BODY
        assert torch.equal(node.site.client.train.x, site.client.train.x)
        assert torch.equal(node.site.client.alignment, site.client.alignment)
        assert torch.equal(node.site.evaluation.x, site.evaluation.x)


def test_data_is_checked_as_loaded_whatever_models_stand_on():
    found = check_data(CONFIG.data, CONFIG.partition, CONFIG.seed)
    assert found.features == 64
    assert [client.records for client in found.clients] == [len(rows) for rows in dealt(CONFIG).client_indices]


def test_what_a_server_hears_of_a_body_is_its_name(files):
    facts = model_facts(read_site(files[0]).model)
    assert facts == {"name": "mlp", "options": {}, "body": BODY, "components": 10}


def test_a_server_has_no_features_of_a_body(tmp_path):
    (tmp_path / "server.toml").write_text(f'[model]\nname = "mlp"\nbody = "{BODY}"\n', encoding="utf-8")
    with pytest.raises(UserError, match="the server has no features of a body"):
        read_server(tmp_path / "server.toml")
