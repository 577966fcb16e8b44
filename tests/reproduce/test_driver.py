import json
import shutil

import pytest

from fedbnn.base.errors import UserError
from fedbnn.reproduce import driver
from fedbnn.reproduce.driver import Clock, Selection, Watcher
from fedbnn.reproduce.plan import load


def contents(folder):
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def test_every_row_comes_once_before_further_seeds(plan, tmp_path):
    work = driver.prepare(plan, ["table1"], tmp_path)
    order = [(cell.size, cell.row, cell.config.seed) for cell in work.cells]
    rows = ["fedavg", "fedbnn", "private"]
    assert order == [("small", r, 0) for r in rows] + [("medium", r, 0) for r in rows] + [("small", r, 1) for r in rows]


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(rows=["private"]), {("private", "small", 0), ("private", "small", 1), ("private", "medium", 0)}),
        (Selection(rows=["fedavg"], sizes=["medium"]), {("fedavg", "medium", 0)}),
        (Selection(rows=["fedavg"], seeds=[1]), {("fedavg", "small", 1)}),
        (Selection(rows=["fedavg"], data=["digits"], seeds=[1]), {("fedavg", "small", 1)}),
    ],
)
def test_a_selection_takes_what_it_names(plan, tmp_path, selection, taken):
    work = driver.prepare(plan, ["table1"], tmp_path, selection)
    assert {(cell.row, cell.size, cell.config.seed) for cell in work.cells} == taken


def test_rows_are_also_selected_by_their_method(tmp_path, folder):
    text = (
        (folder / "plan.toml").read_text().replace("[rows.private]", "[rows.secret]").replace('"private"', '"secret"')
    )
    text = text.replace("[rows.fedbnn]", "[rows.ours]").replace('"fedbnn", "secret"', '"ours", "secret"')
    (folder / "plan.toml").write_text(text.split("[studies.figure2a]")[0])
    work = driver.prepare(load(folder), ["table1"], tmp_path, Selection(rows=["fedbnn"]))
    assert {cell.row for cell in work.cells} == {"ours", "secret"}


def test_results_of_runs_that_are_not_here_are_kept_and_only_the_others_are_missing(plan, tmp_path):
    """As in a clone, where results are committed and runs are not."""
    out = tmp_path / "out"
    first = driver.prepare(plan, ["table1"], tmp_path / "there", Selection(rows=["fedavg"], sizes=["small"]))
    assert driver.run(first, out) == []
    committed = json.loads((out / "table1.json").read_text())
    here = tmp_path / "here"
    work = driver.prepare(plan, ["table1"], here, Selection(rows=["fedavg"]))
    work.write(out)
    assert json.loads((out / "table1.json").read_text()) == committed
    assert driver.run(work.lacking(out), out) == []
    assert [path.name for path in here.iterdir()] == [cell.folder.name for cell in work.cells if cell.size == "medium"]
    runs = {run["run"] for entry in json.loads((out / "table1.json").read_text())["entries"] for run in entry["runs"]}
    assert runs == {cell.folder.name for cell in work.cells}
    changed = driver.prepare(plan, ["table1"], here, Selection(rows=["fedavg"]), ["training.local_epochs=3"])
    changed.write(out)  # another configuration is another run
    assert not any(entry["runs"] for entry in json.loads((out / "table1.json").read_text())["entries"])


def test_a_run_of_a_version_that_scored_fewer_models_is_missing(plan, tmp_path):
    out, path = tmp_path / "out", tmp_path / "out" / "table1.json"
    work = driver.prepare(plan, ["table1"], tmp_path / "runs", Selection(rows=["fedavg"], sizes=["small"]))
    assert driver.run(work, out) == []
    assert work.lacking(out).cells == []
    written = json.loads(path.read_text())
    entry = next(entry for entry in written["entries"] if entry["runs"])
    del entry["runs"][0]["variants"]["global_own_prior"]
    path.write_text(json.dumps(written))
    assert [cell.folder.name for cell in work.lacking(out).cells] == [entry["runs"][0]["run"]]


def test_studies_know_each_others_runs_and_diagrams_only_those_with_bins(plan, tmp_path, done):
    """Results were committed of some studies; others of the plan are about the same runs."""
    results, _, _ = done

    def written(study: str, committed: str) -> list[dict]:
        out = tmp_path / f"{study} from {committed}"
        out.mkdir()
        shutil.copy(results / f"{committed}.json", out)
        work = driver.prepare(plan, [study], tmp_path / "nowhere")
        work.write(out)
        return [run for entry in json.loads((out / f"{study}.json").read_text())["entries"] for run in entry["runs"]]

    known = {run["run"] for run in written("table1", committed="table1")}
    shared = written("cost", committed="table1")
    assert shared
    assert {run["run"] for run in shared} < known
    assert written("calibration", committed="table1") == []
    plain = written("cost", committed="calibration")
    assert {run["run"] for run in plain} < known
    assert plain
    assert not any("reliability" in run for run in plain)
    assert all("reliability" in run for run in written("calibration", committed="calibration"))


def test_where_clients_ran_is_no_change_of_a_study(plan, tmp_path):
    changes = ["engine.workers=1", "rounds=2"]
    driver.prepare(plan, ["table1"], tmp_path / "runs", changes=changes).write(tmp_path)
    assert json.loads((tmp_path / "table1.json").read_text())["changed"] == ["rounds=2"]
    assert "Changed on the command line: rounds=2." in (tmp_path / "table1.md").read_text()


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(rows=["fedbn"]), ["--methods 'fedbn'", "did you mean 'fedbnn'", "fedavg, fedbnn, private"]),
        (Selection(data=["mnist"]), ["--datasets 'mnist'", "digits"]),
        (Selection(sizes=["full"]), ["--sizes 'full'", "small, medium"]),
        (Selection(seeds=[7]), ["--seeds '7'", "0, 1"]),
    ],
)
def test_a_selection_of_what_is_not_there_is_refused(plan, tmp_path, selection, words):
    with pytest.raises(UserError) as caught:
        driver.prepare(plan, ["table1"], tmp_path, selection)
    assert all(word in str(caught.value) for word in words)


def test_finished_cells_are_not_run_again_and_tables_grow(plan, tmp_path, done):
    out, runs = tmp_path / "out", tmp_path / "runs"
    first = driver.prepare(plan, ["table1"], runs, Selection(rows=["fedavg"], seeds=[0], sizes=["small"]))
    assert driver.run(first, out) == []
    partial = (out / "table1.md").read_text()
    assert partial.count("not run") > 0
    assert "(1 of 2 seeds)" in partial
    assert "1 of 9 runs are finished." in partial
    before = contents(runs)
    assert sorted({name.split("/")[0] for name in before}) == [first.cells[0].folder.name]
    assert driver.run(driver.prepare(plan, driver.choose(plan, ["all"]), runs), out) == []
    after = contents(runs)
    assert {name: after[name] for name in before} == before
    assert "not run" not in (out / "table1.md").read_text()
    # and the whole is what one go makes
    for name in ("table1", "figure2a", "calibration", "cost"):
        ours, theirs = (json.loads((folder / f"{name}.json").read_text()) for folder in (out, done[0]))
        assert without_times(_sound(ours)) == without_times(_sound(theirs))


def _sound(study):
    """Without the rows whose noise comes from the operating system."""
    return study | {"entries": [entry for entry in study["entries"] if entry["row"] != "private"]}


class Stop(Watcher):
    """Ctrl-C in the second cell, once its first client is done with round 1."""

    def __init__(self):
        self.cells = 0

    def cell_started(self, cell, left):
        self.cells += 1

    def client_done(self, activity, round_number, client):
        if self.cells == 2 and round_number == 1 and client == 0:
            raise KeyboardInterrupt


def test_work_that_was_stopped_goes_on(plan, tmp_path, done):
    selection = Selection(rows=["fedavg", "fedbnn"], sizes=["small"], seeds=[0])
    work = driver.prepare(plan, ["table1"], tmp_path / "runs", selection)
    with pytest.raises(KeyboardInterrupt):
        driver.run(work, tmp_path / "out", Stop())
    finished, stopped = work.cells
    assert finished.result()
    assert stopped.result() is None
    assert stopped.started
    assert "1 of 9 runs are finished." in (tmp_path / "out" / "table1.md").read_text()
    before = contents(finished.folder)
    assert driver.run(work, tmp_path / "out") == []
    assert contents(finished.folder) == before
    whole = done[1]
    for cell in work.cells:
        assert without_times(cell.result()) == without_times(whole[cell.folder.name])


def test_a_cell_that_fails_is_told_of_and_the_others_go_on(plan, tmp_path):
    work = driver.prepare(plan, ["table1"], tmp_path / "runs", Selection(sizes=["small"], seeds=[0]))
    broken = work.cells[1]
    broken.folder.mkdir(parents=True)
    (broken.folder / "stray").write_text("")
    [problem] = driver.run(work, tmp_path / "out")
    assert problem.startswith("fedbnn on digits small, seed 0: ")
    assert "holds no run" in problem
    assert [cell.result() is not None for cell in work.cells] == [True, False, True]


def test_missing_data_stops_everything_before_the_first_cell(plan, tmp_path):
    work = driver.prepare(plan, ["table1"], tmp_path / "runs", None, ['data.source="npz"', 'data.path="nowhere.npz"'])
    with pytest.raises(UserError, match=r"fedavg on digits small, seed 0: data.path = 'nowhere.npz'.*--datasets"):
        driver.run(work, tmp_path / "out")
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "out").exists()


def test_a_method_that_cannot_run_stops_everything_before_the_first_cell(plan, tmp_path):
    mixed = ['models=[{name="mlp"},{name="cnn2"}]']
    work = driver.prepare(plan, ["table1"], tmp_path / "runs", None, mixed)
    with pytest.raises(UserError, match="averages weights"):
        driver.run(work, tmp_path / "out")
    assert not (tmp_path / "runs").exists()


def test_states_of_finished_runs_are_not_kept(done):
    assert not [path for cell in done[2].cells for path in cell.folder.rglob("*.safetensors")]


def test_the_time_left_is_learned_from_cells_alike(plan, tmp_path):
    small = {c.row: c for c in driver.prepare(plan, ["table1"], tmp_path, Selection(sizes=["small"], seeds=[0])).cells}
    medium = {c.row: c for c in driver.prepare(plan, ["table1"], tmp_path, Selection(sizes=["medium"])).cells}
    clock = Clock()
    assert clock.estimate(small["fedavg"]) is None
    assert clock.left([small["fedavg"]]) is None
    assert clock.left([]) == 0
    clock.learn(small["fedavg"], 10.0)
    assert clock.estimate(small["fedbnn"]) == 10.0
    clock.learn(small["fedbnn"], 40.0)
    assert clock.estimate(medium["fedavg"]) == 10.0
    assert clock.estimate(medium["private"]) == 40.0
    clock.learn(medium["fedavg"], 20.0)
    assert clock.estimate(medium["fedavg"]) == 20.0
    assert clock.estimate(small["fedavg"]) == 10.0
    assert clock.left([medium["fedavg"], small["fedbnn"]]) == 60.0
