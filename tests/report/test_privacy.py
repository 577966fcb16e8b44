"""What the page says is protected, against whom, and what is not."""

import math
from pathlib import Path
from typing import Any

import pytest

from fedbnn.methods import DPFedAvg, DPFedSGD, DPScaffold, Pate
from fedbnn.privacy.mechanism import MECHANISMS
from fedbnn.report import write_report
from fedbnn.report.privacy import Guarantee, all_protected, briefly, explained, in_words, protected
from fedbnn.report.protection import PROTECTIONS, meaning
from tests.federation_sample import small_sites
from tests.report.reader import Reader
from tests.report.samples import sample_result, write_comparison, write_run

HEADINGS = ["What leaves a client", "What is protected", "Against whom", "What ε counts", "What is not protected"]
UNITS = {name: "client" if name == "DP-FedAvg" else "record" for name in PROTECTIONS}


def guarantee(mechanism: str, epsilon: float = 3.0) -> Guarantee:
    return Guarantee(epsilon, 1e-5, UNITS.get(mechanism, "record"), mechanism)


def entries(mechanism: str, epsilon: float = 3.0) -> dict[str, Any]:
    return {"epsilon_spent": epsilon, "delta": 1e-5, "privacy_unit": UNITS[mechanism], "mechanism": mechanism}


def read(folder: Path) -> tuple[Reader, str]:
    reader = Reader(write_report(folder).read_text("utf-8"))
    return reader, " ".join(" ".join(reader.text).split())


def test_every_mechanism_that_a_result_can_name_has_its_words(tmp_path: Path) -> None:
    own, client = set(), small_sites(1, rounds=2, ledgers=tmp_path)[0].client
    for method in (
        DPFedAvg(sampling_rate=1.0),
        DPFedAvg(level="user"),
        DPFedSGD(),
        DPScaffold(sampling_rate=1.0),
        Pate(),
    ):
        spent = method.privacy_spent(client, 3)
        assert spent is not None
        own.add(spent.mechanism)
        assert UNITS[spent.mechanism] == spent.unit
    assert PROTECTIONS.keys() == (MECHANISMS.keys() - {"none"}) | own


@pytest.mark.parametrize("mechanism", PROTECTIONS)
def test_a_run_says_what_is_protected_against_whom_and_what_is_not(tmp_path: Path, mechanism: str) -> None:
    reader, text = read(write_run(tmp_path, sample_result() | entries(mechanism)))
    assert "privacy" in reader.ids
    assert f"fedbnn ({mechanism})" in text
    lines = protected(guarantee(mechanism))
    assert [heading for heading, _ in lines] == HEADINGS
    at = [text.index(heading, text.index(f"fedbnn ({mechanism})")) for heading in HEADINGS]
    assert at == sorted(at)
    for _, sentences in lines:
        assert sentences
        for sentence in sentences:
            assert sentence in text
    assert len({found.sent for found in PROTECTIONS.values()}) == len(PROTECTIONS)


@pytest.mark.parametrize("mechanism", PROTECTIONS)
def test_the_server_is_trusted_only_where_it_adds_the_noise(mechanism: str) -> None:
    found = PROTECTIONS[mechanism]
    trusting = mechanism == "DP-FedAvg"
    assert ("Not the server" in found.against) == trusting
    assert ("The server and all other clients" in found.against) == (not trusting)
    assert ("from server and others" in found.brief) == (not trusting)
    assert any(gap.startswith("This page and the run's folder") for gap in found.gaps)
    assert any("the alignment set" in gap for gap in found.gaps)
    assert any("Several records of one person" in gap for gap in found.gaps) == (not trusting)
    assert ("the clients' ledgers" in found.counted) == (not trusting)
    assert ("the server's ledger" in found.counted) == trusting


def test_a_comparison_says_it_once_for_methods_alike(tmp_path: Path) -> None:
    results = {
        "fedbnn": sample_result("fedbnn") | entries("dp_teacher"),
        "fedmd": sample_result("fedmd") | entries("dp_teacher"),
        "dp_fedavg": sample_result("dp_fedavg") | entries("DP-SGD", 2.0),
        "local": sample_result("local"),
    }
    write_comparison(tmp_path, list(results), [0])
    for method, result in results.items():
        write_run(tmp_path / f"{method}-seed0", result)
    _, text = read(tmp_path)
    assert text.count("Against whom") == 2
    assert "fedbnn (dp_teacher) and fedmd (dp_teacher)" in text
    assert "at most by a factor of 20.1" in text
    assert "at most by a factor of 7.4" in text


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path) -> None:
    unknown = sample_result() | {"epsilon_spent": 3.0, "delta": 1e-5, "privacy_unit": "record", "mechanism": "mine"}
    reader, text = read(write_run(tmp_path / "unknown", unknown))
    assert "privacy" not in reader.ids
    assert "Differential privacy at record level (mine), with ε = 3.00: Any one record" in text
    assert "Against whom" not in text
    reader, _ = read(write_run(tmp_path / "none", sample_result()))
    assert "privacy" not in reader.ids
    assert protected(None) == protected(guarantee("dp_teacher", math.inf)) == ()
    assert all_protected([("fedbnn", None)]) == []
    assert "no bound" in in_words(guarantee("dp_teacher", math.inf), sends=True)


def test_secure_aggregation_has_two_numbers_and_the_safe_one_is_in_the_table(tmp_path: Path) -> None:
    _, text = read(write_run(tmp_path, sample_result() | entries("dp_moments", 10.21) | {"epsilon_joined": 3.0}))
    assert "That holds even if the secure aggregation is broken" in text
    assert "as long as nobody sees more than sums over clients, ε = 3.00." in text
    both = Guarantee(10.21, 1e-5, "record", "dp_moments", 3.0)
    assert "with ε = 10.21: Any one record" in in_words(both, sends=True)
    assert "ε = 3.00." in in_words(both, sends=True)
    assert "as long as the secure aggregation does, it is smaller: fedbnn 3.00." in explained([("fedbnn", both)], False)
    assert "aggregation" not in explained([("fedbnn", guarantee("dp_moments"))], False)
    assert "aggregation" not in in_words(guarantee("dp_moments"), sends=True)


def test_the_factor_is_rounded_up() -> None:
    assert "factor of 2.8, which is exp(ε), but for a probability of δ = 1e-06" in meaning(1.0, 1e-6, "record")
    assert "Any one client: whether its records are there or not" in meaning(1.0, 1e-6, "client")
    assert "any averaged models" in meaning(1.0, 1e-6, "client")
    assert "factor of more than a thousand," in meaning(1000.0, 1e-6, "record")


def test_two_lines_for_the_terminal() -> None:
    for mechanism, found in PROTECTIONS.items():
        assert briefly([("fedbnn", guarantee(mechanism))]) == [found.brief]
        protected_line, not_protected = found.brief.splitlines()
        assert protected_line.startswith("protected: ")
        assert not_protected.startswith("not protected: ")
        assert max(len(protected_line), len(not_protected)) <= 80
    several = [("fedbnn", guarantee("dp_teacher")), ("fedmd", guarantee("dp_moments")), ("local", None)]
    assert briefly(several) == [f"fedbnn, fedmd: {PROTECTIONS['dp_teacher'].brief}"]
    assert briefly([("fedbnn", None), ("mine", guarantee("mine"))]) == []
