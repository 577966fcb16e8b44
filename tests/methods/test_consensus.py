import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.methods.consensus import Rule, join, output_of, target_of
from fedbnn.models.bayes import Prediction
from fedbnn.privacy import onto_simplex

RULES: tuple[Rule, ...] = ("mean_logits", "mean_probabilities", "sharpened", "corrected", "by_class", "projected")
PRIVATE: tuple[Rule, ...] = ("by_class", "projected")


def outputs(clients: int, points: int, classes: int, seed: int, rule: Rule) -> torch.Tensor:
    logits = torch.randn(clients, points, classes, generator=torch.Generator().manual_seed(seed)).double()
    return logits if rule == "mean_logits" else logits.softmax(2)


@given(st.sampled_from(RULES), st.integers(1, 6), st.integers(0, 1000))
def test_order_of_clients_does_not_matter(rule: Rule, clients: int, seed: int) -> None:
    phi = outputs(clients, 7, 4, seed, rule)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    one = join(phi, rule, 2.0)
    torch.testing.assert_close(one, join(phi[order], rule, 2.0))
    if rule != "mean_logits":
        torch.testing.assert_close(one.double().sum(1), torch.ones(7).double(), rtol=0, atol=1e-6)


@given(st.sampled_from(["mean_logits", "mean_probabilities"]), st.integers(0, 1000))
def test_one_client_is_its_own_consensus(rule: Rule, seed: int) -> None:
    phi = outputs(1, 5, 3, seed, rule)
    torch.testing.assert_close(join(phi, rule, 2.0), phi[0])


def test_correction_finds_the_class_that_only_one_client_of_ten_knows() -> None:
    """Nine clients know classes 0 and 1 and call class 2 one of them; one client knows 2. The mean is outvoted."""
    points = torch.eye(3).repeat(10, 1).double()  # balanced: ten points of each class
    ignorant = points.clone()
    ignorant[points[:, 2] == 1] = torch.tensor([0.5, 0.49, 0.01]).double()
    expert = points * 0.9 + 0.1 / 3
    phi = torch.stack([ignorant * 0.98 + 0.02 / 3] * 9 + [expert])
    truth = points.argmax(1)
    plain = join(phi, "mean_probabilities", 1.0).argmax(1)
    corrected = join(phi, "corrected", 2.0).argmax(1)
    assert (plain == truth).double().mean() == pytest.approx(2 / 3)
    assert (corrected == truth).all()


def test_correction_shifts_towards_rare_classes_when_the_alignment_set_is_unbalanced() -> None:
    """The stated assumption, made visible: on 9 : 1 points an unsure prediction is moved to the rare class."""
    sure = torch.tensor([[0.9, 0.1]] * 9 + [[0.1, 0.9]]).double()
    unsure = torch.tensor([[0.6, 0.4]]).double()
    phi = torch.cat([sure, unsure])[None]
    assert join(phi, "mean_probabilities", 1.0)[-1].argmax() == 0
    assert join(phi, "corrected", 1.0)[-1].argmax() == 1


@pytest.mark.parametrize("rule", ["sharpened", "corrected"])
def test_sharpening_keeps_the_order_and_raises_the_top(rule: Rule) -> None:
    phi = outputs(4, 50, 5, 1, rule)
    blunt, sharp = (join(phi, rule, power) for power in (1.0, 2.0))
    assert torch.equal(blunt.argsort(1), sharp.argsort(1))
    assert (sharp.max(1).values >= blunt.max(1).values).all()


@pytest.mark.parametrize("rule", RULES)
def test_gamma_zero_leaves_the_clients_own_output_and_one_takes_the_consensus(rule: Rule) -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    own = Prediction(logits.softmax(1), logits, torch.zeros(6), logits.softmax(1)[None])
    consensus = outputs(1, 6, 3, 5, rule)[0].float()
    mine = output_of(own, rule)
    torch.testing.assert_close(target_of(consensus, mine, 0.0, rule), own.probs)
    as_probs = consensus.softmax(1) if rule == "mean_logits" else consensus
    torch.testing.assert_close(target_of(consensus, mine, 1.0, rule), as_probs)


def test_a_power_of_one_leaves_the_mean_probabilities() -> None:
    phi = outputs(3, 20, 4, 2, "sharpened")
    expected = join(phi, "mean_probabilities", 1.0)
    torch.testing.assert_close(join(phi, "sharpened", 1.0), expected)


def test_sharpening_undoes_the_dilution_by_clients_that_cannot_know() -> None:
    """Half the clients know the class and say so with 0.9; the others spread their guesses: 0.45, then over 0.8."""
    knows, guesses = torch.tensor([0.9, 0.05, 0.03, 0.02]).double(), torch.tensor([0.0, 0.34, 0.33, 0.33]).double()
    phi = torch.stack([knows, guesses])[:, None]
    plain = join(phi, "mean_probabilities", 1.0)[0, 0]
    sharp = join(phi, "sharpened", 3.0)[0, 0]
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
    found = join(phi, "by_class", 3.0)
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
    plain, found = (join(phi, rule, 3.0).argmax(1) for rule in ("mean_probabilities", "by_class"))
    assert (plain == truth).double().mean() == pytest.approx(2 / 3)
    assert (found == truth).all()


@given(st.integers(1, 5), st.integers(0, 1000))
def test_by_class_of_equal_clients_is_the_corrected_one_and_of_balanced_ones_the_sharpened(n: int, seed: int) -> None:
    """v = 1 / (N b): who believes in a class twice as much overall counts half on it, as under `corrected`."""
    phi = outputs(1, 8, 4, seed, "by_class").repeat(n, 1, 1)
    torch.testing.assert_close(join(phi, "by_class", 2.0), join(phi, "corrected", 2.0))
    balanced = torch.cat([phi.roll(turn, 2) for turn in range(4)], 1)
    torch.testing.assert_close(join(balanced, "by_class", 2.0), join(balanced, "sharpened", 2.0))


@given(st.sampled_from(PRIVATE), st.integers(2, 5), st.integers(0, 1000))
def test_neither_names_of_classes_nor_order_of_points_matter(rule: Rule, clients: int, seed: int) -> None:
    phi = outputs(clients, 6, 4, seed, rule)
    classes = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    points = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    found = join(phi, rule, 3.0)
    torch.testing.assert_close(join(phi[:, points][:, :, classes], rule, 3.0), found[points][:, classes])


def test_a_class_that_nobody_names_does_no_harm() -> None:
    phi = torch.tensor([[[0.7, 0.3, 0.0], [0.3, 0.7, 0.0]]]).double()
    found = join(phi, "by_class", 1.0)
    torch.testing.assert_close(found, phi[0])


@given(st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 1000))
def test_projected_is_the_mean_put_on_the_simplex(clients: int, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    phi = outputs(clients, 7, 4, seed, "projected")
    phi = phi + noise * torch.randn(phi.shape, generator=generator).double()
    found = join(phi, "projected", 3.0)
    assert found.dtype == torch.float32
    assert (found >= 0).all()
    torch.testing.assert_close(found.double(), onto_simplex(phi.mean(0)), rtol=0, atol=1e-6)


def test_projected_keeps_a_mean_that_is_on_the_simplex_already() -> None:
    phi = outputs(3, 20, 4, 2, "projected")
    torch.testing.assert_close(join(phi, "projected", 3.0).double(), phi.mean(0), rtol=0, atol=1e-7)


@given(
    st.sampled_from(RULES),
    st.sampled_from([1.0, 2.0, 3.5]),
    st.lists(st.floats(-1e9, 1e9, width=32), min_size=15, max_size=15),
)
def test_one_client_that_lies_leaves_numbers(rule: Rule, power: float, lies: list[float]) -> None:
    """The power of a negative number is none, and a sum of nothing divides nothing."""
    honest = outputs(2, 5, 3, 0, rule).float()
    lie = torch.tensor(lies).view(1, 5, 3)
    for phi in (torch.cat([honest, lie]), torch.cat([honest, -honest.sum(0, keepdim=True)]), lie, torch.zeros(1, 5, 3)):
        assert bool(join(phi, rule, power).isfinite().all())
