"""Every method's turn equals the one written in plain torch, and with one client federation is training alone.

Two results are compared by how far they are apart, as a share of how far training moved: Adam moves every weight by
about the learning rate, so a deviation that is small against the weights may still be another algorithm. References
that are wrong in one factor show that the comparison can tell.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Client
from fedbnn.methods import (
    APFL,
    FML,
    FOLA,
    IFCA,
    LRBPFL,
    METHODS,
    MOCHA,
    PVI,
    BetaPredBayes,
    Ditto,
    DPFedAvg,
    DPFedSGD,
    DPScaffold,
    FedAvg,
    FedBE,
    FedBN,
    FedBNN,
    FedBNNPaper,
    FedDF,
    FedDyn,
    FedHeNN,
    FedKD,
    FedMA,
    FedMD,
    FedOpt,
    FedPA,
    FedPD,
    FedPPD,
    FedProto,
    FedProx,
    FedRep,
    FedSplit,
    FlexiFed,
    Local,
    LocalBNN,
    Pate,
    PerFedAvg,
    PFedBayes,
    PFedGP,
    PFedMe,
    Scaffold,
)
from fedbnn.methods.fedbn import shared_places
from fedbnn.methods.mutual import MutualLearning
from fedbnn.methods.point import Point
from fedbnn.models.architectures import build
from fedbnn.privacy.sums import UNIT
from tests.federation_sample import small_sites
from tests.plain_torch import (
    TURNS,
    Noise,
    Outcome,
    PlainClient,
    Situation,
    Tensors,
    default_layout,
    feddf_server,
    shared_noise,
)

RNG = Stream((0, "plain"))
ROUND = 2
SAME, DIFFERENT = 1e-4, 2e-2  # of how far training moved
MODELS = ("mlp", "cnn2")

POINTS = (
    Local(learning_rate=3e-3),
    Local(learning_rate=3e-3, weight_decay=0.1),
    FedAvg(learning_rate=3e-3),
    FedDF(learning_rate=3e-3),
    FedProx(learning_rate=3e-3, mu=3.0),
    FOLA(learning_rate=3e-3, prior_weight=2.0),
    PFedMe(iterations=4, inner_steps=3),
    Scaffold(rate=0.03),
    FedOpt(learning_rate=3e-3),
    FedRep(learning_rate=3e-3, weight_decay=0.1, body_share=0.5),
    Ditto(learning_rate=3e-3, weight_decay=0.1, strength=2.0),
    PerFedAvg(learning_rate=3e-3, weight_decay=0.1, inner_rate=0.3),
    PerFedAvg(learning_rate=3e-3, inner_rate=0.3, curvature="first_order"),
    APFL(learning_rate=3e-3, weight_decay=0.1, alpha=0.6, alpha_rate=0.5),
    IFCA(learning_rate=3e-3, weight_decay=0.1, clusters=3),
    MOCHA(learning_rate=3e-3, weight_decay=0.1),
    FedBN(learning_rate=3e-3, weight_decay=0.1),
    FedSplit(rate=0.03, strength=3.0),
    FedPD(learning_rate=3e-3, eta=0.3),
    FedDyn(learning_rate=3e-3, alpha=3.0),
    FedPA(learning_rate=0.05, samples=2, shrinkage=5.0, burn_in=0.3),
    FedBE(learning_rate=3e-3),
    FedMA(learning_rate=3e-3, weight_decay=0.1),
    DPFedAvg(level="record", noise="seed", steps=3, clip=0.5, epsilon=50.0, private_rate=0.5),
    DPFedAvg(level="user", noise="seed", learning_rate=3e-3, clip=0.05),
    DPFedSGD(noise="seed", clip=0.5, epsilon=50.0, sampling_rate=0.6),
    DPScaffold(noise="seed", clip=0.5, epsilon=50.0, steps=3, rate=0.5),
    Pate(noise="seed", epsilon=50.0, points=9, teachers=3, learning_rate=3e-3, teacher_epochs=3, digest_steps=4),
    PFedGP(embedding=8, inner_steps=3, train_chains=5),
    FedProto(learning_rate=3e-3, embedding=6, strength=2.0),
    FML(learning_rate=3e-3, messenger="mlp", messenger_options={"hidden": [7]}, alpha=0.3, beta=0.6),
    FedKD(learning_rate=3e-3, messenger="mlp", messenger_options={"hidden": [7]}, strength=3.0),
    FedHeNN(learning_rate=3e-3, strength=3.0, points=20, align_batch=10),
    FlexiFed(learning_rate=3e-3, weight_decay=0.1),
    FedMD(learning_rate=3e-3, digest_steps=4, digest_batch=16),
    FedMD(learning_rate=3e-3, digest_steps=4, digest_batch=16, consensus="mean_logits"),
)
BAYESIAN = (
    LocalBNN(kl_weight=1.0, initial_rho=-3.0),
    FedBNNPaper(kl_weight=1.0, initial_rho=-3.0, prior_steps=4, prior_batch=16, mc_samples=3),
    FedBNNPaper(kl_weight=1.0, initial_rho=-3.0, prior_steps=4, mc_samples=3, consensus="sharpened"),
    FedBNN(kl_weight=1.0, initial_rho=-3.0, prior_steps=4, mc_samples=3, rehearsal=0.7, head_sd=2.0, network_every=1),
    FedBNN(kl_weight=1.0, initial_rho=-3.0, prior_steps=4, mc_samples=3, head=False, consensus="sharpened"),
    PFedBayes(iterations=4, inner_steps=3),
    PVI(kl_weight=1.0, initial_rho=-3.0, damping=0.5),
    FedPPD(temperature=1.0, rate=0.1, student_rate=0.2, weight_decay=0.1, jitter=0.1),
    FedPPD(temperature=1.0, rate=0.1, student_rate=0.2, share_teacher=False),
    LRBPFL(kl_weight=1.0, initial_rho=-2.0, rank=3),
    BetaPredBayes(temperature=1.0, rate=0.1, weight_decay=0.1, samples=4, burn_in=0.3),
)


def a_client(model: str) -> Client:
    """Twelve records in uneven minibatches, two passes; one of three clients."""
    client = small_sites(1, models=(model,), batch_size=5)[0].client
    return dataclasses.replace(client, training=dataclasses.replace(client.training, local_epochs=2), clients=3)


def situation(method: Method[Any, Any], client: Client) -> tuple[State, Message]:
    """A state and a message of the middle of a run: nothing in them is zero or equal to anything else."""
    normal = RNG.child("situation").torch()

    def near(vector: Tensor, by: float) -> Tensor:
        return vector + by * torch.randn(vector.shape, generator=normal)

    state = method.client_init(client)
    state = dataclasses.replace(state, **{name: near(value, 0.01) for name, value in state.tensors().items()})
    if isinstance(method, FedBNN | FedBNNPaper | FedMD):
        logits = 3 * torch.randn(len(client.alignment), client.classes, generator=normal)
        if isinstance(method, FedBNN) and method.head:
            state = dataclasses.replace(state, sent=near(logits, 1.0))
        return state, Message({"phi_bar": logits if method.consensus == "mean_logits" else logits.softmax(1)})
    if isinstance(method, Pate):
        logits = 3 * torch.randn(method.points, client.classes, generator=normal)
        return state, Message({"labels": logits.softmax(1)})
    if isinstance(method, Local | LocalBNN):
        return state, Message()
    if isinstance(method, PFedBayes):
        return state, Message({"weights": near(method.client_init(client).theta, 0.05)})
    if isinstance(method, FedProto):
        prototypes = torch.rand(client.classes, method.embedding, generator=normal)
        known = torch.arange(client.classes) != client.train.y[0]
        return state, Message({"prototypes": prototypes, "known": known.float()})
    if isinstance(method, FedHeNN):
        z = torch.randn(method.points, 7, generator=normal)
        return state, Message({"kernel": z @ z.T / 40})
    if isinstance(method, MutualLearning):
        client_roster = roster_of(small_sites(1, models=(client.model.name,)))
        return state, Message({"weights": near(method.initial(client_roster), 0.01)})
    if isinstance(method, FedPPD):
        client_roster = roster_of(small_sites(1, models=(client.model.name,)))
        return state, Message({"weights": near(method.initial(client_roster), 0.01)})
    if isinstance(method, PVI):
        mean, precision, taken = method.broadcast(
            method.server_init(roster_of(small_sites(1, models=(client.model.name,)))), 0
        ).arrays.values()
        parts = {
            name: torch.rand(mean.shape, generator=normal)
            for name in ("precision", "shift", "sent_precision", "sent_shift")
        }
        return dataclasses.replace(state, **parts), Message(
            {
                "mean": near(mean, 0.01),
                "precision": precision * (1 + torch.rand(mean.shape, generator=normal)),
                "taken": taken + 1,
            }
        )
    outputs = method.embedding if isinstance(method, PFedGP) else client.classes
    roster = roster_of(small_sites(1, models=(client.model.name,)))
    weights = near(roster.initial_weights(0, outputs), 0.01)
    if isinstance(method, FedRep):  # the body alone
        return state, Message({"weights": weights[: method.initial_size(roster)]})
    if isinstance(method, LRBPFL):  # the shared weights in its state are the server's, and have no spread
        (mean, rho), (_, known) = (one.tensors()["theta"].chunk(2) for one in (state, method.client_init(client)))
        size = len(weights)
        theta = torch.cat([weights, mean[size:], known[:size], rho[size:]])
        return dataclasses.replace(state, theta=theta), Message({"weights": weights})
    if isinstance(method, IFCA):  # of which the one in the middle fits best
        weights = torch.stack([near(weights, 0.3), weights, near(weights, 0.3)])
    if isinstance(method, FlexiFed):
        weights = weights[: len(weights) // 2]
    if isinstance(method, FOLA):
        return state, Message({"weights": weights, "precision": 50 * torch.rand(weights.shape, generator=normal)})
    if isinstance(method, FedSplit):
        return dataclasses.replace(state, z=near(weights, 0.01)), Message({"weights": weights})
    if isinstance(method, FedBN):
        weights = weights[shared_places(client.network)]
    if isinstance(method, MOCHA):
        return state, Message({"centre": weights, "strength": torch.tensor([2.0])})
    if isinstance(method, Scaffold):
        return state, Message({"weights": weights, "control": near(torch.zeros_like(weights), 0.01)})
    return state, Message({"weights": weights})


def ours(method: Method[Any, Any], client: Client, round_number: int = ROUND) -> Outcome:
    state, message = situation(method, client)
    update = method.client_update(state, client, message, round_number, RNG)
    sent = {name: array for name, array in update.message.arrays.items() if name not in ("records", "weight")}
    kept = {name: value for name, value in update.state.tensors().items() if name != "taken"}
    if isinstance(method, DPFedSGD):  # keeps what it was sent, and sends whole numbers
        assert torch.equal(kept.pop("weights"), message.arrays["weights"])
        sent = {"sum": sent["sum"].double() * UNIT}
    if isinstance(method, Pate):  # whole numbers
        kept["votes"], sent = kept["votes"].double() * UNIT, {"votes": sent["votes"].double() * UNIT}
    if isinstance(method, FedBNN) and method.head:  # with the head that follows from the message
        asked = method.with_head(update.state, client, message)
        assert asked.head is not None
        assert asked.behind is not None
        assert bool(asked.behind > 0) == ("phi_bar" in message.arrays)
        kept = {"theta": kept["theta"], "sent": kept["sent"], "head": asked.head}
    return Outcome(kept, sent)


def plainly(
    method: Method[Any, Any], client: Client, round_number: int = ROUND, noise: Noise = shared_noise
) -> Outcome:
    state, message = situation(method, client)
    plain = PlainClient.of(client, method.embedding if isinstance(method, PFedGP) else None)
    return TURNS[method.name](method, plain, Situation(state.tensors(), message.arrays, round_number, RNG, noise))


def began_at(method: Method[Any, Any], client: Client) -> dict[str, Tensor]:
    """Where the arrays of a turn's outcome were before it; zero for what is not a vector that training moves."""
    state, message = situation(method, client)
    begins = {**state.tensors(), **message.arrays}
    if isinstance(method, MutualLearning | FlexiFed):  # another network, or a part of it, is sent
        begins["state.weights"] = state.tensors()["weights"]
    if isinstance(method, DPFedAvg) and method.level == "user":
        begins["update"] = torch.zeros(())
    if isinstance(method, BetaPredBayes):
        begins["samples"] = message.arrays["weights"][None]
    if isinstance(method, FedPPD) and method.share_teacher:
        begins["teacher"] = message.arrays["weights"].chunk(2)[1]
    if isinstance(method, FedBN):
        begins["state.weights"] = method.merged(Point(state.tensors()["weights"]), client, message)
    if isinstance(method, IFCA):
        begins["weights"] = message.arrays["weights"][1]
        begins["cluster"] = torch.zeros(())
    if isinstance(method, FedRep):  # the body that came with the own head
        body = message.arrays["weights"]
        begins["weights"] = torch.cat([body, state.tensors()["weights"][len(body) :]])
    return begins


def deviations(method: Method[Any, Any], client: Client, one: Outcome, other: Outcome) -> dict[str, float]:
    """How far the two are apart, for every array (means and rho of a posterior apart), relative to how far it moved."""
    began, found = began_at(method, client), {}
    for kind, arrays, others in (("state", one.state, other.state), ("message", one.message, other.message)):
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            sent_update = kind == "message" and "update" in began
            start = torch.zeros(()) if sent_update else began.get(f"{kind}.{name}", began.get(name, torch.zeros(())))
            halves = 2 if name == "theta" or isinstance(method, PFedBayes) else 1
            start = (start[: len(array)] if start.dim() else start).expand(array.shape)
            for half, (a, b, s) in enumerate(
                zip(array.chunk(halves), others[name].chunk(halves), start.chunk(halves), strict=True)
            ):
                found[f"{kind}.{name}.{half}"] = float((a - b).norm() / (b - s).norm())
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [*POINTS, *BAYESIAN], ids=lambda m: m.name)
def test_a_clients_turn_is_what_plain_torch_makes_of_it(method: Method[Any, Any], model: str) -> None:
    client = a_client(model)
    for name, share in deviations(method, client, ours(method, client), plainly(method, client)).items():
        assert share < SAME, name


def test_fedbns_turn_with_layers_of_its_own_is_what_plain_torch_makes_of_it() -> None:
    method, client = POINT["fedbn"], a_client("transformer")
    found = deviations(method, client, ours(method, client), plainly(method, client))
    assert len(found) == 2
    assert max(found.values()) < SAME
    wrong = deviations(method, client, ours(method, client), plainly(other(method, weight_decay=0.3), client))
    assert max(wrong.values()) > DIFFERENT


def first_turn(method: Method[Any, Any]) -> dict[str, float]:
    client = a_client("mlp")
    return deviations(method, client, ours(method, client, 0), plainly(method, client, 0))


def test_folas_first_turn_is_what_plain_torch_makes_of_it() -> None:
    assert max(first_turn(FOLA(learning_rate=3e-3)).values()) < SAME


def test_the_warm_up_of_dp_scaffold_is_what_plain_torch_makes_of_it() -> None:
    """Weights do not move in it, so that only control variates can be compared by how far they moved."""
    client, method = a_client("mlp"), POINT["dp_scaffold"]
    one, other = ours(method, client, 0), plainly(method, client, 0)
    assert torch.equal(one.message["weights"], other.message["weights"])
    found = deviations(method, client, one, other)
    assert max(found["state.carried.0"], found["message.control.0"]) < SAME


def test_pfedbayes_starts_its_first_turn_at_the_servers_distribution() -> None:
    """At q = w. Autograd's own rounding moves rho where the true gradient is zero, so rho is compared more loosely,
    and w's, which has little else to move it, not at all: tests/bayes/test_fit.py and test_pfedbayes.py do that.
    """
    found = first_turn(PFedBayes(iterations=3, inner_steps=2))
    assert found["state.theta.0"] < 10 * SAME
    assert found["message.weights.0"] < 10 * SAME
    assert found["state.theta.1"] < 0.02


def test_every_method_has_a_reference_that_is_compared() -> None:
    assert TURNS.keys() == METHODS.keys() == {method.name for method in (*POINTS, *BAYESIAN)}


def hardly_any_noise(generator: torch.Generator, module: nn.Module) -> Iterator[Tensors]:
    """What a public implementation of pFedBayes draws: N(0, 0.001^2)."""
    for draw in shared_noise(generator, module):
        yield [0.001 * e for e in draw]


def other(method: Method[Any, Any], **changes: Any) -> Method[Any, Any]:
    return dataclasses.replace(method, **changes)  # type: ignore[type-var, no-any-return]


POINT = {method.name: method for method in reversed(POINTS)}
USER_LEVEL = next(method for method in POINTS if isinstance(method, DPFedAvg) and method.level == "user")
BAYES = {method.name: method for method in reversed(BAYESIAN)}


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (POINTS[1], {"weight_decay": 0.2}),
        (POINT["fedprox"], {"mu": 6.0}),
        (POINT["fedprox"], {"mu": 1.5}),
        (POINT["fola"], {"prior_weight": 0.0}),  # as if the prior did not see the live parameters
        (POINT["fola"], {"prior_weight": 4.0}),
        (POINT["pfedme"], {"strength": 30.0}),
        (POINT["pfedme"], {"personal_rate": 0.045}),
        (POINT["pfedme"], {"rate": 0.01}),
        (POINT["fedrep"], {"learning_rate": 2e-3}),
        (POINT["fedrep"], {"weight_decay": 0.2}),
        (POINT["perfedavg"], {"inner_rate": 0.2}),
        (POINT["perfedavg"], {"curvature": "first_order"}),
        (POINT["apfl"], {"alpha_rate": 2.0}),
        (POINT["apfl"], {"learning_rate": 2e-3}),
        (POINT["ifca"], {"learning_rate": 2e-3}),
        (POINT["mocha"], {"learning_rate": 2e-3}),
        (POINT["ditto"], {"strength": 1.0}),
        (POINT["ditto"], {"strength": 4.0}),
        (POINT["dp_fedavg"], {"clip": 1.0}),
        (POINT["dp_fedavg"], {"epsilon": 25.0}),
        (POINT["dp_fedsgd"], {"clip": 1.0}),
        (POINT["dp_fedsgd"], {"epsilon": 25.0}),
        (POINT["dp_scaffold"], {"clip": 1.0}),
        (POINT["dp_scaffold"], {"rate": 0.4}),
        (POINT["pate"], {"epsilon": 25.0}),
        (POINT["pate"], {"digest_steps": 3}),
        (POINT["scaffold"], {"rate": 0.033}),
        (POINT["feddyn"], {"alpha": 4.0}),
        (POINT["fedpd"], {"eta": 0.4}),
        (POINT["fedsplit"], {"strength": 4.0}),
        (USER_LEVEL, {"clip": 0.1}),
        (POINT["pfedgp"], {"lengthscale": 1.2}),
        (POINT["pfedgp"], {"outputscale": 4.0}),
        (POINT["pfedgp"], {"momentum": 0.0}),
        (POINT["fml"], {"alpha": 0.4}),
        (POINT["fml"], {"beta": 0.5}),
        (POINT["fedkd"], {"strength": 4.0}),
        (POINT["fedhenn"], {"strength": 4.0}),
        (POINT["flexifed"], {"weight_decay": 0.2}),
        (POINT["fedproto"], {"strength": 1.0}),
        (POINT["fedmd"], {"gamma": 0.6}),
        (BAYES["local_bnn"], {"kl_weight": 2.0}),
        (BAYES["local_bnn"], {"prior_sd": 0.6}),
        (BAYES["fedbnn_paper"], {"gamma": 0.3}),
        (BAYES["fedbnn_paper"], {"prior_sd_floor": 0.2}),
        (BAYES["fedbnn_paper"], {"kl_weight": 2.0}),
        (BAYES["fedbnn"], {"rehearsal": 1.4}),
        (BAYES["fedbnn"], {"head_sd": 4.0}),
        (BAYES["fedbnn"], {"trust": 0.5}),
        (BAYES["pfedbayes"], {"zeta": 20.0}),
        (BAYES["pfedbayes"], {"inner_steps": 2}),
        (BAYES["lr_bpfl"], {"kl_weight": 2.0}),
        (BAYES["lr_bpfl"], {"prior_sd": 1.0}),
        (BAYES["beta_predbayes"], {"burn_in": 0.7}),
        (BAYES["beta_predbayes"], {"temperature": 0.25}),
        (BAYES["fedppd"], {"temperature": 0.25}),
        (BAYES["fedppd"], {"jitter": 0.2}),
        (BAYES["fedppd"], {"weight_decay": 0.2}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else str(value),
)
def test_a_wrong_factor_is_noticed(method: Method[Any, Any], wrong: Mapping[str, Any]) -> None:
    client = a_client("mlp")
    found = deviations(method, client, ours(method, client), plainly(other(method, **wrong), client))
    assert max(found.values()) > DIFFERENT


@pytest.mark.parametrize("method", BAYESIAN, ids=lambda m: m.name)
def test_hardly_any_noise_is_noticed(method: Method[Any, Any]) -> None:
    client = a_client("mlp")
    found = deviations(method, client, ours(method, client), plainly(method, client, noise=hardly_any_noise))
    assert max(found.values()) > DIFFERENT


def distilled(method: FedDF, wrong: FedDF | None = None) -> dict[str, float]:
    """How far FedDF's students are from plain torch's, with three clients of two architectures."""
    sites = small_sites(3, models=MODELS)
    roster = roster_of(sites)
    normal = RNG.child("replies").torch()
    replies = {}
    for i in range(3):
        weights = roster.initial_weights(i)
        weights = weights + 0.05 * torch.randn(weights.shape, generator=normal)
        replies[i] = Message({"weights": weights, "records": torch.tensor([float(10 + 7 * i)])})
    students = method.server_update(method.server_init(roster), replies, roster, RNG)
    shape = tuple(roster.alignment.shape[1:])
    modules = {model.architecture: build(model, shape, roster.classes) for model in roster.models}
    plain = feddf_server(
        wrong or method,
        modules,
        roster.models,
        {i: reply.arrays for i, reply in replies.items()},
        default_layout(roster.alignment),
        RNG,
    )
    begun = FedDF(distill_steps=0).server_update(method.server_init(roster), replies, roster, RNG)
    found = {}
    for i, model in enumerate(roster.models):
        mine, reference = students.of(i), plain[model.architecture]
        found[model.architecture] = float((mine - reference).norm() / (reference - begun.of(i)).norm())
    return found


def test_feddfs_distillation_is_what_plain_torch_makes_of_it() -> None:
    method = FedDF(distill_steps=6, distill_batch=16)
    found = distilled(method)
    assert found.keys() == set(MODELS)
    assert max(found.values()) < SAME
    assert min(distilled(method, FedDF(distill_steps=6, distill_batch=8)).values()) > DIFFERENT


ROUNDS = 3


def lone_client() -> list[Site]:
    """Several minibatches a round: the first step starts where the server is, and any pull is still zero."""
    return small_sites(1, models=("mlp",), batch_size=5)


def federated(method: Method[Any, Any]) -> State:
    """The server's state after the warm-up and three rounds with a single client."""
    federation = Federation(method, lone_client())
    for _ in range(ROUNDS + 1):
        federation.step(evaluate=False)
    return federation.server


def alone(method: Method[Any, Any], heard: Mapping[str, str], first: Message) -> tuple[State, Message]:
    """The same turns without any server: the client hears what it said itself, `heard` under which names."""
    client = lone_client()[0].client
    state, message = method.client_init(client), first
    for number in range(ROUNDS + 1):
        rng = Stream((0, "update", number, 0))
        with repeatable(rng):
            update = method.client_update(state, client, message, number, rng)
        state, message = update.state, Message({name: update.message.arrays[said] for name, said in heard.items()})
    return state, message


@pytest.mark.parametrize(
    "method",
    [FedAvg(learning_rate=1e-3), FedProx(learning_rate=1e-3, mu=0.0), FedDF(learning_rate=1e-3)],
    ids=lambda m: m.name,
)
def test_with_one_client_federation_is_local_training_bit_for_bit(method: Method[Any, Any]) -> None:
    trained, _ = alone(Local(learning_rate=1e-3), {}, Message())
    assert torch.equal(federated(method).tensors()["weights"], trained.tensors()["weights"])


def test_with_one_client_and_without_a_prior_fola_is_local_training() -> None:
    """Up to rounding: the server multiplies by the precision and divides by it."""
    trained, _ = alone(Local(learning_rate=1e-3), {}, Message())
    weights, start = trained.tensors()["weights"], lone_client()[0].client.initial_weights()
    found = federated(FOLA(learning_rate=1e-3, prior_weight=0.0)).tensors()["weights"]
    assert float((found - weights).norm() / (weights - start).norm()) < SAME
    with_prior = federated(FOLA(learning_rate=1e-3, prior_weight=1e4)).tensors()["weights"]
    assert float((with_prior - weights).norm() / (weights - start).norm()) > DIFFERENT


@pytest.mark.parametrize(
    "method",
    [
        PFedMe(iterations=4),
        PFedBayes(iterations=4),
        PFedGP(embedding=8, train_chains=3),
        DPFedAvg(noise="seed"),
    ],
    ids=lambda m: m.name,
)
def test_with_one_client_the_server_hands_back_what_it_was_sent(method: Method[Any, Any]) -> None:
    first = method.broadcast(method.server_init(roster_of(lone_client())), 0)
    _, said = alone(method, {"weights": "weights"}, first)
    assert torch.equal(federated(method).tensors()["weights"], said.arrays["weights"])


@pytest.mark.parametrize(
    "method",
    [
        FedBNN(prior_steps=3, mc_samples=2, network_every=1),
        FedBNNPaper(prior_steps=3, mc_samples=2),
        FedMD(digest_steps=3, consensus="mean_logits"),
    ],
    ids=lambda m: m.name,
)
def test_with_one_client_the_consensus_is_its_own_output(method: Method[Any, Any]) -> None:
    _, said = alone(method, {"phi_bar": "phi"}, Message())
    assert torch.equal(federated(method).tensors()["phi_bar"], said.arrays["phi_bar"])
