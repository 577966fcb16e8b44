import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.methods.consensus import Rule, class_weights, join, output_of, target_of
from fedbnn.models.bayes import Prediction
from fedbnn.privacy import onto_simplex

RULES: tuple[Rule, ...] = ("mean_logits", "mean_probabilities", "sharpened", "corrected", "by_class", "projected")
PRIVATE: tuple[Rule, ...] = ("by_class", "projected")


def outputs(clients: int, points: int, classes: int, seed: int, rule: Rule) -> torch.Tensor:
    logits = torch.randn(clients, points, classes, generator=torch.Generator().manual_seed(seed)).double()
    return logits if rule == "mean_logits" else logits.softmax(2)


@given(st.sampled_from(RULES), st.integers(1, 6), st.integers(0, 1000), st.floats(0.5, 5))
def test_order_of_clients_and_scale_of_weights_do_not_matter(rule: Rule, clients: int, seed: int, scale: float) -> None:
    phi = outputs(clients, 7, 4, seed, rule)
    weights = torch.rand(clients, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    one = join(phi, weights, rule, 2.0)
    torch.testing.assert_close(one, join(phi[order], weights[order] * scale, rule, 2.0))
    if rule != "mean_logits":
        torch.testing.assert_close(one.double().sum(1), torch.ones(7).double(), rtol=0, atol=1e-6)


@given(st.sampled_from(["mean_logits", "mean_probabilities"]), st.integers(0, 1000))
def test_one_client_is_its_own_consensus(rule: Rule, seed: int) -> None:
    phi = outputs(1, 5, 3, seed, rule)
    torch.testing.assert_close(join(phi, torch.ones(1).double(), rule, 2.0), phi[0])


def test_weights_are_proportional() -> None:
    phi = outputs(2, 5, 3, 0, "mean_logits")
    expected = 0.75 * phi[0] + 0.25 * phi[1]
    torch.testing.assert_close(join(phi, torch.tensor([3.0, 1.0]).double(), "mean_logits", 2.0), expected)


def test_correction_finds_the_class_that_only_one_client_of_ten_knows() -> None:
    """Nine clients know classes 0 and 1 and call class 2 one of them; one client knows 2. The mean is outvoted."""
    points = torch.eye(3).repeat(10, 1).double()  # balanced: ten points of each class
    ignorant = points.clone()
    ignorant[points[:, 2] == 1] = torch.tensor([0.5, 0.49, 0.01]).double()
    expert = points * 0.9 + 0.1 / 3
    phi = torch.stack([ignorant * 0.98 + 0.02 / 3] * 9 + [expert])
    truth = points.argmax(1)
    plain = join(phi, torch.ones(10).double(), "mean_probabilities", 1.0).argmax(1)
    corrected = join(phi, torch.ones(10).double(), "corrected", 2.0).argmax(1)
    assert (plain == truth).double().mean() == pytest.approx(2 / 3)
    assert (corrected == truth).all()


def test_correction_shifts_towards_rare_classes_when_the_alignment_set_is_unbalanced() -> None:
    """The stated assumption, made visible: on 9 : 1 points an unsure prediction is moved to the rare class."""
    sure = torch.tensor([[0.9, 0.1]] * 9 + [[0.1, 0.9]]).double()
    unsure = torch.tensor([[0.6, 0.4]]).double()
    phi = torch.cat([sure, unsure])[None]
    assert join(phi, torch.ones(1).double(), "mean_probabilities", 1.0)[-1].argmax() == 0
    assert join(phi, torch.ones(1).double(), "corrected", 1.0)[-1].argmax() == 1


@pytest.mark.parametrize("rule", ["sharpened", "corrected"])
def test_sharpening_keeps_the_order_and_raises_the_top(rule: Rule) -> None:
    phi = outputs(4, 50, 5, 1, rule)
    blunt, sharp = (join(phi, torch.ones(4).double(), rule, power) for power in (1.0, 2.0))
    assert torch.equal(blunt.argsort(1), sharp.argsort(1))
    assert (sharp.max(1).values >= blunt.max(1).values).all()


@pytest.mark.parametrize("rule", RULES)
def test_gamma_zero_leaves_the_clients_own_output_and_one_takes_the_consensus(rule: Rule) -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    own = Prediction(logits.softmax(1), logits, torch.zeros(6))
    consensus = outputs(1, 6, 3, 5, rule)[0].float()
    mine = output_of(own, rule)
    torch.testing.assert_close(target_of(consensus, mine, 0.0, rule), own.probs)
    as_probs = consensus.softmax(1) if rule == "mean_logits" else consensus
    torch.testing.assert_close(target_of(consensus, mine, 1.0, rule), as_probs)


def test_a_power_of_one_leaves_the_mean_probabilities() -> None:
    phi, weights = outputs(3, 20, 4, 2, "sharpened"), torch.ones(3).double()
    expected = join(phi, weights, "mean_probabilities", 1.0)
    torch.testing.assert_close(join(phi, weights, "sharpened", 1.0), expected)


def test_sharpening_undoes_the_dilution_by_clients_that_cannot_know() -> None:
    """Half the clients know the class and say so with 0.9; the others spread their guesses: 0.45, then over 0.8."""
    knows, guesses = torch.tensor([0.9, 0.05, 0.03, 0.02]).double(), torch.tensor([0.0, 0.34, 0.33, 0.33]).double()
    phi = torch.stack([knows, guesses])[:, None]
    plain = join(phi, torch.ones(2).double(), "mean_probabilities", 1.0)[0, 0]
    sharp = join(phi, torch.ones(2).double(), "sharpened", 3.0)[0, 0]
    assert plain.item() == pytest.approx(0.45)
    assert sharp.item() > 0.8


def experts() -> tuple[torch.Tensor, torch.Tensor]:
    """Two clients on a balanced set of four classes: each is sure of its own two, and guesses one of them elsewhere."""
    truth = torch.arange(4).repeat(5)
    guess = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]).double()
    sure = torch.eye(4).double()[truth]
    phi = torch.stack([torch.where((truth // 2 == own).unsqueeze(1), sure, guess[own]) for own in range(2)])
    return phi, truth


def test_by_class_recovers_the_label_from_clients_that_know_different_classes() -> None:
    """Each class is believed by one client, b = 1/4 + 1/4, so v = 2: scores 2, 0, 1, 1, to the third power of 4."""
    phi, truth = experts()
    found = join(phi, torch.ones(2).double(), "by_class", 3.0)
    expected = torch.full((20, 4), 0.1).double()
    expected[torch.arange(20), truth] = 0.8
    expected[torch.arange(20), truth ^ 1] = 0.0
    torch.testing.assert_close(found, expected)


def test_by_class_listens_to_the_only_client_that_knows_a_class() -> None:
    """Nine of ten clients never name class 2: the mean is outvoted, by_class is not."""
    truth = torch.arange(3).repeat(10)
    expert = torch.eye(3).double()[truth] * 0.9 + 0.1 / 3
    ignorant = expert.clone()
    ignorant[truth == 2] = torch.tensor([0.5, 0.49, 0.01]).double()
    phi = torch.stack([ignorant] * 9 + [expert])
    weights = torch.ones(10).double()
    plain, found = (join(phi, weights, rule, 3.0).argmax(1) for rule in ("mean_probabilities", "by_class"))
    assert (plain == truth).double().mean() == pytest.approx(2 / 3)
    assert (found == truth).all()


@given(st.integers(1, 5), st.integers(0, 1000))
def test_by_class_of_equal_clients_is_the_corrected_one_and_of_balanced_ones_the_sharpened(n: int, seed: int) -> None:
    """v = 1 / (N b): who believes in a class twice as much overall counts half on it, as under `corrected`."""
    phi = outputs(1, 8, 4, seed, "by_class").repeat(n, 1, 1)
    weights = torch.ones(n).double()
    torch.testing.assert_close(join(phi, weights, "by_class", 2.0), join(phi, weights, "corrected", 2.0))
    balanced = torch.cat([phi.roll(turn, 2) for turn in range(4)], 1)
    torch.testing.assert_close(join(balanced, weights, "by_class", 2.0), join(balanced, weights, "sharpened", 2.0))


@given(st.sampled_from(PRIVATE), st.integers(2, 5), st.integers(0, 1000))
def test_neither_names_of_classes_nor_order_of_points_matter(rule: Rule, clients: int, seed: int) -> None:
    phi = outputs(clients, 6, 4, seed, rule)
    weights = torch.rand(clients, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    classes = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    points = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    found = join(phi, weights, rule, 3.0)
    torch.testing.assert_close(join(phi[:, points][:, :, classes], weights, rule, 3.0), found[points][:, classes])


def test_by_class_weights_are_proportional() -> None:
    """A client that counts twice is two clients, in the scores; their normalisation by b does not see weights."""
    phi = torch.stack([torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.6, 0.4], [0.4, 0.6]])]).double()
    found = join(phi, torch.tensor([3.0, 1.0]).double(), "by_class", 1.0)  # all b are 1/2
    torch.testing.assert_close(found, 0.75 * phi[0] + 0.25 * phi[1])


def test_a_class_that_nobody_names_does_no_harm() -> None:
    phi = torch.tensor([[[0.7, 0.3, 0.0], [0.3, 0.7, 0.0]]]).double()
    found = join(phi, torch.ones(1).double(), "by_class", 1.0)
    torch.testing.assert_close(found, phi[0])


@given(st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 1000))
def test_projected_is_the_mean_put_on_the_simplex(clients: int, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    phi = outputs(clients, 7, 4, seed, "projected")
    phi = phi + noise * torch.randn(phi.shape, generator=generator).double()
    weights = torch.rand(clients, generator=generator).double() + 0.1
    mean = (weights.view(-1, 1, 1) * phi).sum(0) / weights.sum()
    found = join(phi, weights, "projected", 3.0)
    assert found.dtype == torch.float32
    assert (found >= 0).all()
    torch.testing.assert_close(found.double(), onto_simplex(mean), rtol=0, atol=1e-6)


def test_projected_keeps_a_mean_that_is_on_the_simplex_already() -> None:
    phi, weights = outputs(3, 20, 4, 2, "projected"), torch.ones(3).double()
    torch.testing.assert_close(join(phi, weights, "projected", 3.0).double(), phi.mean(0), rtol=0, atol=1e-7)


counts = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any)


def labels_of(held: list[int]) -> torch.Tensor:
    return torch.arange(len(held)).repeat_interleave(torch.tensor(held))


@given(counts, st.floats(0, 1))
def test_class_weights_are_one_on_average_and_grow_with_the_share(held: list[int], focus: float) -> None:
    found = class_weights(labels_of(held), len(held), focus).double()
    assert found.mean().item() == pytest.approx(1, abs=1e-6)
    for c, count in enumerate(held):
        assert found[c].item() == pytest.approx(1 - focus + focus * len(held) * count / sum(held), abs=1e-5)


@given(counts)
def test_class_weights_at_the_ends(held: list[int]) -> None:
    labels, classes = labels_of(held), len(held)
    assert class_weights(labels, classes, 0.0).eq(1).all()
    assert torch.equal(class_weights(labels, classes, 1.0) == 0, torch.tensor(held) == 0)
    equal = torch.arange(classes).repeat(3)
    torch.testing.assert_close(class_weights(equal, classes, 1.0), torch.ones(classes))


def world(classes: int, points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p(x | c), a row a class; p(x) where every class is equally often; p(c | x), a row a point."""
    given_class = torch.rand(classes, points, generator=torch.Generator().manual_seed(seed)).double() ** 3 + 1e-3
    given_class /= given_class.sum(1, keepdim=True)
    of_point = given_class.mean(0)
    return given_class, of_point, (given_class / classes / of_point).T


@given(counts, st.integers(1, 8), st.integers(0, 1000), st.floats(0, 1))
def test_the_turned_target_stands_for_the_clients_own_distribution(
    held: list[int], points: int, seed: int, focus: float
) -> None:
    """By enumeration: the loss over AD towards v * p is that over what the client itself draws, class by class."""
    classes = len(held)
    given_class, of_point, of_class = world(classes, points, seed)
    share = torch.tensor(held).double() / sum(held)
    joint = share.unsqueeze(1) * given_class  # the client draws a class, and a point of it
    own_point, own_class = joint.sum(0), (joint / joint.sum(0)).T
    torch.testing.assert_close(own_point, of_point * (of_class * classes * share).sum(1))  # as the docstring has it

    turned = of_class * class_weights(labels_of(held), classes, focus).double()
    model = torch.randn(points, classes, generator=torch.Generator().manual_seed(seed + 1)).double().log_softmax(1)
    found, over_ad, over_own = (
        -(weight * (target * model).sum(1)).sum()
        for weight, target in ((of_point, turned), (of_point, of_class), (own_point, own_class))
    )
    torch.testing.assert_close(found, (1 - focus) * over_ad + focus * over_own, rtol=1e-5, atol=1e-6)


@given(counts, st.integers(1, 8), st.integers(0, 1000))
def test_the_best_answer_to_a_fully_turned_target_is_the_clients_posterior(
    held: list[int], points: int, seed: int
) -> None:
    given_class, _, of_class = world(len(held), points, seed)
    turned = of_class * class_weights(labels_of(held), len(held), 1.0).double()
    joint = torch.tensor(held).double().unsqueeze(1) * given_class
    best = turned / turned.sum(1, keepdim=True)  # what minimises cross-entropy towards rows that are not normalised
    torch.testing.assert_close(best, (joint / joint.sum(0)).T, rtol=1e-5, atol=1e-6)
