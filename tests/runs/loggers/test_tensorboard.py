"""Event files, read back by TensorBoard's own reader, hold what the run folder holds."""

import json
import sys
from pathlib import Path

import pytest

import fedbnn
from fedbnn.federation.evaluation import SCORES
from fedbnn.runs.loggers import LOGGERS, make_loggers
from tests.federation_sample import small_sites
from tests.runs.run_sample import tiny

pytest.importorskip("tensorboard")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_it_holds_what_the_run_folder_holds_also_after_a_stop(tmp_path: Path) -> None:
    config, out = tiny("rounds=3", "method=fedavg", "checkpoint_every=2"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedbnn.run(config, out, observer=[fedbnn.TensorBoard(out / "tensorboard"), Stop()])
    # Round 1 was not saved: it is done again, and stands there once.
    result = fedbnn.run(config, out, resume=True, observer=make_loggers(["tensorboard"], out))
    found = read(out / "tensorboard" / "fedavg-seed0")
    for name in SCORES:
        told = [(number, pytest.approx(value)) for number, value in enumerate(result["curve"][name])]
        assert found[f"scores/{name}"] == told
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for number in range(4):
        here = [line for line in lines if line["round"] == number]
        assert found["round/bytes_up"][number] == (number, pytest.approx(sum(one["bytes_up"] for one in here) / 2))
        for variant, scores in here[0]["variants"].items():
            means = sum(one["variants"][variant]["nll"] for one in here) / 2
            assert found[f"{variant}/nll"][number] == (number, pytest.approx(means))
            assert scores


class Stop(fedbnn.Observer):
    def round_done(self, record: object) -> None:
        if getattr(record, "number", 0) == 1:
            raise KeyboardInterrupt


def test_a_federation_piece_by_piece_writes_into_the_folder_itself(tmp_path: Path) -> None:
    board = fedbnn.TensorBoard(tmp_path / "logs")
    [record] = fedbnn.Federation(fedbnn.Local(), small_sites(clients=2, models=("mlp",))).run(0, board)
    board.close()
    own = [one["personal"].scores["own_class_accuracy"] for one in record.scores.values()]
    assert read(tmp_path / "logs")["scores/own_class_accuracy"] == [(0, pytest.approx(sum(own) / 2))]


def test_what_is_not_installed_or_not_known_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(fedbnn.UserError, match=r"--log tensorbord; did you mean 'tensorboard'\? \(one of: tensorboard"):
        make_loggers(["tensorbord"], tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    for name in LOGGERS:
        with pytest.raises(fedbnn.UserError, match=rf"needs pip install 'fedbnn\[{name}\]'"):
            make_loggers([name], tmp_path)
