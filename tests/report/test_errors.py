import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbnn.base.errors import UserError
from fedbnn.report import write_report
from tests.report.samples import sample_result, with_variants, write_comparison, write_run


def error_of(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        write_report(folder)
    assert not (folder / "report.html").exists()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_no_such_folder(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none").startswith(f"no folder {tmp_path / 'none'}")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    assert "no result.json or comparison.json in" in error_of(tmp_path)


def test_unfinished_run(tmp_path: Path) -> None:
    write_run(tmp_path, sample_result())
    (tmp_path / "result.json").unlink()
    expected = f"no result.json in {tmp_path}: the run is not finished; continue it with --resume"
    assert error_of(tmp_path) == expected


def test_missing_or_odd_configuration(tmp_path: Path) -> None:
    write_run(tmp_path, sample_result())
    (tmp_path / "config.json").write_text("[1]")
    assert "config.json: must hold a JSON object" in error_of(tmp_path)
    (tmp_path / "config.json").unlink()
    assert f"no config.json in {tmp_path}" in error_of(tmp_path)


@pytest.mark.parametrize("content", [b'{"a": 1,', b"", b"\xff\xfe{}", b"[" * 200_000])
def test_broken_json(tmp_path: Path, content: bytes) -> None:
    write_run(tmp_path, sample_result())
    (tmp_path / "result.json").write_bytes(content)
    text = error_of(tmp_path)
    assert "result.json cannot be read: " in text
    assert "repeat the run" in text


def _drop(result: dict[str, Any]) -> None:
    del result["curve"]["round"]


def _shorten(result: dict[str, Any]) -> None:
    result["per_client"]["nll"].pop()


def _word(result: dict[str, Any]) -> None:
    result["nll"] = "small"


def _bins(result: dict[str, Any]) -> None:
    del result["reliability"]["count"]


def _list(result: dict[str, Any]) -> None:
    result["uncertainty"]["total"] = [1]


def _unknown_variant(result: dict[str, Any]) -> None:
    result["scored"] = "best"


def _unlisted_variant(result: dict[str, Any]) -> None:
    result["scored"] = "global"


def _variants_without_scored(result: dict[str, Any]) -> None:
    del result["scored"]


def _no_variant(result: dict[str, Any]) -> None:
    result["variants"] = {}


def _variant_without_a_score(result: dict[str, Any]) -> None:
    del result["variants"]["personal"]["brier"]


def _two_headlines(result: dict[str, Any]) -> None:
    result["nll"], result["variants"]["personal"]["nll"] = 0.5, 0.25


def _negative_epsilon(result: dict[str, Any]) -> None:
    result |= {"epsilon_spent": -1.0, "delta": 1e-5, "privacy_unit": "record", "mechanism": "DP-SGD"}


def _epsilon_is_no_number(result: dict[str, Any]) -> None:
    result |= {"epsilon_spent": float("nan"), "delta": 1e-5, "privacy_unit": "record", "mechanism": "DP-SGD"}


def _epsilon_without_delta(result: dict[str, Any]) -> None:
    result |= {"epsilon_spent": 1.0, "privacy_unit": "record", "mechanism": "DP-SGD"}


def _certain_delta(result: dict[str, Any]) -> None:
    result |= {"epsilon_spent": 1.0, "delta": 1.0, "privacy_unit": "record", "mechanism": "DP-SGD"}


def _odd_unit(result: dict[str, Any]) -> None:
    result |= {"epsilon_spent": 1.0, "delta": 1e-5, "privacy_unit": "pixel", "mechanism": "DP-SGD"}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            _unknown_variant,
            "scored: Input should be 'personal', 'general', 'global', 'global_own_prior' or 'fine_tuned'",
        ),
        (_unlisted_variant, "scored is 'global', but variants has ['personal']"),
        (_variants_without_scored, "variants without 'scored'"),
        (_no_variant, "scored is 'personal', but variants has []"),
        (_variant_without_a_score, "variants.personal.brier: Field required"),
        (_two_headlines, "nll is 0.5, but variants.personal.nll is 0.25"),
        (_negative_epsilon, "epsilon_spent: Input should be greater than or equal to 0"),
        (_epsilon_is_no_number, "epsilon_spent: Input should be greater than or equal to 0"),
        (_epsilon_without_delta, "epsilon_spent without 'delta'"),
        (_certain_delta, "delta: Input should be less than 1"),
        (_odd_unit, "privacy_unit: Input should be 'record' or 'client'"),
        (_drop, "curve.round: Field required"),
        (_shorten, "per_client: Value error, lists differ in length"),
        (_word, "nll: Input should be a valid number"),
        (_bins, "reliability bins without 'count'"),
        (_list, "uncertainty.total: Value error, must be an object"),
    ],
)
def test_wrong_result(tmp_path: Path, damage: Callable[[dict[str, Any]], None], expected: str) -> None:
    result = sample_result()
    damage(result)
    text = error_of(write_run(tmp_path, result))
    assert text.startswith(str(tmp_path / "result.json"))
    assert expected in text


def listing(folder: Path, *runs: tuple[str, int, str]) -> Path:
    entries = [{"method": method, "seed": seed, "folder": name} for method, seed, name in runs]
    (folder / "comparison.json").write_text(json.dumps({"runs": entries}))
    return folder


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "..\\outside", "C:\\runs", "", ".", "a\0b"])
def test_folders_outside_are_refused(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "outside", sample_result())
    (tmp_path / "all").mkdir()
    text = error_of(listing(tmp_path / "all", ("fedbnn", 0, name)))
    assert "must be a path below" in text
    assert "comparison.json" in text


def test_absolute_folders_and_links_to_the_outside_are_refused(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside", sample_result())
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "link").symlink_to(outside)
    for name in (str(outside), str(tmp_path / "all" / "a"), "link"):
        assert "must be a path below" in error_of(listing(tmp_path / "all", ("fedbnn", 0, name)))


def test_comparison_with_missing_runs(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedbnn"], [0])
    listing(tmp_path, ("fedbnn", 0, "fedbnn-seed0"), ("fedavg", 0, "fedavg-seed0"))
    assert error_of(tmp_path).startswith(f"no run folder {tmp_path / 'fedavg-seed0'}")
    (tmp_path / "fedavg-seed0").mkdir()
    assert error_of(tmp_path).startswith(f"no result.json in {tmp_path / 'fedavg-seed0'}")


def test_comparison_of_nothing_or_of_the_same_twice(tmp_path: Path) -> None:
    assert "comparison.json: runs:" in error_of(listing(tmp_path))
    twice = listing(tmp_path, ("fedbnn", 0, "a"), ("fedbnn", 0, "b"))
    assert "'fedbnn' with seed 0 is listed twice" in error_of(twice)


def test_seeds_that_cannot_be_pooled(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedbnn"], [0, 1])
    result = sample_result(seed=1)
    result["reliability"] = {"edges": [0, 1], "count": [1], "confidence_sum": [0.5], "correct_sum": [1]}
    write_run(tmp_path / "fedbnn-seed1", result)
    assert "the runs of 'fedbnn' cannot be pooled" in error_of(tmp_path)


def test_seeds_that_score_different_models(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedavg"], [0, 1])
    result = sample_result("fedavg", seed=1)
    write_run(tmp_path / "fedavg-seed1", result | with_variants(result, "fine_tuned", "global"))
    text = error_of(tmp_path)
    assert "the runs of 'fedavg' score different models (global, fine_tuned; fine_tuned, global)" in text


def test_page_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path, sample_result())
    (tmp_path / "report.html").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*report\.html"):
        write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "report.html", "result.json"]
