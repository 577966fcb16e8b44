import json
import math

import numpy as np
import pytest

from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import run
from fedbnn.runs.folder import RunFolder

KEYS = {
    "method",
    "seed",
    "rounds",
    "clients",
    "own_class_accuracy",
    "all_class_accuracy",
    "nll",
    "ece",
    "mce",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "seconds",
    "per_client",
    "curve",
}
MEANS = ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "all_class_nll")


def ece_and_mce(lines):
    """From the definition: pool the clients' bins, weigh the gaps by the bins' counts."""
    count, confidence, correct = (
        np.sum([line["reliability"][name] for line in lines], axis=0)
        for name in ("count", "confidence_sum", "correct_sum")
    )
    gaps = np.abs(correct[count > 0] - confidence[count > 0]) / count[count > 0]
    return float((gaps * count[count > 0]).sum() / count.sum()), float(gaps.max())


class Finished:
    """A finished run: what was returned and what is on disk."""

    def __init__(self, path, overrides):
        self.path = path
        self.returned = run(load_config(None, overrides), path)
        self.result = json.loads((path / "result.json").read_text())
        self.lines = RunFolder(path).metrics()

    def of_round(self, number):
        return [line for line in self.lines if line["round"] == number]


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny):
    return Finished(tmp_path_factory.mktemp("results") / "run", tiny)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory, tiny):
    """Every second round scored, and a third of the clients in each round."""
    overrides = [
        *tiny,
        "method=fedmd",
        "rounds=5",
        "evaluation.every=2",
        "participation=0.3",
        "partition.clients=4",
    ]
    return Finished(tmp_path_factory.mktemp("results") / "sparse", overrides)


def test_what_is_returned_is_what_is_written(done):
    assert done.returned == done.result


def test_all_keys_are_there(done):
    assert done.result.keys() >= KEYS
    scores = {*MEANS, "ece", "mce"}
    assert done.result["per_client"].keys() >= scores | {"bytes_up", "bytes_down", "seconds", "name", "model"}
    assert done.result["curve"].keys() == {"round", "seconds", *scores}


def test_what_was_run_is_written_down(done):
    result = done.result
    assert (result["method"], result["seed"], result["rounds"], result["clients"]) == ("fedbnn", 0, 2, 3)
    assert (result["dataset"], result["alignment_points"], result["split"]) == ("digits", 20, "test")
    assert result["class_names"] == [str(digit) for digit in range(10)]


def test_per_client_lists_have_one_entry_a_client(done):
    assert {len(values) for values in done.result["per_client"].values()} == {3}
    per_client = done.result["per_client"]
    assert per_client["name"] == ["client-0", "client-1", "client-2"]
    assert per_client["model"] == ["mlp"] * 3
    assert per_client["weights"] == [64 * 128 + 128 + 128 * 10 + 10] * 3
    assert per_client["records"] == [5 * 8] * 3
    assert all(len(classes) == 5 for classes in per_client["classes"])


@pytest.mark.parametrize("score", MEANS)
def test_headline_scores_are_means_over_clients(done, score):
    values = done.result["per_client"][score]
    assert done.result[score] == pytest.approx(math.fsum(values) / 3, rel=1e-12)
    assert len(set(values)) > 1


def test_calibration_errors_are_those_of_the_pooled_bins(done):
    ece, mce = ece_and_mce(done.of_round(2))
    assert done.result["ece"] == pytest.approx(ece, rel=1e-12)
    assert done.result["mce"] == pytest.approx(mce, rel=1e-12)
    assert ece_and_mce([done.result])[0] == pytest.approx(ece, rel=1e-12)
    # Pooling is not averaging, or this test could not tell them apart.
    assert done.result["ece"] != pytest.approx(np.mean(done.result["per_client"]["ece"]), rel=1e-6)


def test_scores_of_the_result_are_those_of_the_last_round(done):
    for score in (*MEANS, "ece", "mce"):
        assert done.result["per_client"][score] == [line[score] for line in done.of_round(2)]


def test_the_curve_has_every_scored_round(done):
    curve = done.result["curve"]
    assert curve["round"] == [0, 1, 2]
    assert {len(values) for values in curve.values()} == {3}
    for at, number in enumerate(curve["round"]):
        lines = done.of_round(number)
        for score in MEANS:
            assert curve[score][at] == pytest.approx(np.mean([line[score] for line in lines]), rel=1e-12)
        assert (curve["ece"][at], curve["mce"][at]) == pytest.approx(ece_and_mce(lines), rel=1e-12)
    for score in (*MEANS, "ece", "mce"):
        assert curve[score][-1] == pytest.approx(done.result[score], rel=1e-12)


def test_seconds_add_up(done):
    curve = done.result["curve"]["seconds"]
    assert curve == sorted(curve)
    assert curve[0] > 0
    assert done.result["seconds"] == pytest.approx(curve[-1], rel=1e-9)
    for client, seconds in enumerate(done.result["per_client"]["seconds"]):
        turns = [line["seconds"] for line in done.lines if line["client"] == client]
        assert seconds == pytest.approx(math.fsum(turns), rel=1e-9)
    assert math.fsum(done.result["per_client"]["seconds"]) <= done.result["seconds"]


def test_bytes_are_those_of_the_outputs_on_the_alignment_set(done):
    expected = 20 * 10 * 4
    assert done.result["bytes_up_per_client_round"] == done.result["bytes_down_per_client_round"] == expected
    assert done.result["per_client"]["bytes_up"] == done.result["per_client"]["bytes_down"] == [expected] * 3
    assert [line["bytes_down"] for line in done.of_round(0)] == [0] * 3
    assert [line["bytes_up"] for line in done.lines] == [expected] * 9


def test_one_line_per_round_and_client(done):
    text = (done.path / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 9
    assert [(line["round"], line["client"]) for line in done.lines] == [(r, c) for r in range(3) for c in range(3)]
    assert not any("rejected" in line for line in done.lines)


def test_a_method_without_exchange_sends_nothing(tmp_path, tiny):
    alone = Finished(tmp_path / "run", [*tiny, "method=local_bnn", "rounds=1"])
    assert alone.result["bytes_up_per_client_round"] == alone.result["bytes_down_per_client_round"] == 0
    assert {line["bytes_up"] for line in alone.lines} == {0}


def test_rounds_between_evaluations_are_not_scored_but_the_last_is(sparse):
    assert sparse.result["curve"]["round"] == [0, 2, 4, 5]
    for number in range(6):
        scored = {line["client"] for line in sparse.of_round(number) if "nll" in line}
        assert scored == (set(range(4)) if number in (0, 2, 4, 5) else set())


def test_only_those_that_took_part_have_traffic(sparse):
    for number in range(1, 6):
        assert sum("bytes_up" in line for line in sparse.of_round(number)) == 2  # ceil(0.3 * 4)
    assert sum("bytes_up" in line for line in sparse.of_round(0)) == 4
    for client, up in enumerate(sparse.result["per_client"]["bytes_up"]):
        took_part = [line for line in sparse.lines if line["client"] == client and line["round"] and "bytes_up" in line]
        assert up == (800 if took_part else 0)


def test_no_line_is_written_twice(sparse):
    keys = [(line["round"], line["client"]) for line in sparse.lines]
    assert len(keys) == len(set(keys))


def test_the_last_round_is_scored_where_every_is_larger_than_all_rounds(tmp_path, tiny):
    late = Finished(tmp_path / "run", [*tiny, "method=local", "evaluation.every=50"])
    assert late.result["curve"]["round"] == [0, 2]


def test_the_validation_split_is_scored_when_asked(tmp_path, tiny):
    tuned = Finished(
        tmp_path / "run", [*tiny, "method=local", "rounds=1", "data.validation=60", "evaluation.split=validation"]
    )
    assert tuned.result["split"] == "validation"
    own = sum(sum(line["reliability"]["count"]) for line in tuned.of_round(1))
    assert 0 < own < 3 * 60


def test_another_seed_is_another_result(tmp_path, tiny, done):
    other = Finished(tmp_path / "run", [*tiny, "seed=1"])
    assert other.result["seed"] == 1
    assert other.result["nll"] != done.result["nll"]


def test_the_same_seed_is_the_same_result(tmp_path, tiny, done):
    again = Finished(tmp_path / "run", tiny)
    for name in ("own_class_accuracy", "nll", "ece", "mce", "reliability", "uncertainty"):
        assert again.result[name] == done.result[name]


def test_nothing_but_the_run_is_in_the_folder(done):
    assert sorted(path.name for path in done.path.iterdir()) == [
        ".lock",
        "checkpoint",
        "config.json",
        "metrics.jsonl",
        "partition.json",
        "report.html",
        "result.json",
    ]
