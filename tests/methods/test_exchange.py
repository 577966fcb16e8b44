"""What the exchange makes of the consensus for a client, and what it asks a network for."""

import pytest
import torch

from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FedBNN, FedBNNPaper, FedMD
from fedbnn.methods.consensus import Rule, output_of, target_of
from fedbnn.models.bayes import Prediction
from tests.federation_sample import small_sites

Exchanging = FedBNN | FedBNNPaper | FedMD
RULES: tuple[Rule, ...] = ("mean_logits", "mean_probabilities", "sharpened")
every_rule = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(scope="module")
def client() -> Client:
    return small_sites(1, models=("mlp",))[0].client


def exchanging(rule: Rule, gamma: float) -> list[Exchanging]:
    """Those whose networks speak for themselves."""
    return [
        FedBNN(head=False, consensus=rule, gamma=gamma),
        FedBNNPaper(consensus=rule, gamma=gamma),
        FedMD(consensus=rule, gamma=gamma),
    ]


def drawn(client: Client, seed: int) -> Prediction:
    logits = torch.randn(len(client.alignment), client.classes, generator=torch.Generator().manual_seed(seed))
    probs = logits.softmax(1)
    return Prediction(probs, logits, torch.zeros(len(logits)), probs[None])


def unasked() -> Prediction:
    raise AssertionError("the network was asked")


@every_rule
@pytest.mark.parametrize("gamma", [0.0, 0.4])
def test_the_target_mixes_the_consensus_with_the_clients_own_output(rule: Rule, gamma: float, client: Client) -> None:
    own, phi_bar = drawn(client, 0), output_of(drawn(client, 1), rule)
    expected = target_of(phi_bar, output_of(own, rule), gamma, rule)
    for method in exchanging(rule, gamma):
        found = method.target(Message({"phi_bar": phi_bar}), client, lambda: own)
        assert found is not None
        assert torch.equal(found, expected)


@every_rule
def test_whoever_trusts_the_consensus_alone_does_not_ask_the_network(rule: Rule, client: Client) -> None:
    other = drawn(client, 1)
    for method in exchanging(rule, 1.0):
        found = method.target(Message({"phi_bar": output_of(other, rule)}), client, unasked)
        assert found is not None
        torch.testing.assert_close(found, other.probs)


@every_rule
def test_without_a_consensus_there_is_no_target(rule: Rule, client: Client) -> None:
    for method in (*exchanging(rule, 0.5), FedBNN()):
        assert method.target(Message(), client, unasked) is None


def test_a_heads_consensus_is_the_target_itself(client: Client) -> None:
    phi_bar = drawn(client, 0).logits
    found = FedBNN(gamma=0.3).target(Message({"phi_bar": phi_bar}), client, unasked)
    assert found is not None
    assert torch.equal(found, phi_bar.softmax(1))
