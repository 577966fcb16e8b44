"""The commands of `fedbnn privacy`, against closed forms, real ledgers and simulated noise; the numbers in docs/."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.optimize import brentq
from scipy.stats import norm

from fedbnn.audit import configuration as auditing
from fedbnn.audit.configuration import AuditResult, Standing
from fedbnn.cli import terminal
from fedbnn.cli.app import main
from fedbnn.deployment.facts import facts_leave
from fedbnn.privacy import simplex_sensitivity
from fedbnn.privacy.accountant import gaussian_mu
from fedbnn.privacy.forecast import Sizes, forecast, milestones
from fedbnn.privacy.head import Shape, contributions
from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit
from fedbnn.runs.config import load_config

DOCS = Path(__file__).resolve().parents[2] / "docs" / "what-is-protected.md"


def delta_of(epsilon, mu):
    """The Gaussian mechanism's delta, without the accountant; in logarithms, as e^epsilon may be huge."""
    first, second = norm.logcdf(-epsilon / mu + mu / 2), epsilon + norm.logcdf(-epsilon / mu - mu / 2)
    return -math.exp(first) * math.expm1(second - first)


def epsilon_of(mu, delta=1e-5):
    return brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 1e-6, 10_000)


def mu_of(epsilon, delta=1e-5):
    return brentq(lambda mu: delta_of(epsilon, mu) - delta, 1e-3, 50)


@pytest.fixture
def call(capsys):
    """Run the command line: exit code, standard output, standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["privacy", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def told(call):
    """What a successful command says as JSON."""

    def told(*arguments):
        code, out, err = call(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return told


@pytest.fixture
def refused(call):
    """A call that must end in one line for the user; the line."""

    def refused(*arguments):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        return err

    return refused


# plan


def test_five_releases_within_epsilon_three(call):
    code, out, err = call("plan", "--epsilon", 3, "--delta", 1e-5, "--releases", 5)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["noise", "multiplier", "3.1095"] in rows
    assert rows[rows.index(["after", "release", "ε", "spent"]) + 1 :][:5] == [
        ["1", "1.222"], ["2", "1.793"], ["3", "2.249"], ["4", "2.644"], ["5", "3.000"],
    ]  # fmt: skip
    assert "Noise multiplier: standard deviation" in out
    assert "Warning" not in out


def test_epsilon_three_in_one_release_if_nothing_is_said(told):
    found = told("plan")
    assert (found["releases"], found["delta"], found["mechanism"]) == (1, 1e-5, "dp_teacher")
    assert found["epsilon"] == pytest.approx(3, abs=1e-7)
    assert found["noise_multiplier"] == pytest.approx(1 / mu_of(3), rel=1e-6)


def test_what_is_missing_follows_from_the_other_two(told):
    noise = told("plan", "--epsilon", 2, "--releases", 7)["noise_multiplier"]
    assert noise == pytest.approx(math.sqrt(7) / mu_of(2), rel=1e-6)
    assert told("plan", "--noise-multiplier", noise, "--releases", 7)["epsilon"] == pytest.approx(2, rel=1e-6)
    assert told("plan", "--noise-multiplier", noise, "--epsilon", 2)["releases"] == 7
    assert told("plan", "--noise-multiplier", noise * 0.999, "--epsilon", 2)["releases"] == 6


def test_what_is_spent_is_the_closed_form(told):
    found = told("plan", "--noise-multiplier", 4, "--releases", 30, "--multiplicity", 3, "--delta", 1e-6)
    assert [step["releases"] for step in found["spent"]] == [1, 2, 5, 10, 20, 30]
    for step in found["spent"]:
        assert step["epsilon"] == pytest.approx(epsilon_of(math.sqrt(3 * step["releases"]) / 4, 1e-6), rel=1e-6)
    assert found["epsilon"] == found["spent"][-1]["epsilon"]


@given(st.integers(min_value=1, max_value=10**9))
def test_milestones_are_few_and_end_with_the_last(releases):
    found = milestones(releases)
    assert found[0] == 1
    assert found[-1] == releases
    assert found == sorted(set(found))
    assert len(found) <= 29
    assert releases > 10 or found == list(range(1, releases + 1))


def noise_length(numbers, deviation, clients=1):
    """Of the noise of so many clients, added; the mean of some draws."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(20, clients, numbers, generator=generator, dtype=torch.float64) * deviation
    return float(drawn.sum(1).norm(dim=1).mean())


@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments"])
def test_signal_to_noise_of_sums_is_that_of_records_that_agree(mechanism):
    sizes = Sizes(records=80, classes=4, dimensions=30, clients=9)
    found = forecast(mechanism, 1e-5, sizes, epsilon=2.0, releases=3)
    shape = Shape(30, 4)
    assert found.release.numbers == shape.numbers
    phi = torch.zeros(80, 30)
    phi[:, 3] = 1
    rows = contributions(phi, torch.full((80,), 2), shape.empty(), shape)
    assert float(rows.norm(dim=1).max()) == pytest.approx(found.release.sensitivity, rel=1e-6)
    signal = float(rows[:, :-1].sum(0).norm())
    assert found.deviation == pytest.approx(math.sqrt(3) / mu_of(2) * found.release.sensitivity, rel=1e-6)
    assert found.one_client == pytest.approx(signal / noise_length(shape.numbers, found.deviation), rel=0.05)
    if mechanism == "dp_teacher":
        assert found.all_clients is None
    else:
        together = 9 * signal / noise_length(shape.numbers, found.deviation, clients=9)
        assert found.all_clients == pytest.approx(together, rel=0.05)
    assert not found.drowned


def test_signal_to_noise_of_outputs_is_that_of_sure_ones():
    found = forecast(
        "output_perturbation", 1e-5, Sizes(classes=5, alignment=60, clients=4), noise_multiplier=0.01, releases=1
    )
    sure = torch.zeros(60, 5)
    sure[:, 0] = 1
    signal = float((sure - 1 / 5).norm())
    assert found.deviation == pytest.approx(0.01 * simplex_sensitivity(60))
    assert found.one_client == pytest.approx(signal / noise_length(300, found.deviation), rel=0.05)
    assert found.all_clients == pytest.approx(4 * signal / noise_length(300, found.deviation, clients=4), rel=0.05)
    assert not found.drowned


def test_a_warning_where_noise_drowns_the_signal(call):
    options = ("plan", "--mechanism", "output_perturbation", "--epsilon", 3, "--releases", 1)
    assert "Warning: the noise outweighs the signal" in call(*options)[1]
    assert "Warning" not in call(*options, "--clients", 100_000_000)[1]  # averaged
    assert "Warning" in call("plan", "--records", 20, "--epsilon", 1, "--releases", 1)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", 3), "exactly two"),
        (("--epsilon", 3, "--releases", 2, "--noise-multiplier", 2), "exactly two"),
        (("--epsilon", 0, "--releases", 2), "epsilon = 0.0:"),
        (("--epsilon", -1, "--releases", 2), "epsilon = -1.0:"),
        (("--epsilon", "nan", "--releases", 2), "epsilon = nan:"),
        (("--epsilon", "inf", "--releases", 2), "epsilon = inf:"),
        (("--epsilon", 3, "--releases", 0), "releases = 0:"),
        (("--epsilon", 3, "--releases", 10**400), "releases = 1000"),
        (("--epsilon", 3, "--noise-multiplier", 0), "noise multiplier = 0.0:"),
        (("--epsilon", 3, "--noise-multiplier", "nan"), "noise multiplier = nan:"),
        (("--epsilon", 1, "--noise-multiplier", 1e300), "noise multiplier = 1e+300:"),
        (("--epsilon", 1, "--noise-multiplier", 0.1), "not one release"),
        (("--delta", 0), "delta = 0:"),
        (("--delta", 0.004), "below 1 / 250"),
        (("--delta", "nan"), "delta = nan:"),
        (("--delta", 1e-5, "--records", 100_000), "below 1 / 100000"),
        (("--records", 0), "records = 0:"),
        (("--classes", 1), "classes = 1:"),
        (("--dimensions", 2), "dimensions = 2:"),
        (("--alignment", 0), "alignment = 0:"),
        (("--clients", 0), "clients = 0:"),
        (("--multiplicity", 21), "multiplicity = 21: must be between 1 and 20"),
    ],
)
def test_mistakes_in_a_plan_are_one_line(refused, options, words):
    assert words in refused("plan", *options)


# spent


CAP = Budget(3.0, 1e-5)


def ledger(folder, *mus, fingerprint="f" * 64, owner="hospital", cap=CAP):
    with Ledger.open(folder, fingerprint, owner) as opened:
        for number, mu in enumerate(mus):
            opened.release(f"release-{number}", "inputs", Cost(mu), [Limit(cap)], lambda: b"noise")
    return folder


def everything_in(path):
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None)
        for file in sorted(path.rglob("*"))
    }


def test_one_ledger(call, told, tmp_path):
    folder = ledger(tmp_path / "one", 0.3, 0.4, fingerprint="0123456789abcdef" * 4)
    before = everything_in(tmp_path)
    found = told("spent", folder)
    spent = epsilon_of(0.5)
    [row] = found["ledgers"]
    assert row == {
        "ledger": str(folder),
        "owner": "hospital",
        "fingerprint": "0123456789abcdef" * 4,
        "releases": 2,
        "cost": {"mu": pytest.approx(0.5), "sampled": [], "gap": 0.0},
        "epsilon": pytest.approx(spent, rel=1e-6),
        "cap": {"epsilon": 3.0, "delta": 1e-5},
        "left": pytest.approx(3 - spent, rel=1e-6),
    }
    assert found["epsilon"] == row["epsilon"]
    assert found["shared"] == []
    assert told("spent", folder, "--delta", 1e-3)["epsilon"] == pytest.approx(epsilon_of(0.5, 1e-3), rel=1e-6)
    code, out, _ = call("spent", folder)
    assert code == 0
    up, down = math.ceil(spent * 1000) / 1000, math.floor((3 - spent) * 1000) / 1000
    assert ["hospital", "0123456789ab", "2", f"{up:.3f}", "3", "at", "1e-05", f"{down:.3f}"] in [
        line.split() for line in out.splitlines()
    ]
    assert f"The most that any one record cost: ε {up:.3f} at δ = 1e-05." in out
    assert everything_in(tmp_path) == before


def test_the_cap_is_that_of_the_last_charge_and_what_is_left_is_at_its_delta(told, tmp_path):
    with Ledger.open(tmp_path / "a", "f", "o") as opened:
        opened.release("one", "inputs", Cost(0.2), [Limit(Budget(3.0, 1e-5))], lambda: b"")
        opened.release("two", "inputs", Cost(0.2), [Limit(Budget(2.0, 1e-7))], lambda: b"")
    [row] = told("spent", tmp_path)["ledgers"]
    assert row["cap"] == {"epsilon": 2.0, "delta": 1e-7}
    assert row["left"] == pytest.approx(2 - epsilon_of(math.hypot(0.2, 0.2), 1e-7), rel=1e-6)


def test_owners_may_have_any_name(call, tmp_path):
    ledger(tmp_path / "a", 0.3, owner="[red]Mary[/x]")
    code, out, err = call("spent", tmp_path)
    assert (code, err) == (0, "")
    assert "[red]Mary[/x]" in out
    ledger(tmp_path / "b", 0.4, owner="o" * 200)
    rows = [line.split() for line in call("spent", tmp_path)[1].splitlines()]
    assert ["3", "at", "1e-05"] in [row[-4:-1] for row in rows if row and row[0].startswith("oooo")]


def test_no_ledger_speaks_to_the_terminal(call, tmp_path):
    ledger(tmp_path / "one", 0.2, fingerprint="\x1b[2J" * 20, owner="\x1b[2Janna\x9b")
    code, out, _ = call("spent", tmp_path)
    assert code == 0
    assert "anna" in out
    assert "\x1b" not in out
    assert "\x9b" not in out


def test_a_new_ledger_has_spent_nothing(call, told, tmp_path):
    ledger(tmp_path / "new")
    assert told("spent", tmp_path)["ledgers"][0]["cap"] is None
    assert told("spent", tmp_path)["epsilon"] == 0
    assert "0.000" in call("spent", tmp_path)[1]


def test_all_ledgers_of_a_folder_and_the_worst(call, told, tmp_path):
    for number, mu in enumerate((0.1, 0.7, 0.3)):
        ledger(
            tmp_path / f"client-000{number}" / "set",
            mu,
            fingerprint=str(number),
            owner=f"c{number}",
            cap=Budget(9, 1e-5),
        )
    found = told("spent", tmp_path)
    assert [row["owner"] for row in found["ledgers"]] == ["c0", "c1", "c2"]
    assert found["epsilon"] == pytest.approx(epsilon_of(0.7), rel=1e-6)
    assert "Note" not in call("spent", tmp_path)[1]


def test_several_sets_of_records_of_one_client_may_share_records(call, told, tmp_path):
    for name, mu in (("a", 0.3), ("b", 0.4)):
        ledger(tmp_path / "client-0000" / name, mu, fingerprint=name)
    ledger(tmp_path / "client-0001" / "c", 0.1, fingerprint="c")
    [shared] = told("spent", tmp_path)["shared"]
    assert shared["ledgers"] == [str(tmp_path / "client-0000" / name) for name in ("a", "b")]
    assert shared["same_records"] is False
    assert shared["epsilon"] == pytest.approx(epsilon_of(0.5), rel=1e-6)
    assert told("spent", tmp_path)["epsilon"] == shared["epsilon"]
    out = " ".join(call("spent", tmp_path)[1].split())
    assert "Note: a client has ledgers of several sets of records" in out
    assert "the same records" not in out


def test_the_same_records_in_several_places_are_found(call, told, tmp_path):
    for name in ("a", "b"):
        for client in ("0", "1"):
            ledger(tmp_path / name / client / "set", 0.4, fingerprint=client, owner=client)
    found = told("spent", tmp_path)
    assert [shared["same_records"] for shared in found["shared"]] == [True, True]
    assert found["epsilon"] == pytest.approx(epsilon_of(0.4 * math.sqrt(2)), rel=1e-6)
    out = " ".join(call("spent", tmp_path)[1].split())
    assert "Note: the same records have several ledgers" in out
    assert "(2 cases)" in out
    assert "a client has ledgers" not in out


def test_ledgers_that_hang_together_through_others_are_counted_together(told, tmp_path):
    """One client with two sets, one of which lies in another place too: four ledgers of 3 make 6.71, not 5.66."""
    mu = gaussian_mu(3.0, 1e-5)
    for place, fingerprint in (("a/1", "1"), ("a/2", "2"), ("b/1", "1"), ("b/3", "3")):
        ledger(tmp_path / place, mu, fingerprint=fingerprint, cap=Budget(9, 1e-5))
    [shared] = told("spent", tmp_path)["shared"]
    assert len(shared["ledgers"]) == 4
    assert shared["epsilon"] == pytest.approx(epsilon_of(2 * mu), rel=1e-6)
    assert told("spent", tmp_path)["epsilon"] == shared["epsilon"]
    assert shared["epsilon"] == pytest.approx(6.71, abs=0.005)


def change_a_line(folder):
    file = folder / "ledger.jsonl"
    file.write_text(file.read_text().replace("0.4", "0.1"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (change_a_line, "one of them was changed"),
        (lambda folder: (folder / "ledger.jsonl").unlink(), "ledger.jsonl is missing"),
        (lambda folder: [(folder / name).unlink() for name in ("ledger.jsonl", "head.json")], "holds no ledger"),
        (lambda folder: (folder / "ledger.jsonl").write_bytes(b""), "ledger.jsonl is empty"),
    ],
)
def test_a_broken_ledger_is_told_and_spoils_the_total(call, tmp_path, harm, words):
    ledger(tmp_path / "client-0000" / "good", 0.3, fingerprint="good", owner="sound")
    harm(ledger(tmp_path / "client-0001" / "bad", 0.4, fingerprint="bad"))
    code, out, err = call("spent", tmp_path)
    assert code == 1
    assert "sound" in out
    assert "What was spent in all is not known" in out
    assert "The most that any one record cost" not in out
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    code, out, _ = call("spent", tmp_path, "--json")
    assert code == 1
    found = json.loads(out)
    assert found["epsilon"] is None
    assert ["error" in row for row in found["ledgers"]] == [False, True]


def test_folders_without_ledgers(refused, tmp_path):
    assert "no folder" in refused("spent", tmp_path / "nowhere")
    assert "no ledger in" in refused("spent", tmp_path)
    config = tmp_path / "config.json"
    config.write_text('{"privacy": {"mechanism": "none", "ledgers": ""}}')
    assert "nothing was released with privacy.mechanism = 'none'" in refused("spent", tmp_path)
    config.write_text('{"privacy": {"mechanism": "dp_teacher", "ledgers": "safe/place"}}')
    assert "elsewhere, in safe/place" in refused("spent", tmp_path)
    config.write_text("not JSON")
    assert "give a run folder" in refused("spent", tmp_path)
    assert "delta = 2:" in refused("spent", tmp_path, "--delta", 2)


def test_a_run_its_words_and_its_ledgers(capsys, told, tiny, tmp_path):
    changes = (*tiny, "privacy.mechanism=dp_teacher", "privacy.epsilon=2.5")
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--out", str(tmp_path / "run"), *(part for change in changes for part in ("--set", change))])
    assert not stopped.value.code
    out = " ".join(capsys.readouterr().out.split())
    assert "protected: any one record in what clients sent, from server and others not protected:" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    found = told("spent", tmp_path / "run")
    assert len(found["ledgers"]) == 3
    assert found["epsilon"] == result["epsilon_spent"] == pytest.approx(2.5, abs=1e-5)
    assert {row["releases"] for row in found["ledgers"]} == {1}
    assert "What is not protected" in (tmp_path / "run" / "report.html").read_text("utf-8")


# audit


def audited(mu_lower):
    return AuditResult("dp_teacher", 1, 0.7, 3.0, 1e-5, mu_lower, epsilon_of(mu_lower), 20_000, 0.999, 90.0)


def test_a_refuted_guarantee_is_an_exit_code_and_a_sentence(call, monkeypatch):
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: audited(1.2))
    code, out, _ = call("audit")
    assert code == 1
    assert "The guarantee is refuted" in out
    assert "claimed, at most  0.700  3.000" in out
    assert f"1.200  {epsilon_of(1.2):.3f}" in out
    assert "20,000 attacks with or without one record in 1.5 minutes prove 171% of the claimed" in " ".join(out.split())
    code, out, _ = call("audit", "--json")
    assert code == 1
    assert json.loads(out)["mu_lower"] == 1.2


def test_an_audit_proves_nothing(call, monkeypatch):
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: audited(0.3))
    code, out, _ = call("audit")
    assert code == 0
    assert "an audit can refute a guarantee, it cannot prove one" in " ".join(out.split())
    assert "refuted:" not in out


def test_an_audit_gets_the_configuration_and_the_options(told, tiny):
    changes = [part for change in (*tiny, "privacy.mechanism=dp_moments") for part in ("--set", change)]
    options = ("--trials", 15, "--confidence", 0.9, "--workers", 1)
    found = told("audit", *changes, "--set", "privacy.epsilon=1.5", *options)
    assert (found["mechanism"], found["epsilon"], found["trials"], found["confidence"]) == ("dp_moments", 1.5, 15, 0.9)
    assert found["mu"] == pytest.approx(mu_of(1.5), rel=1e-6)


@pytest.mark.parametrize(("options", "workers"), [([], 5), (["--workers", 3], 3)])
def test_an_audit_has_a_worker_for_each_core_or_as_many_as_it_is_told(call, monkeypatch, options, workers):
    asked = []
    monkeypatch.setattr(auditing, "audit", lambda *_, **given: asked.append(given["workers"]) or audited(0.3))
    monkeypatch.setattr("fedbnn.cli.privacy.cores", lambda: 5)
    assert call("audit", *options)[0] == 0
    assert asked == [workers]


def test_an_audit_ends_in_time(told, tiny):
    changes = [part for change in (*tiny, "privacy.mechanism=dp_teacher") for part in ("--set", change)]
    found = told("audit", *changes, "--trials", 10**6, "--minutes", 0.02, "--workers", 1)
    assert found["trials"] < 10**5
    assert found["seconds"] < 60


def test_an_audit_says_how_far_it_is(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(terminal, "error_console", console)
    with terminal.proving("audit", 1000) as say:
        say(Standing(trials=250, expected=500, left=75.4, mu_lower=0.41234, mu=0.7191))
    shown = console.file.getvalue()
    assert "250/500" in shown
    assert "proved 0.412 of 0.719, 0:01:15 left" in shown


def test_facts_are_audited_where_sites_would_send_them(tiny):
    assert not facts_leave(load_config(None, [*tiny, "privacy.mechanism=dp_teacher"]))
    assert facts_leave(load_config(None, [*tiny, "privacy.mechanism=none"]))


def test_nothing_to_audit(refused, tiny):
    changes = [part for change in tiny for part in ("--set", change)]
    assert "privacy.mechanism = 'none'" in refused("audit", *changes)
    assert "trials = 0" in refused("audit", *changes, "--set", "privacy.mechanism=dp_teacher", "--trials", 0)


# docs/what-is-protected.md


def up(value, decimals=2):
    return f"{math.ceil(value * 10**decimals) / 10**decimals:,.{decimals}f}"


@pytest.fixture(scope="module")
def page():
    return " ".join(DOCS.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("epsilon", "decimals"), [(1, 1), (3, 1), (8, 0)])
def test_the_best_guess_in_the_page(page, epsilon, decimals):
    """Of two equally likely unit Gaussians that are mu apart, the best guess is right with probability Phi(mu / 2)."""
    right = up(100 * norm.cdf(mu_of(epsilon) / 2), 1)
    assert f"| {epsilon} | {right} of 100 cases | {up(math.exp(epsilon), decimals)} |" in page


def test_costs_in_the_page(page):
    mu = mu_of(3)
    assert f"A person with 2 records in data protected at ε = 3 is protected at ε = {up(epsilon_of(2 * mu))}" in page
    assert f"with 10 records at ε = {up(epsilon_of(10 * mu))}" in page
    two, three = (up(epsilon_of(math.sqrt(clients) * mu)) for clients in (2, 3))
    assert f"a record that two clients hold costs {two}, one that three hold {three}" in page
    spent = [f"{epsilon_of(math.sqrt(k / 5) * mu):.3f}" for k in range(1, 6)]
    assert f"noise of {up(math.sqrt(5) / mu, 4)} times" in page
    assert f"have spent {', '.join(spent[:4])} and {spent[4]}" in page
    assert f"One release needs {up(1 / mu, 4)}" in page


def test_what_the_page_says_of_the_papers_formula(page):
    """A Gaussian release with rho = epsilon^2 / (4 log 1/delta) has mu = sqrt(2 rho)."""
    log = math.log(1e5)

    def excess(epsilon):
        return epsilon_of(epsilon / math.sqrt(2 * log)) - epsilon

    last = math.floor(brentq(excess, 1, 20) * 100) / 100
    assert f"it errs on the safe side up to ε = {last}, and from ε = 8 on" in page
    assert all(excess(epsilon) < 0 for epsilon in (0.5, 1, 2, 4, 6, last))
    assert all(excess(epsilon) > 0 for epsilon in (8, 9, 12, 20, 50))
    # And not the inverse of the conversion that it is taken from:
    rho = 9**2 / (4 * log)
    assert rho + 2 * math.sqrt(rho * log) > 9.5
    sensitivity, rounds = math.sqrt(2 * 2000), 100
    assert f"{sensitivity:.1f} for m = 2000" in page
    noise = sensitivity * math.sqrt(rounds / (2 * rho))
    exact = sensitivity * math.sqrt(rounds) / mu_of(9)
    assert f"noise of standard deviation {noise:.0f} on probabilities" in page
    assert (
        f"It costs ε = {up(epsilon_of(sensitivity * math.sqrt(rounds) / noise))}; the exact amount is {exact:.0f}"
        in page
    )
    one_point = math.sqrt(2 * rounds / (2 * rho))
    real = up(epsilon_of(sensitivity * math.sqrt(rounds) / one_point), 0)
    assert f"gives a standard deviation of {one_point:.2f}. For 2000 points that really costs ε = {real}." in page


def test_commands_in_the_page_work(told):
    commands = [
        line.split("#")[0].split()[2:]
        for line in DOCS.read_text("utf-8").splitlines()
        if "    fedbnn privacy plan" in line
    ]
    assert len(commands) == 3
    assert [told(*command)["releases"] for command in commands] == [5, 5, 101]
