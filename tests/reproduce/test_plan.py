import re
from pathlib import Path

import pytest

from fedbnn.base.errors import UserError
from fedbnn.methods import METHODS
from fedbnn.reproduce import plan as plans
from fedbnn.reproduce.cells import expand
from fedbnn.reproduce.plan import find, load, scales
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared
from tests.reproduce.conftest import PLAN, write_plan

SCALES = ["cpu", "digits", "paper", "privacy", "quick", "robustness"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_of_a_plan_that_ships_has_a_valid_configuration(scale):
    plan = load(find(scale))
    for name in plan.contents.studies:
        entries = expand(plan, name, Path("runs"))
        assert entries, name
        assert all(entry.cells for entry in entries), name


def test_the_paper_s_settings_are_those_of_the_paper():
    plan = load(find("paper"))
    entries = expand(plan, "table1", Path("runs"))
    assert {entry.column.data for entry in entries} == {"mnist", "cifar10", "cifar100"}
    for entry in entries:
        config = entry.cells[0].config
        assert (config.rounds, config.training.local_epochs, config.training.warmup_epochs) == (100, 20, 50)
        assert (config.partition.clients, config.data.alignment, config.training.batch_size) == (20, 2000, 128)
        assert config.engine.device == "cuda"
        assert config.partition.classes_per_client == (20 if entry.column.data == "cifar100" else 5)
        if entry.column.size != "full":
            assert config.partition.records_per_class == {"small": 50, "medium": 100}[entry.column.size]
        if config.method == "fedbnn":
            ours = config.methods.fedbnn
            assert (ours.gamma, ours.prior_learning_rate, ours.prior_steps) == (0.7, 1e-4, 100)
            assert ours.learning_rate == 1e-3
        if entry.row.startswith("fedbnn_hetero"):
            shares = {model.name: model.share for model in config.models}
            assert shares == {"vgg9": 0.7, "cnn2": 0.15, "cnn3": 0.15}


@pytest.mark.parametrize(("scale", "few"), [("cpu", 10), ("paper", 50), ("quick", 2)])
def test_figure_2c_takes_records_from_the_share_of_clients_that_it_says(scale, few):
    plan = load(find(scale))
    entries = expand(plan, "figure2c", Path("runs"))
    assert {entry.row for entry in entries} == {"fedbnn", "fedavg", "pfedgp"}
    for entry in entries:
        for cell in entry.cells:
            dealt = cell.config.partition
            assert dealt.small_share == entry.place["x"]
            if dealt.small_share:
                assert dealt.small_records_per_class == few < dealt.records_per_class


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_figure_2c_begins_where_table_1_has_a_number(scale):
    plan = load(find(scale))
    known = {cell.folder for entry in expand(plan, "table1", Path("runs")) for cell in entry.cells}
    begin = [e for e in expand(plan, "figure2c", Path("runs")) if e.place["x"] == 0]
    assert begin
    assert {cell.folder for entry in begin for cell in entry.cells} <= known


def test_a_scale_is_found_in_the_package_before_the_source_tree(tmp_path, monkeypatch):
    assert scales() == SCALES
    write_plan(tmp_path / "cpu")
    monkeypatch.setattr(plans, "SHIPPED", tmp_path)
    assert find("cpu") == tmp_path / "cpu"
    assert find(str(tmp_path / "cpu")) == tmp_path / "cpu"
    with pytest.raises(UserError, match=r"--scale papr.*did you mean 'paper'.*cpu, digits, paper, privacy, quick"):
        find("papr")


def test_the_wheel_holds_every_scale():
    root = Path(__file__).resolve().parents[2]
    text = (root / "pyproject.toml").read_text("utf-8")
    for scale in SCALES:
        assert f'"experiments/{scale}" = "fedbnn/reproduce/scales/{scale}"' in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "curve"', 'kind = "curv"', ["studies.figure2a", "'curv'", "'table', 'curve'"]),
        ('about = ["', 'abuot = ["', ["unknown key 'abuot'", "did you mean 'about'", "title, about, seeds"]),
        ("seeds = [0, 1]", "seeds = []", ["seeds = []", "at least 1"]),
        ("seeds = [0, 1]", 'seeds = ["0"]', ["seeds.0 = '0'", "integer"]),
        ('title = "Figure 2a"', 'tilte = "Figure 2a"', ["studies.figure2a.t"]),
        ('x = "share', 'y = "share', ["studies.figure2a"]),
        ("percent = true", "prcent = true", ["unknown key 'studies.figure2a.prcent'", "did you mean 'percent'"]),
        ("models = [", "modls = [", ["studies.figure2a.lines.1.modls'", "did you mean 'models'", "row, title"]),
        ('method = "fedavg"', 'method = "fedavgg"', ["rows.fedavg.method = 'fedavgg'", "did you mean 'fedavg'"]),
        ('"Ours (Homo)"', '"Ours"', ["rows.fedbnn.published = 'Ours'", "Ours (Homo)", "DP-FedAvg"]),
        ('rows = ["fedavg", "fedbnn"]', 'rows = ["fedbn"]', ["studies.cost.rows = 'fedbn'", "did you mean 'fedbnn'"]),
        ('scores = ["own', 'one_seed = ["local"]\nscores = ["own', ["studies.table1.one_seed = 'local'"]),
        ('panels = [{ row = "fedbnn", data = "digits"', 'panels = [{ row = "fedbnn", data = "digit"', ["'digit'"]),
        ('size = "small", seeds', 'size = "smal", seeds', ["'smal'", "did you mean 'small'", "small, medium"]),
        ('"own_class_accuracy", "ece"]', '"own_accuracy"]', ["studies.table1.scores", "own_class_accuracy"]),
        ('scored = "fine_tuned"', 'scored = "global"\nmodels = ["mlp"]', ["studies.figure2a.lines.2", "'scored'"]),
        ('title = "In', 'title = In', ["cannot be read as TOML"]),
    ],
)  # fmt: skip
def test_a_mistake_in_a_plan_is_one_clear_line(tmp_path, old, new, words):
    assert old in PLAN
    with pytest.raises(UserError) as caught:
        load(write_plan(tmp_path / "tiny", PLAN.replace(old, new, 1)))
    text = str(caught.value)
    assert "\n" not in text
    for word in [str(tmp_path / "tiny" / "plan.toml"), *words]:
        assert word in text


def test_an_override_that_does_not_fit_names_the_plan_the_study_and_the_row(tmp_path):
    wrong = PLAN.replace("privacy.dimensions=8", "privacy.dimension=8")
    plan = load(write_plan(tmp_path / "tiny", wrong))
    with pytest.raises(UserError, match=r"plan.toml: studies.table1, row private on digits: .*'privacy.dimension'"):
        expand(plan, "table1", tmp_path)


def test_later_overrides_win(tmp_path):
    changed = PLAN.replace(
        "[rows.fedbnn]\n", '[rows.fedbnn.on.digits]\nset = ["rounds=3"]\n\n[rows.fedbnn]\nset = ["rounds=2"]\n'
    )
    changed = re.sub(r'(\{ data = "digits", size = "medium", seeds = \[0\]) \}', r'\1, set = ["rounds=4"] }', changed)
    plan = load(write_plan(tmp_path / "tiny", changed))
    by_place = {(e.row, e.place["column"]): e.cells[0].config for e in expand(plan, "table1", tmp_path)}
    assert [by_place["fedbnn", at].rounds for at in (0, 1)] == [3, 4]
    assert [by_place["fedavg", at].rounds for at in (0, 1)] == [1, 4]
    assert {one.rounds for e in expand(plan, "table1", tmp_path, ["rounds=7"]) for one in [e.cells[0].config]} == {7}
    assert [by_place["fedavg", at].partition.records_per_class for at in (0, 1)] == [2, 3]


def test_a_point_writes_its_x_into_the_line_s_setting_and_then_what_it_sets_itself(tmp_path):
    line = """
[[studies.figure2a.lines]]
row = "private"
setting = "privacy.epsilon"
points = [{ x = 3 }, { x = 1e6, label = "∞" }, { x = 5, set = ["privacy.epsilon=4"] }]
"""
    changed = PLAN.replace("\n[studies.calibration]", f"{line}\n[studies.calibration]")
    plan = load(write_plan(tmp_path / "tiny", changed))
    ours = [entry for entry in expand(plan, "figure2a", tmp_path) if entry.row == "private"]
    assert {entry.place["x"]: entry.cells[0].config.privacy.epsilon for entry in ours} == {3: 3.0, 1e6: 1e6, 5: 4.0}


def test_a_preset_is_data_of_every_plan_unless_the_folder_has_a_file_of_its_name(tmp_path):
    preset = load(find("digits")).data["digits-homogeneous"]
    assert preset.parent.name == "presets"
    folder = write_plan(tmp_path / "tiny")
    assert load(folder).data["digits-homogeneous"] == preset
    (folder / "digits-homogeneous.toml").write_text("")
    assert load(folder).data["digits-homogeneous"] == folder / "digits-homogeneous.toml"


def test_every_method_is_on_the_digits_that_it_can_run_on():
    plan = load(find("digits"))
    one, mixed = ([e.row for e in expand(plan, name, Path("runs"))] for name in ("homogeneous", "heterogeneous"))
    assert one == list(METHODS)
    [column] = plan.contents.studies["heterogeneous"].columns
    prepared = Prepared.of(load_config(plan.data[column.data]), mixed)  # raises where a method refuses
    refused = [name for name in METHODS if prepared.refusal(load_config(plan.data[column.data]), name)]
    assert sorted([*mixed, *refused]) == sorted(METHODS)


def test_the_private_picture_shows_the_runs_of_the_private_table():
    plan = load(find("cpu"))
    entries = expand(plan, "budget", Path("runs"))
    for data in ("mnist", "cifar10"):
        here = [(e.row, e.place["x"], e.cells[0].config) for e in entries if e.column.data == data]
        assert {x for row, x, _ in here if row == "fedbnn_hetero"} == {None, 1, 3, 9.98}
        assert {x for row, x, _ in here if row == "dp_fedavg"} == {3, 9.98}
        assert all(config.data.source == data for *_, config in here)
        private = [(x, c.privacy) for row, x, c in here if row == "fedbnn_hetero" and x is not None]
        assert all(p.epsilon == x and p.mechanism == "dp_teacher" for x, p in private)
        assert all(c.methods.dp_fedavg.epsilon == x for row, x, c in here if row == "dp_fedavg")
        assert {row for row, x, _ in here if x is None} == {"fedbnn_hetero", "local_bnn"}
    table = {cell.folder for entry in expand(plan, "private", Path("runs")) for cell in entry.cells}
    assert {cell.folder for entry in entries for cell in entry.cells} <= table
