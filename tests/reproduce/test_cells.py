import json

import pytest

from fedbnn.base.errors import UserError
from fedbnn.reproduce import driver
from fedbnn.reproduce.cells import expand, identity
from fedbnn.reproduce.plan import load
from fedbnn.runs.config import Config, load_config
from tests.reproduce.conftest import PLAN, write_plan


def test_equal_configurations_of_different_studies_are_one_run(plan, tmp_path):
    table, curve = expand(plan, "table1", tmp_path), expand(plan, "figure2a", tmp_path)
    [from_table] = [e.cells[0] for e in table if e.row == "fedbnn" and e.place["column"] == 0]
    [from_curve] = [e.cells[0] for e in curve if e.place == {"column": 0, "line": 0, "x": 0.0}]
    assert from_table.folder == from_curve.folder
    work = driver.prepare(plan, driver.choose(plan, ["all"]), tmp_path)
    folders = [cell.folder for cell in work.cells]
    assert len(folders) == len(set(folders))
    titles = [cell.title for cell in work.cells]
    assert len(set(titles)) == len(titles)
    assert "fedbnn on digits small (figure2a at 0.5), seed 0" in titles
    # 3 rows x (2 + 1 seeds), and in the figure only the mixed federation is new
    assert len(folders) == 10


def test_a_row_can_have_one_seed_where_others_have_more(tmp_path):
    plan = load(write_plan(tmp_path / "tiny", PLAN.replace("columns = [{", 'one_seed = ["private"]\ncolumns = [{', 1)))
    seeds = {(e.row, e.column.size): [c.config.seed for c in e.cells] for e in expand(plan, "table1", tmp_path)}
    assert seeds["private", "small"] == seeds["private", "medium"] == seeds["fedbnn", "medium"] == [0]
    assert seeds["fedavg", "small"] == seeds["fedbnn", "small"] == [0, 1]


@pytest.mark.parametrize(
    "change",
    ["seed=1", "rounds=2", 'method="fedmd"', "methods.fedbnn.gamma=0.5", "data.alignment=30", 'models=[{name="mlp"}]'],
)
def test_whatever_changes_a_result_changes_the_identity(change):
    assert identity(load_config(None, [change])) != identity(Config())


@pytest.mark.parametrize("change", ["engine.workers=3", "methods.fedmd.gamma=0.5", "rounds=12"])
def test_what_changes_no_result_keeps_it(change):
    assert identity(load_config(None, [change])) == identity(Config())


def test_a_new_setting_at_its_default_keeps_finished_runs(monkeypatch):
    config = load_config(None, ["rounds=2"])
    before, honest = identity(config), Config.to_json

    def grown(self):
        found = honest(self)
        found["data"]["novel"] = 7
        return found

    monkeypatch.setattr(Config, "to_json", grown)
    assert identity(config) == before


def test_a_run_whose_settings_are_no_longer_the_same_is_refused(plan, tmp_path):
    cell = expand(plan, "table1", tmp_path / "runs")[0].cells[0]
    cell.folder.mkdir(parents=True)
    config = cell.config.to_json()
    config["methods"]["fedavg"]["learning_rate"] = 0.5
    (cell.folder / "config.json").write_text(json.dumps(config))
    assert cell.result() is None
    (cell.folder / "result.json").write_text('{"seconds": 1}')
    with pytest.raises(UserError, match=r"methods.fedavg.learning_rate was 0.5, is .*delete it"):
        cell.result()


def test_a_finished_run_without_a_newer_setting_is_taken_where_that_stands_at_its_default(plan, tmp_path):
    first, other = (
        expand(plan, "table1", tmp_path / "runs", [f"participation={share}"])[0].cells[0] for share in (1.0, 0.5)
    )
    for cell in (first, other):
        cell.folder.mkdir(parents=True)
        config = cell.config.to_json()
        del config["participation"]
        (cell.folder / "config.json").write_text(json.dumps(config))
        (cell.folder / "result.json").write_text('{"seconds": 1}')
    assert first.result() == {"seconds": 1}
    with pytest.raises(UserError, match=r"participation was 1\.0, is 0\.5"):
        other.result()
