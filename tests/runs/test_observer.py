"""Those who hear how a run goes on: several at once, and one that ends it by validation records."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedbnn
from fedbnn.federation.loop import Round
from fedbnn.report import write_report
from fedbnn.runs.config import Config, load_config
from fedbnn.runs.observer import Observers

TINY = (
    "method=local",
    "partition.clients=2",
    "training.warmup_epochs=2",
    "training.local_epochs=2",
    "engine.debug=true",
    "data.validation=100",
    "evaluation.split=validation",
    'models=[{name="mlp"}]',
)


def tiny(*more: str) -> Config:
    return load_config(None, [*TINY, *more])


class Told(fedbnn.Observer):
    """Writes down what it hears."""

    def __init__(self, last: int = -1) -> None:
        self.heard: list[str] = []
        self.last = last

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self.heard.append(f"{title} {config.rounds} {clients} {round_number}")

    def earlier(self, curve: Any) -> None:
        self.heard.append(f"earlier {curve['round']}")

    def round_done(self, record: Round) -> None:
        self.heard.append(f"round {record.number}")
        if record.number == self.last:
            raise KeyboardInterrupt

    def run_finished(self, result: dict[str, Any]) -> None:
        self.heard.append(f"finished {result['rounds']}")

    def note(self, text: str) -> None:
        self.heard.append(text)


class Falling(fedbnn.EarlyStopping):
    """The same by scores that are given."""

    def __init__(self, values: list[float], **given: Any) -> None:
        super().__init__(**given)
        self.values = values

    def stopped_after(self) -> int | None:
        for number, value in enumerate(self.values):
            self.earlier({"round": [number], self.score: [value]})
            if self.stop():
                return number
        return None


def test_several_hear_the_same_and_a_run_into_a_text_path_is_as_any(tmp_path: Path) -> None:
    one, other = Told(), Told()
    result = fedbnn.run(tiny("rounds=1"), str(tmp_path / "run"), observer=[one, other])
    assert one.heard == other.heard == ["local 1 2 -1", "round 0", "round 1", "finished 1"]
    assert "stopped" not in result


@pytest.mark.parametrize(
    ("values", "given", "last"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2}, 4),
        ([3, 2, 1, 2, 0.5, 2], {"patience": 2}, None),
        ([1, 0.8, 0.7, 0.7], {"patience": 2, "least": 0.15}, 3),  # 0.8 is better than 1 by more, 0.7 than 0.8 is not
        ([0.1, 0.2, 0.3, 0.2], {"patience": 1, "score": "own_class_accuracy"}, 3),
        ([1, math.nan, math.nan, math.nan], {"patience": 3}, 3),
        ([1, 2], {"patience": 1}, 1),
    ],
)
def test_patience_is_counted_from_the_best(values: list[float], given: dict[str, Any], last: int | None) -> None:
    assert Falling(values, **given).stopped_after() == last


def test_a_run_stops_by_itself_and_says_so_also_after_a_stop_in_between(tmp_path: Path) -> None:
    """A score must be better by 10 to count: rounds 1 and 2 are not, and the run ends."""
    config = tiny("rounds=6", "checkpoint_every=5")
    stopping, told = fedbnn.EarlyStopping("brier", patience=2, least=10), Told()
    result = fedbnn.run(config, tmp_path / "run", observer=[stopping, told])
    assert result["rounds"] == 2
    assert result["stopped"].startswith("Brier score on validation records was best in round 0 (")
    assert told.heard[-2:] == [f"stopped after round 2 of 6: {result['stopped']}", "finished 2"]
    assert result["curve"]["brier"][0] == stopping.best
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    write_report(tmp_path / "run")

    # Three rounds from the start end with the same scores: how it stopped has no part in them.
    whole = fedbnn.run(replace(config, rounds=2), tmp_path / "whole")
    assert whole["per_client"]["nll"] == result["per_client"]["nll"]
    assert whole["curve"]["nll"] == result["curve"]["nll"]

    # Stopped by the user after round 1 and gone on with: what was scored before still counts.
    config = replace(config, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        fedbnn.run(config, tmp_path / "twice", observer=Told(last=1))
    again = Told()
    second = fedbnn.run(
        config, tmp_path / "twice", resume=True, observer=[again, fedbnn.EarlyStopping("brier", 2, least=10)]
    )
    assert again.heard[:2] == ["local 6 2 1", "earlier [0, 1]"]
    assert second["stopped"] == result["stopped"]
    assert second["per_client"]["nll"] == result["per_client"]["nll"]


def test_test_records_may_not_choose(tmp_path: Path) -> None:
    config = tiny("evaluation.split=test")
    with pytest.raises(fedbnn.UserError, match="scored on test records, which may not choose the number of rounds"):
        fedbnn.run(config, tmp_path / "run", observer=fedbnn.EarlyStopping())
    with pytest.raises(fedbnn.UserError, match="scored on test records"):
        fedbnn.compare(config, ["local"], tmp_path / "all", observer=fedbnn.EarlyStopping())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"score": "accuracy"}, "score = 'accuracy'; did you mean 'own_class_accuracy'? (one of: "),
        ({"score": 3}, "score = 3"),
        ({"patience": 0}, "patience = 0: rounds without a better score, a whole number from 1 up"),
        ({"patience": 1.5}, "patience = 1.5:"),
        ({"least": -1}, "least = -1: by how much"),
        ({"least": math.nan}, "least = nan:"),
    ],
)
def test_mistakes_in_early_stopping_are_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(fedbnn.UserError) as error:
        fedbnn.EarlyStopping(**given)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observer": print}, "observer: 'builtin_function_or_method' is no fedbnn.Observer"),
        ({"observer": [Told]}, "observer: 'Told' is no fedbnn.Observer; give an instance, not the class"),
        ({"config": {"rounds": 3}}, "config: a 'dict' is no fedbnn.Config; make one"),
        ({"out": 3}, "out: a 'int' is no path of a folder"),
        ({"out": "a\0b"}, "out: no file can have such a name"),
    ],
)
def test_mistakes_in_arguments_are_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"config": tiny(), "out": tmp_path / "run", **change}
    with pytest.raises(fedbnn.UserError) as error:
        fedbnn.run(**given)
    assert str(error.value).startswith(words)
    assert not list(tmp_path.iterdir())


def test_flower_holds_all_rounds_and_refuses_one_that_stops(tmp_path: Path) -> None:
    with pytest.raises(fedbnn.UserError, match="'flower-sim' holds all its rounds"):
        fedbnn.run(tiny("engine.kind=flower-sim"), tmp_path / "run", observer=[Told(), fedbnn.EarlyStopping()])


def test_nobody_is_an_observer_too() -> None:
    assert not Observers(None).stop()
    assert not Observers(()).stops
