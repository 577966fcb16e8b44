import math
import re
from typing import Any

import pytest
from rich.console import Console

from fedbnn.cli import tables
from fedbnn.report.figures import MISSING
from fedbnn.report.load import Group, Run
from fedbnn.report.privacy import briefly
from fedbnn.report.schema import Result
from fedbnn.report.table import row, table
from tests.report.samples import sample_result, without_new_keys

SCORES = {
    "own_class_accuracy": 0.951,
    "all_class_accuracy": 0.482,
    "nll": 0.123,
    "brier": 0.2,
    "ece": 0.045,
    "mce": 0.234,
    "all_class_nll": 2.5,
}
TUNED = SCORES | {"own_class_accuracy": 0.969, "nll": 0.101}
CLIENT = {"epsilon_spent": 7.94, "delta": 1e-5, "privacy_unit": "client", "mechanism": "Gaussian sums"}
RECORD = {"epsilon_spent": 3.5, "delta": 1e-5, "privacy_unit": "record", "mechanism": "DP-SGD"}
TWELVE = [
    "fedbnn", "fedmd", "feddf", "fedavg", "fedprox", "pfedme", "pfedgp", "pfedbayes", "fola", "dp_fedavg",
    "local_bnn", "local",
]  # fmt: skip


SAMPLE = without_new_keys(sample_result())


def old(method: str, **changes: Any) -> dict[str, Any]:
    """A result as it was before models had names."""
    return {
        **SAMPLE,
        "method": method,
        **SCORES,
        "bytes_up_per_client_round": 1_048_576.0,
        "bytes_down_per_client_round": 16_000.0,
        "seconds": 1234.5,
        **changes,
    }


def new(method: str, *variants: str, **changes: Any) -> dict[str, Any]:
    result = old(method, epsilon_spent=None) | changes
    headline = {name: result[name] for name in SCORES}
    scored, *others = variants or ("personal",)
    return result | {"scored": scored, "variants": {scored: headline, **dict.fromkeys(others, TUNED)}}


def groups(results: list[dict[str, Any]]) -> tuple[Group, ...]:
    runs: dict[str, list[Run]] = {}
    for result in results:
        runs.setdefault(result["method"], []).append(Run({}, Result.model_validate(result)))
    return tuple(Group(method, tuple(of)) for method, of in runs.items())


def printed(results: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(tables.comparison(groups(results)))
    return capture.get()


def rows(results: list[dict[str, Any]], width: int = 80) -> list[list[str]]:
    """The lines under the heading and above the caption, as words."""
    lines = printed(results, width).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("method")) + 1
    end = next(i for i, line in enumerate(lines) if line.startswith("digits, 20 clients"))
    return [line.split() for line in lines[start:end]]


def caption(results: list[dict[str, Any]], width: int = 400) -> str:
    text = printed(results, width)
    return " ".join(text[text.index("digits, 20 clients") :].split())


def test_one_row_a_method() -> None:
    assert rows([new("fedbnn"), new("local", seconds=2.0)]) == [
        ["fedbnn", "95.1%", "48.2%", "0.123", "0.045", "0.234", "1.05M", "16.0k", "1,234.5"],
        ["local", "95.1%", "48.2%", "0.123", "0.045", "0.234", "1.05M", "16.0k", "2.0"],
    ]
    assert caption([new("fedbnn")]) == (
        "digits, 20 clients, 12 rounds; scored on test records; bytes per client and round"
    )


def test_one_row_a_model_and_costs_once() -> None:
    results = [new("fedavg", "global", "fine_tuned"), new("pfedme", "personal", "global"), new("fola", "global")]
    assert rows(results) == [
        ["fedavg", "global", "95.1%", "48.2%", "0.123", "0.045", "0.234", "1.05M", "16.0k", "1,234.5"],
        ["fine-tuned", "96.9%", "48.2%", "0.101", "0.045", "0.234"],
        ["pfedme", "95.1%", "48.2%", "0.123", "0.045", "0.234", "1.05M", "16.0k", "1,234.5"],
        ["global", "96.9%", "48.2%", "0.101", "0.045", "0.234"],
        ["fola", "global", "95.1%", "48.2%", "0.123", "0.045", "0.234", "1.05M", "16.0k", "1,234.5"],
    ]
    assert "\n  fine-tuned " in printed(results)
    assert "the model scored is the client's own where none is named" in caption(results)


def test_older_results_read_as_before() -> None:
    assert printed([old("fedbnn"), old("local")]) == printed([new("fedbnn"), new("local")])
    mixed = rows([old("fedbnn"), new("dp_fedavg", **CLIENT)])
    assert [row[-1] for row in mixed] == ["none", "7.94"]


def test_epsilon_has_a_column_only_if_there_is_one() -> None:
    results = [new("fedbnn"), new("dp_fedavg", "global", "fine_tuned", **CLIENT)]
    assert "ε" not in printed(results[:1])
    assert [row[-1] for row in rows(results)] == ["none", "7.94", "0.234"]
    assert caption(results).endswith("ε at δ = 1e-05 for one client; none: no guarantee")
    assert caption(results[1:]).endswith("ε at δ = 1e-05 for one client")


def test_epsilons_of_different_units_are_told_apart() -> None:
    results = [new("fedbnn", **RECORD), new("dp_fedavg", **CLIENT), new("fola", **RECORD)]
    assert caption(results).endswith(
        "ε at δ = 1e-05 for one record (fedbnn, fola), at δ = 1e-05 for one client (dp_fedavg)"
    )


def test_seeds_share_the_weakest_guarantee() -> None:
    results = [new("dp_fedavg", **CLIENT | {"epsilon_spent": value}) for value in (2.0, 4.0)]
    assert rows(results)[0][-1] == "4.00"
    assert caption(results).endswith("mean ± sd over 2 seeds; ε at δ = 1e-05 for one client (the weakest of the seeds)")
    unprotected = [*results, new("dp_fedavg")]
    assert "ε" not in printed(unprotected)


@pytest.mark.parametrize("nothing", [math.nan, None])
def test_missing_numbers_are_dashes(nothing: float | None) -> None:
    changes = {"nll": nothing, "bytes_up_per_client_round": nothing}
    (row,) = rows([new("fedbnn", **changes)])
    assert row == ["fedbnn", "95.1%", "48.2%", MISSING, "0.045", "0.234", MISSING, "16.0k", "1,234.5"]
    (row,) = rows([new("fedbnn", **changes), new("fedbnn", nll=0.5)], 120)
    assert row[3] == "0.500"


def test_mean_and_deviation_over_seeds() -> None:
    results = [new("fedavg", "global", "fine_tuned", own_class_accuracy=value) for value in (0.9, 0.92)]
    first, second = rows(results, 120)
    assert first[:5] == ["fedavg", "global", "91.0", "±", "1.4%"]
    assert second[:2] == ["fine-tuned", "96.9%"]
    assert second[2] == "48.2%"  # both seeds agree


def twelve(seeds: int) -> list[dict[str, Any]]:
    two = {"fedavg", "fedprox", "fola", "dp_fedavg"}
    return [
        new(
            method,
            *(("global", "fine_tuned") if method in two else ("personal",)),
            **(CLIENT if method == "dp_fedavg" else {}),
            **{name: SCORES[name] * (1 + 0.02 * seed) for name in SCORES},
            seconds=12345.6 + seed,
        )
        for method in TWELVE
        for seed in range(seeds)
    ]


def test_twelve_methods_fit_eighty_columns() -> None:
    lines = printed(twelve(1), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "own-class" in lines[0]
    assert len(rows(twelve(1))) == 16
    assert all(len(row) >= 6 for row in rows(twelve(1)))
    assert "…" not in "".join(lines)


def test_seeds_in_a_narrow_terminal_lose_no_digit() -> None:
    wide, narrow = printed(twelve(3), 140), printed(twelve(3), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "97.0 ± 1.9%" in wide
    found = rows(twelve(3), 80)
    assert found[0] == ["fedbnn", "97.0%", "49.2%", "0.125", "0.046", "0.239", "1.05M", "16.0k", "12,346.6", "none"]
    assert found[1] == ["±1.9", "±1.0", "±0.002", "±0.001", "±0.005", "±1.0"]
    assert "…" not in wide + narrow


def test_no_terminal_is_too_narrow_for_the_digits() -> None:
    text = printed(twelve(1), 60)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (108, "108"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (16_000, "16.0k"),
        (99_960, "100k"),
        (488_720, "489k"),
        (999_600, "1.00M"),
        (1_048_576, "1.05M"),
        (2.5e12, "2,500G"),
    ],
)
def test_bytes_are_short(count: float, text: str) -> None:
    assert rows([new("fedbnn", bytes_up_per_client_round=count)])[0][6] == text


def protection(*results: dict[str, Any]) -> list[str]:
    return briefly([(group.method, group.guarantee) for group in groups([*results])])


def test_what_is_protected_is_told_under_the_table() -> None:
    teacher = RECORD | {"mechanism": "dp_teacher"}
    assert protection(new("fedbnn")) == []
    [words] = protection(new("fedbnn", **teacher))
    assert words.startswith("protected: any one record in what clients sent, from server and others")
    assert "not protected: personal models" in words
    averaged = CLIENT | {"mechanism": "DP-FedAvg"}
    both = protection(new("fedbnn", **teacher), new("dp_fedavg", **averaged), new("local"))
    assert [words.partition(":")[0] for words in both] == ["fedbnn", "dp_fedavg"]
    assert "from all but the server" in both[1]
    # What holds in one seed only is not promised.
    assert protection(new("fedbnn", **teacher), new("fedbnn")) == []


def test_the_best_is_bold_on_a_terminal_only() -> None:
    results = [new("fedbnn"), new("local", own_class_accuracy=0.9)]
    console = Console(width=100, force_terminal=True, color_system="standard", legacy_windows=False)
    with console.capture() as capture:
        console.print(tables.comparison(groups(results)))
    assert re.search(r"\x1b\[1m *95\.1%", capture.get())
    assert not re.search(r"\x1b\[1m *90\.0%", capture.get())
    assert "the best in bold" in caption(results)
    assert "bold" not in caption(results[:1])


def test_columns_move_together_before_anything_else_is_given_up() -> None:
    assert "own-class all-class" in printed(twelve(1), 80)
    assert "own-class  all-class" in printed(twelve(1), 120)
    assert rows(twelve(1), 80) == rows(twelve(1), 120)


def test_brackets_are_words_and_not_markup() -> None:
    assert "[red]mine[/x]" in printed([new("fedbnn", dataset="[red]mine[/x]")], 120)


@pytest.mark.parametrize("width", [20, 200])
def test_no_name_speaks_to_the_terminal(width: int) -> None:
    name = "\x1b[2Jowner\x07\x9b31m\x00\ud800\u202e"
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(tables.Printed(table([name, "n"], [row(name, "1")], caption=name)))
    shown = captured.get()
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert shown.replace("\n", "").replace(" ", "").count("owner") == 3
