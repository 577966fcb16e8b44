"""Which model is scored, and what privacy is guaranteed: rows, marks and words of the page."""

from pathlib import Path
from typing import Any, get_args

import pytest

from fedbnn.federation import method
from fedbnn.report import write_report
from fedbnn.report.figures import MISSING
from fedbnn.report.privacy import Guarantee, epsilon_text, in_words, terms, weakest
from fedbnn.report.variants import MEANINGS, NAMES, Variant, explained, subject
from tests.report.reader import Reader
from tests.report.samples import (
    TWELVE,
    sample_config,
    sample_result,
    with_variants,
    without_new_keys,
    write_comparison,
    write_run,
)

RECORD = {"epsilon_spent": 3.5, "delta": 1e-5, "privacy_unit": "record", "mechanism": "DP-SGD"}
CLIENT = {"epsilon_spent": 7.94, "delta": 1e-5, "privacy_unit": "client", "mechanism": "Gaussian sums"}


def read(folder: Path) -> tuple[Reader, str]:
    reader = Reader(write_report(folder).read_text("utf-8"))
    return reader, " ".join(" ".join(reader.text).split())


def run(folder: Path, result: dict[str, Any]) -> tuple[Reader, str]:
    return read(write_run(folder, result))


def compared(folder: Path, *results: dict[str, Any]) -> tuple[Reader, str]:
    write_comparison(folder, [result["method"] for result in results], [0])
    for result in results:
        write_run(folder / f"{result['method']}-seed0", result)
    return read(folder)


def test_one_row_a_model_for_twelve_methods(tmp_path: Path) -> None:
    reader, text = read(write_comparison(tmp_path, TWELVE, [0, 1]))
    heading, *rows = reader.tables[0]
    assert [row[0] for row in rows] == [
        "fedbnn", "fedmd", "feddf", "fedavg global", "fedavg fine-tuned", "fedprox global", "fedprox fine-tuned",
        "pfedme personal", "pfedme global", "pfedgp", "pfedbayes", "fola global", "fola fine-tuned",
        "fola global, own prior", "dp_fedavg global", "dp_fedavg fine-tuned", "local_bnn", "local",
    ]  # fmt: skip
    assert heading[-1] == "ε"
    shown = {row[0]: row[-1] for row in rows}
    assert shown["dp_fedavg global"] == "7.94"
    assert shown["dp_fedavg fine-tuned"] == ""
    assert shown["fedbnn"] == "none"
    for words in (
        "personal (also where no model is named): the client's own model",
        "global: the server's model, the same for all",
        "fine-tuned: the client's copy of the global model after its local training",
        "global, own prior: the server's model, asked with the client's own class shares",
        "differential privacy at client level (dp_fedavg by Gaussian sums)",
        "smaller is stronger, and of several seeds the weakest guarantee is shown",
        "“none” means that nothing is guaranteed",
    ):
        assert words in text


def test_charts_say_which_model_they_are_of(tmp_path: Path) -> None:
    _, text = compared(tmp_path / "two", sample_result("fedavg"), sample_result("local"))
    assert text.count("Of a method with several models the headline one is shown") == 5
    assert text.count("fedavg, global") >= 5
    assert "local, personal" not in text
    _, text = compared(tmp_path / "one", sample_result("fedbnn"), sample_result("local"))
    assert "headline one" not in text
    assert "What is scored is the client's own model." in text


def test_seeds_from_before_the_global_model_was_asked_under_own_shares(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fola"], [0, 1])
    old = sample_result("fola", seed=1)
    write_run(tmp_path / "fola-seed1", old | with_variants(old, "global", "fine_tuned"))
    reader, _ = read(tmp_path)
    assert [row[0] for row in reader.tables[0][1:]] == ["fola global", "fola fine-tuned"]


def test_no_epsilon_no_column(tmp_path: Path) -> None:
    reader, text = compared(tmp_path, sample_result("fedavg"), sample_result("local"))
    assert "ε" not in text
    assert reader.tables[0][0][-1] == "Time"


def test_best_is_looked_for_in_every_row(tmp_path: Path) -> None:
    result = sample_result("fedavg") | {"own_class_accuracy": 0.5, "nll": 2.0}
    result |= with_variants(result, "global", "fine_tuned")
    result["variants"]["fine_tuned"]["own_class_accuracy"] = 0.99
    result["variants"]["fine_tuned"]["nll"] = 3.0
    reader, _ = compared(tmp_path, result, sample_result("fedbnn"))
    heading, *rows = reader.tables[0]
    best = {name: [row[0] for row in rows if "best" in row[at]] for at, name in enumerate(heading)}
    assert best["Own-class accuracy"] == ["fedavg fine-tuned"]
    assert best["NLL"] == ["fedbnn"]
    assert best["Time"] == ["fedavg global"]


def test_smallest_epsilon_is_best_where_guarantees_compare(tmp_path: Path) -> None:
    reader, text = compared(
        tmp_path / "alike",
        sample_result("fedavg") | CLIENT,
        sample_result("fedbnn") | CLIENT | {"epsilon_spent": 2.0},
    )
    assert [row[-1] for row in reader.tables[0][1:]] == ["7.94", "", "2.00 ★best"]
    assert "do not compare" not in text
    assert "nothing is guaranteed" not in text
    reader, text = compared(tmp_path / "unlike", sample_result("fedavg") | CLIENT, sample_result("fedbnn") | RECORD)
    assert [row[-1] for row in reader.tables[0][1:]] == ["7.94", "", "3.50"]
    assert "ε at δ = 1e-05 for one client (fedavg), at δ = 1e-05 for one record (fedbnn)" in text
    assert "at client level and record level (fedavg by Gaussian sums and fedbnn by DP-SGD)" in text
    assert "Guarantees for different units or δ do not compare." in text


def test_epsilons_that_read_the_same_are_equally_good(tmp_path: Path) -> None:
    near = [
        sample_result(method) | RECORD | {"epsilon_spent": value}
        for method, value in (("fedbnn", 2.9999999), ("fedmd", 2.9999), ("feddf", 3.0))
    ]
    reader, _ = compared(tmp_path / "alike", *near)
    assert [row[-1] for row in reader.tables[0][1:]] == ["3.00", "3.00", "3.00"]
    reader, _ = compared(tmp_path / "unlike", *near, sample_result("pfedgp") | RECORD)
    assert [row[-1] for row in reader.tables[0][1:]] == ["3.00 ★best", "3.00 ★best", "3.00 ★best", "3.50"]


def test_a_comparison_of_older_results(tmp_path: Path) -> None:
    old = compared(
        tmp_path / "old", without_new_keys(sample_result("fedbnn")), without_new_keys(sample_result("local"))
    )
    new = compared(tmp_path / "new", sample_result("fedbnn"), sample_result("local"))
    assert old[0].tables == new[0].tables
    assert old[1] == new[1]


def test_run_of_a_personal_model(tmp_path: Path) -> None:
    for name, result in (("new", sample_result()), ("old", without_new_keys(sample_result()))):
        reader, text = run(tmp_path / name, result)
        assert "After 12 rounds a client's own model is right on" in text
        assert "What clients sent is not protected by differential privacy." in text
        assert "ε" not in text
        assert "global" not in text
        assert "What is scored" not in text
        assert "Own-class accuracy" in reader.tables[0][0]
        assert len(reader.tables) == 1  # the clients


def test_run_of_a_global_model(tmp_path: Path) -> None:
    result = sample_result("fedavg")
    reader, text = run(tmp_path, result)
    share = f"{result['own_class_accuracy']:.1%}"
    assert f"the global model, the same for all clients, is right on {share} of the test records" in text
    assert f"{share} global model: on the classes a client holds" in text
    assert "global model: by a client in a round" not in text
    assert text.count("Shown is the global model.") == 5
    heading, *rows = reader.tables[0]
    assert heading == [
        "Model", "Own-class accuracy", "All-class accuracy", "NLL", "Brier score", "ECE", "MCE", "All-class NLL",
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["global", "fine-tuned"]
    tuned = result["variants"]["fine_tuned"]
    assert rows[1][1:4] == [
        f"{tuned['own_class_accuracy']:.1%}",
        f"{tuned['all_class_accuracy']:.1%}",
        f"{tuned['nll']:.3f}",
    ]


def test_run_of_a_fine_tuned_model(tmp_path: Path) -> None:
    result = sample_result()
    reader, text = run(tmp_path, result | with_variants(result, "fine_tuned"))
    assert "a client's copy of the global model, trained further on its own records, is right on" in text
    assert "fine-tuned model: greatest gap of any bin" in text
    assert len(reader.tables) == 1


def test_headline_comes_first_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    result = sample_result("fedavg")
    result["variants"] = dict(reversed(result["variants"].items()))
    reader, text = run(tmp_path, result)
    assert [row[0] for row in reader.tables[0][1:]] == ["global", "fine-tuned"]
    assert "Shown is the global model." in text


def test_run_with_a_guarantee(tmp_path: Path) -> None:
    _, text = run(tmp_path, sample_result() | RECORD)
    assert "Privacy ε 3.50 at δ = 1e-05 for one record" in text
    assert "Any one record: whether it is there or not changes the probability of anything that clients sent" in text
    assert "not protected by differential privacy" not in text


def test_run_that_sends_nothing_has_nothing_to_protect(tmp_path: Path) -> None:
    _, text = run(tmp_path, sample_result("local"))
    assert "Clients sent nothing." in text
    assert "differential privacy" not in text


def test_settings_of_many_methods_are_told_in_words(tmp_path: Path) -> None:
    for name in TWELVE:
        config = sample_config(name) | {"patience": None if name == "local" else 3}
        write_run(tmp_path / f"{name}-seed0", sample_result(name), config)
    (tmp_path / "comparison.json").write_text(
        '{"runs": [' + ",".join(f'{{"method": "{m}", "seed": 0, "folder": "{m}-seed0"}}' for m in TWELVE) + "]}"
    )
    reader, text = read(tmp_path)
    assert "method.gamma 0.7 (fedbnn)" in text
    assert f"patience 3 ({', '.join(TWELVE[:-1])})" in text
    assert "method.name" not in text
    assert not any("Setting" in table[0] for table in reader.tables)


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (0.5, "0.50"),
        (12.345, "12.35"),
        (1.2218, "1.23"),
        (7.94, "7.94"),
        (2.9999999924, "3.00"),
        (99.999, "100.00"),
        (1234.1, "1,235"),
        (float("inf"), "∞"),
        (float("nan"), MISSING),
    ],
)
def test_epsilon_as_text(epsilon: float, text: str) -> None:
    assert epsilon_text(Guarantee(epsilon, 1e-5, "record", "DP-SGD")) == text
    assert epsilon_text(None) == "none"


def test_what_holds_in_all_runs() -> None:
    strong, weak = Guarantee(1.0, 1e-5, "record", "a"), Guarantee(2.0, 1e-5, "record", "a")
    assert weakest([strong, weak]) == weak
    assert weakest([strong, None]) is None
    assert weakest([]) is None
    assert terms([("a", strong), ("b", weak), ("c", None)]) == "ε at δ = 1e-05 for one record"
    assert terms([("c", None)]) == ""


def test_no_bound_is_not_called_protection() -> None:
    words = in_words(Guarantee(float("inf"), 1e-5, "client", "DP-FedAvg"), sends=True)
    assert "no bound" in words
    assert "is protected" not in words


def test_every_model_that_is_scored_has_its_words() -> None:
    assert get_args(Variant) == get_args(method.Variant) == tuple(NAMES) == tuple(MEANINGS)
    assert len({subject(variant) for variant in get_args(Variant)}) == len(NAMES)


def test_only_models_that_occur_are_explained() -> None:
    assert explained(["fine_tuned", "global"]) == (
        "What is scored: global: the server's model, the same for all; "
        "fine-tuned: the client's copy of the global model after its local training."
    )
