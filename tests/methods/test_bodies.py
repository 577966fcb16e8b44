"""Federations whose clients stand on bodies of their own."""

import dataclasses

import pytest
import torch

from fedbnn import (
    DataSettings,
    FedAvg,
    FedBNN,
    FedDF,
    Federation,
    FedMD,
    InProcess,
    ModelSettings,
    PartitionSettings,
    PrivacySettings,
    TrainingSettings,
    UserError,
    federate,
    load_dataset,
    make_sites,
)
from fedbnn.federation.loop import roster_of
from fedbnn.methods.head import Head

HERE = "tests.features.bodies.own_bodies"
WIDE = ModelSettings("mlp", options={"hidden": []}, body=f"{HERE}:wide", components=20)
POOLED = ModelSettings("mlp", options={"hidden": []}, body=f"{HERE}:pooled", body_options={"size": 2})
OWN = ModelSettings("cnn2", options={"channels": [2, 4], "hidden": 4})
TRAINING = TrainingSettings(local_epochs=1, warmup_epochs=2, batch_size=8, augment="flip")
FAST = FedBNN(prior_steps=2, mc_samples=2)


def deal(**settings):
    data = DataSettings(alignment=60, **settings)
    partition = PartitionSettings(clients=4, classes_per_client=3, records_per_class=6)
    return federate(load_dataset(data), data, partition, 0)


@pytest.fixture(scope="module")
def dealt():
    return deal()


@pytest.fixture(scope="module")
def mixed(dealt):
    return make_sites(dealt, [WIDE, POOLED, OWN], TRAINING, rounds=2, foreign=dealt.dataset.x_test[:5])


def scores(sites, engine, rounds=2):
    federation = Federation(FAST, sites, engine=engine)
    federation.run(rounds)
    found = federation.evaluate(foreign=True)
    return {client: {name: one.scores for name, one in variants.items()} for client, variants in found.items()}


def test_every_client_sees_its_own_features(mixed, dealt):
    shapes = [tuple(site.client.train.x.shape[1:]) for site in mixed]
    assert shapes == [(20,), (8,), (1, 8, 8), (20,)]  # half of the pooled pixels are the others, mirrored
    for site, shape in zip(mixed, shapes, strict=True):
        assert tuple(site.client.alignment.shape) == (60, *shape)
        assert tuple(site.evaluation.x.shape[1:]) == tuple(site.foreign.shape[1:]) == shape
        assert site.client.training.augment == ("none" if site.client.model.body else "flip")
    view = dealt.on_body(WIDE, mirrored=True)
    assert torch.equal(mixed[0].client.train.x, torch.from_numpy(view.client_arrays(0)[0]))
    assert mixed[0].client.alignment is mixed[3].client.alignment


def test_a_client_without_a_body_is_as_ever(mixed, dealt):
    usual = make_sites(dealt, [OWN], TRAINING, rounds=2)[2]
    assert torch.equal(usual.client.train.x, mixed[2].client.train.x)
    assert torch.equal(usual.client.alignment, mixed[2].client.alignment)
    head = Head.of(usual.client, 3.5, 0.2)
    assert torch.equal(head.features.alignment, Head.of(mixed[2].client, 3.5, 0.2).features.alignment)


def test_heads_have_a_kernel_on_their_own_bodys_features(mixed):
    heads = [Head.of(site.client, 3.5, 0.2) for site in mixed]
    assert heads[0].features.digest == heads[3].features.digest != heads[1].features.digest
    torch.testing.assert_close(heads[0].standard.alignment, mixed[0].client.alignment.double(), rtol=1e-4, atol=1e-5)


def test_unlike_bodies_learn_from_each_other_and_workers_give_the_same_bits(mixed, two_workers):
    alone, pool = scores(mixed, InProcess()), scores(mixed, two_workers)
    assert alone == pool
    general = [found["general"]["all_class_accuracy"] for found in alone.values()]
    on_bodies = [general[client] for client in (0, 1, 3)]
    assert min(on_bodies) > 0.5  # three of ten classes are 0.3 at the most


def test_methods_that_share_weights_refuse_unlike_bodies(dealt):
    roster = roster_of(make_sites(dealt, [WIDE, POOLED]))
    with pytest.raises(UserError, match="'fedavg' averages weights"):
        FedAvg().server_init(roster)
    with pytest.raises(UserError, match="'feddf' distils at the server, where networks must see the same inputs"):
        FedDF().server_init(roster)
    FedAvg().server_init(roster_of(make_sites(dealt, [WIDE])))


def test_what_promises_privacy_refuses_bodies(mixed):
    private = dataclasses.replace(mixed[0].client, privacy=PrivacySettings(mechanism="dp_teacher"))
    for method in (FedBNN(), FedMD()):
        with pytest.raises(UserError, match=f"'{method.name}' promises privacy.*body '{HERE}:wide'"):
            method.check_client(private)


def test_features_of_features_are_refused():
    with pytest.raises(UserError, match="stands on body"):
        make_sites(deal(inputs="features"), [WIDE])
