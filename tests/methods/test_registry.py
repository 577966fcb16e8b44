"""Methods from outside: by the place of their class, by entry points; and what is said of those that cannot be used."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from fedbabu import FedBABU

from fedbnn.base.errors import UserError
from fedbnn.cli.app import main
from fedbnn.methods import METHODS, FedAvg, registry
from fedbnn.methods.registry import find_method, known_method, summaries
from fedbnn.reproduce.cells import expand
from fedbnn.reproduce.plan import load as load_plan
from fedbnn.runs.config import Config, as_of_today, load_config, parse_config
from fedbnn.runs.experiment import compare

HEADER = """
from pydantic import Field
from fedbnn.base.settings import settings
from fedbnn.federation.method import Method, State
from fedbnn.methods.averaging import Averaging, SharedPoint
from fedbnn.methods.point import Point
"""
MODULE = (
    HEADER
    + """
@settings
class Mine(SharedPoint, Averaging[Point]):
    name = "mine"
    summary = "one of the user's"
    pace: int = 3

@settings
class Clashing(Mine):
    name = "fedavg"

@settings
class Spaced(Mine):
    name = "my method"

@settings
class Odd(Mine):
    name = "model_dump"

@settings
class Demanding(SharedPoint, Averaging[Point]):
    name = "demanding"
    summary = "has a setting that must be given"
    level: int = Field(kw_only=True)

class Bare(Mine):
    name = "bare"

@settings
class Early(Averaging[Point]):
    name = "early"
    summary = "no client yet"
    client_state = Point

def function():
    pass

number = 5
"""
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules of the user's that are not on the path."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    (tmp_path / "own_stateless.py").write_text(
        HEADER + "class A(Averaging[Point]):\n    name = 'a'\n    summary = 'b'\n"
    )
    (tmp_path / "own_failing.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    (tmp_path / "own_trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_imported", {})
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("own_methods", "own_stateless", "own_failing", "own_trap"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def look_anew() -> Iterator[None]:
    """Entry points are looked up once in a process."""
    yield
    registry.installed.cache_clear()


def declare(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """As installed packages do."""
    declared = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in points.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: declared.select(group=group))
    registry.installed.cache_clear()


def test_a_module_of_the_current_folder_is_found_and_comes_last(own: Path) -> None:
    cls = find_method("own_methods:Mine")
    assert (cls.name, cls.__module__) == ("mine", "own_methods")
    assert sys.path[-1] == str(own)
    assert find_method("own_methods:Mine") is cls is known_method("own_methods:Mine")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:Mine", "cannot be imported: No module named 'no_such_module'"),
        ("own_methods:Yours", "cannot be imported: module 'own_methods' has no attribute 'Yours'"),
        ("own_methods:", "cannot be imported: module 'own_methods' has no attribute ''"),
        (":Mine", "cannot be imported: ValueError: Empty module name"),
        ("own_failing:Mine", "cannot be imported: RuntimeError: first line"),
        ("own_stateless:A", "cannot be imported: TypeError: own_stateless.A needs client_state = ... "),
        ("own_methods:function", "cannot be used: it is not a class that is derived from fedbnn.Method"),
        ("own_methods:number", "cannot be used: it is not a class that is derived from fedbnn.Method"),
        ("own_methods:Point", "cannot be used: it is not a class that is derived from fedbnn.Method"),
        ("own_methods:Early", "cannot be used: it lacks client_init, client_update, predict"),
        ("own_methods:Averaging", "cannot be used: it lacks client_init, client_update, predict"),
        ("own_methods:Clashing", "cannot be used: its name = 'fedavg' is that of a method of ours"),
        ("fedbnn.methods.fedavg:FedAvg", "cannot be used: its name = 'fedavg' is that of a method of ours"),
        ("own_methods:Spaced", "cannot be used: its name = 'my method' is not a plain word"),
        ("own_methods:Odd", "cannot be used: its name = 'model_dump' is not a plain word"),
        ("own_methods:Demanding", "cannot be used: its setting 'level' has no default"),
        ("own_methods:Bare", "cannot be used: declare its class with @settings"),
        ("zzz", "unknown (there are fedbnn, fedbnn_paper, fedmd,"),
        ("fedagv", "unknown; did you mean 'fedavg'?"),
    ],
)
def test_what_cannot_be_used_is_one_line(own: Path, name: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(None, [f"method={name}"])
    assert str(caught.value).startswith(f"method = '{name}'")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_stand_under_the_name_of_the_class(own: Path) -> None:
    (own / "run.toml").write_text('method = "own_methods:Mine"\n[methods.mine]\npace = 7\n[methods.fedavg]\n')
    config = load_config(Path("run.toml"), ["methods.mine.learning_rate=0.25"])
    assert (config.method, config.method_name) == ("own_methods:Mine", "mine")
    assert config.chosen() == find_method("own_methods:Mine")(pace=7, learning_rate=0.25)
    written = json.loads(json.dumps(config.to_json()))
    assert written["method"] == "own_methods:Mine"
    assert written["methods"] == {"mine": {"learning_rate": 0.25, "weight_decay": 0.0, "pace": 7}}
    assert parse_config(written).chosen() == config.chosen()
    del written["methods"]["mine"]["pace"]  # as a version of the class without this setting wrote it
    assert as_of_today(written)["methods"]["mine"]["pace"] == 3
    assert config.with_method("fedavg").chosen() == FedAvg()
    assert config.with_method("fedavg").with_method("own_methods:Mine") == config
    assert Config(method="own_methods:Mine").chosen() == find_method("own_methods:Mine")()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("methods.mine.pase=1", "unknown key 'methods.mine.pase'; did you mean 'pace'?"),
        ("methods.mine.pace=fast", "methods.mine.pace = 'fast': Input should be a valid integer"),
        ("methods.mine.learning_rate=-1", "methods.mine.learning_rate = -1: Input should be greater than 0"),
        ("methods.mime.pace=1", "unknown key 'methods.mime'; did you mean 'mine'?"),
        ("methods.mine=3", "methods.mine = 3: "),
        ("methods=3", "methods = 3: "),
    ],
)
def test_a_mistake_in_its_settings_is_one_line(own: Path, change: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(None, ["method=own_methods:Mine", change])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stored_configuration_imports_nothing(own: Path) -> None:
    stored = {**Config().to_json(), "method": "own_trap:Mine", "methods": {"mine": {}}}
    assert as_of_today(stored) is stored
    assert "own_trap" not in sys.modules


def test_entry_points_are_methods_by_name(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"mine": "own_methods:Mine", "other": "own_methods:Mine", "gone": "nowhere:X", "fedmd": "own_trap:X"}
    declare(monkeypatch, **points)
    assert list(registry.installed()) == ["mine", "other", "gone"]  # ours go first
    config = load_config(None, ["method=mine", "methods.mine.pace=5"])
    assert config.chosen() == find_method("mine")(pace=5)
    beside = load_config(None, ["method=fedavg", "methods.mine.pace=5"])  # a table beside the method that is run
    assert beside.chosen() == FedAvg()
    assert beside.with_method("mine").chosen() == config.chosen()
    with pytest.raises(UserError, match=r"method = 'other' cannot be used: its class is called 'mine'"):
        find_method("other")
    with pytest.raises(UserError, match=r"did you mean 'mine'\?"):
        find_method("mina")
    listed = summaries()
    assert list(listed) == [*METHODS, "mine", "other", "gone"]
    assert listed["mine"] == "one of the user's"
    assert "No module named 'nowhere'" in listed["gone"]
    with pytest.raises(SystemExit):
        main(["methods", "--json"])
    assert {one["method"]: one["summary"] for one in json.loads(capsys.readouterr().out)} == listed
    assert "own_trap" not in sys.modules


def test_two_methods_of_one_name_are_not_compared(own: Path, tiny: tuple[str, ...]) -> None:
    (own / "own_twin.py").write_text(MODULE)
    names = ["own_methods:Mine", "own_twin:Mine"]
    with pytest.raises(UserError, match="method = 'own_twin:Mine': another method is called 'mine' too"):
        load_config(None, tiny, names)
    with pytest.raises(UserError, match="--methods: name at least one, and each only once"):
        compare(load_config(None, tiny), names, own / "out")
    sys.modules.pop("own_twin")


PLAN = """
title = "Of the user's"
seeds = [0]
[rows.fedbabu]
title = "FedBABU"
method = "{method}"
set = ["methods.fedbabu.head_epochs=3"]
[studies.one]
title = "One"
kind = "table"
rows = ["fedbabu"]
columns = [{{ data = "digits" }}]
"""


def test_rows_of_a_plan_name_methods_from_outside(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text('models = [{ name = "mlp" }]\n')
    (tmp_path / "plan.toml").write_text(PLAN.format(method="fedbabu:FedBABU"))
    [entry] = expand(load_plan(tmp_path), "one", tmp_path / "runs")
    [cell] = entry.cells
    assert cell.config.chosen() == FedBABU(head_epochs=3)
    assert cell.folder.name.startswith("digits-fedbabu-seed0-")
    (tmp_path / "plan.toml").write_text(PLAN.format(method="fedbabo:FedBABU"))
    with pytest.raises(UserError, match=r"row fedbabu on digits: method = 'fedbabo:FedBABU' cannot be imported"):
        expand(load_plan(tmp_path), "one", tmp_path / "runs")
    (tmp_path / "plan.toml").write_text(PLAN.format(method="zzz"))
    with pytest.raises(UserError, match=r"rows\.fedbabu\.method = 'zzz': no such method"):
        load_plan(tmp_path)


def test_the_console_script_finds_methods_and_models_of_the_current_folder(own: Path, tiny: tuple[str, ...]) -> None:
    """A console script does not look into the current folder by itself; nor do its workers."""
    (own / "own_models.py").write_text(
        "from torch import nn\n"
        "def linear(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    script = own / "bin" / "fedbnn"
    script.parent.mkdir()
    script.write_text("from fedbnn.cli.app import main\nmain()\n")
    changes = [*tiny, 'models=[{name="own_models:linear"}]', "engine.debug=false", "engine.workers=2", "rounds=1"]
    options = [word for change in (*changes, "method=own_methods:Mine") for word in ("--set", change)]
    done = subprocess.run(
        [sys.executable, str(script), "run", *options, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "mine"
    assert (own / "runs" / "digits-mine-seed0" / "report.html").exists()
