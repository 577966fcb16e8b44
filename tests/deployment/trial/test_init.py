"""The folder that `fedbnn flower init` writes: what is in it is what `fedbnn run` would have dealt."""

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import Terms, alignment_of, read_terms
from fedbnn.deployment.trial import init
from fedbnn.deployment.trial.init import write_federation
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import small_config

MODELS = 'models=[{name="mlp", options={hidden=[7, 5]}}, {name="cnn2"}]'


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def config():
    return small_config("fedbnn", MODELS)


@pytest.fixture(scope="module")
def written(config, tmp_path_factory) -> tuple[Path, Terms]:
    folder = tmp_path_factory.mktemp("parent") / "federation"
    return folder, write_federation(folder, config, "trial")


def test_every_part_has_its_files_and_nothing_else_is_left(written) -> None:
    folder, terms = written
    site = {"site.toml", "terms.json", "alignment.npz", "records.npz"}
    assert names(folder) == {
        *("pyproject.toml", ".gitignore", "federation/__init__.py", "federation/client_app.py"),
        *("federation/server_app.py", "server/terms.json", "server/alignment.npz", "server/server.toml"),
        *(f"sites/{name}/{file}" for name in terms.sites for file in site),
    }
    assert [entry.name for entry in folder.parent.iterdir()] == ["federation"]


def test_all_parties_hold_the_same_terms_and_the_alignment_set_fits_them(written, config) -> None:
    folder, terms = written
    data = Prepared.of(config, ["fedbnn"]).data
    for place in (folder / "server", *(folder / "sites" / name for name in terms.sites)):
        assert read_terms(place / "terms.json") == terms
        np.testing.assert_array_equal(read_alignment(place / "alignment.npz", terms).raw, alignment_of(data))


def test_a_site_is_the_client_of_a_run_bit_for_bit(written, config) -> None:
    folder, terms = written
    for site in Prepared.of(config, ["fedbnn"]).sites:
        settings = read_site(folder / "sites" / site.client.name / "site.toml")
        assert (settings.name, settings.model.architecture) == (site.client.name, site.client.model.architecture)
        scale = read_alignment(settings.alignment, terms).normalised
        with np.load(settings.data.path, allow_pickle=False) as records:
            assert torch.equal(torch.from_numpy(scale(records["x_train"])), site.client.train.x)
            assert torch.equal(torch.from_numpy(records["y_train"]), site.client.train.y)
            assert torch.equal(torch.from_numpy(scale(records["x_test"])), site.evaluation.x)
            assert torch.equal(torch.from_numpy(records["y_test"]), site.evaluation.y)


def test_the_table_that_a_site_file_shows_in_comments_is_one(written, tmp_path) -> None:
    folder, terms = written
    text = (folder / "sites" / terms.sites[0] / "site.toml").read_text(encoding="utf-8")
    text = text.replace('source = "npz"\npath = "records.npz"\n', "")
    text = re.sub(
        r"^# (?=(source|path|target|columns|test_fraction|epsilon|delta|multiplicity|\[privacy\]))",
        "",
        text,
        flags=re.M,
    )
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(tmp_path / "site.toml")
    assert (site.data.source, site.data.target, site.data.columns) == ("csv", "diagnosis", ("age", "sex", "chol"))
    assert site.privacy is not None
    assert (site.privacy.epsilon, site.privacy.delta) == (3.0, 1e-5)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedbnn", ("privacy.mechanism=dp_teacher", "privacy.epsilon=2.5", "privacy.delta=1e-7")),
        ("dp_fedavg", ("methods.dp_fedavg.epsilon=2.5", "methods.dp_fedavg.delta=1e-7")),
    ],
)
def test_under_a_promise_the_cap_is_what_the_terms_ask_for(tmp_path, method, changes) -> None:
    terms = write_federation(tmp_path / "new", small_config(method, *changes))
    site = read_site(tmp_path / "new" / "sites" / terms.sites[1] / "site.toml")
    assert site.privacy is not None
    assert (site.privacy.epsilon, site.privacy.delta) == (2.5, 1e-7)
    assert not site.shares(terms)


def test_noise_from_a_seed_is_not_deployed(tmp_path) -> None:
    with pytest.raises(UserError, match="noise = 'seed' is for experiments on one machine"):
        write_federation(tmp_path / "new", small_config("dp_fedavg", "methods.dp_fedavg.noise=seed"))
    assert not list(tmp_path.iterdir())


def hospitals(tmp_path: Path, *groups: str) -> list[str]:
    rng = np.random.default_rng(0)
    lines = ["age,chol,ill,clinic"]
    for group in groups:
        lines += [f"{rng.normal():.3f},{rng.normal():.3f},{'yes' if i % 2 else 'no'},{group}" for i in range(40)]
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [
        *(
            "data.source=csv",
            f'data.path="{tmp_path / "patients.csv"}"',
            "data.target=ill",
            "data.client_column=clinic",
        ),
        *("partition.kind=natural", "data.alignment=20", 'models=[{name="mlp"}]', "rounds=1"),
    ]


def test_a_natural_site_is_scored_on_its_own_groups_records(tmp_path) -> None:
    config = load_config(None, hospitals(tmp_path, "north", "St. Mary"))
    terms = write_federation(tmp_path / "new", config)
    data = Prepared.of(config, [config.method]).data
    assert terms.sites == ("St. Mary", "north")
    scored = 0
    for index, name in enumerate(terms.sites):
        with np.load(tmp_path / "new" / "sites" / name / "records.npz", allow_pickle=False) as records:
            own = data.own_mask(index, "test")
            np.testing.assert_array_equal(records["x_test"], data.dataset.x_test[own])
            scored += len(records["y_test"])
    assert scored == len(data.dataset.y_test)


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "a\tb"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name) -> None:
    with pytest.raises(UserError, match="cannot name a folder"):
        write_federation(tmp_path / "new", load_config(None, hospitals(tmp_path, "north", name)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patients.csv"]


@pytest.mark.parametrize("change", ["evaluation.foreign=digits", "data.alignment=100000", "method=fedavg"])
def test_a_configuration_that_cannot_run_leaves_nothing_behind(tmp_path, change) -> None:
    with pytest.raises(UserError):
        write_federation(tmp_path / "new", small_config("fedbnn", MODELS, change))
    assert list(tmp_path.iterdir()) == []


def test_a_bad_name_of_the_run_leaves_nothing_behind(tmp_path, config) -> None:
    with pytest.raises(UserError, match="--run No Capitals"):
        write_federation(tmp_path / "new", config, "No Capitals")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_refused_and_an_empty_one_used(tmp_path, config) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "state").touch()
    with pytest.raises(UserError, match="not empty"):
        write_federation(tmp_path / "full", config)
    (tmp_path / "empty").mkdir()
    assert write_federation(tmp_path / "empty", config).run == "digits-fedbnn"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, config, monkeypatch) -> None:
    def full(path, raw):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(init, "write_alignment", full)
    with pytest.raises(OSError, match="no space"):
        write_federation(tmp_path / "new", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's
def test_only_the_apps_own_lines_travel_to_sites(tmp_path, config) -> None:
    """Flower's default would pack site files, terms and metrics of the whole folder into what every site gets."""
    build = pytest.importorskip("flwr.cli.build")
    terms = write_federation(tmp_path / "new", config)
    run = tmp_path / "new" / "sites" / terms.sites[0] / "state" / "runs" / "a" / "b" / "c" / "d" / "e" / "f" / "g"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}", encoding="utf-8")
    packed = zipfile.ZipFile(io.BytesIO(build.build_fab_from_disk(tmp_path / "new")))
    assert set(packed.namelist()) == {
        *("pyproject.toml", ".info/CONTENT"),
        *(f"federation/{half}.py" for half in ("__init__", "client_app", "server_app")),
    }


def test_flower_finds_both_halves(written) -> None:
    """It looks for them in the text of the modules, without importing any."""
    check = pytest.importorskip("flwr.cli.config_utils").load_and_validate
    config, warnings = check(written[0] / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["config"] == {"server": str(written[0] / "server")}


def test_records_for_calibration_come_beside_those_to_train_on(tmp_path) -> None:
    config = small_config("fedavg", "data.calibration=0.4")
    terms = write_federation(tmp_path / "new", config, "trial")
    data = Prepared.of(config, ["fedavg"]).data
    for index, name in enumerate(terms.sites):
        folder = tmp_path / "new" / "sites" / name
        with np.load(folder / "calibration.npz", allow_pickle=False) as kept, np.load(folder / "records.npz") as rest:
            rows = data.calibration_indices[index]
            np.testing.assert_array_equal(kept["x"], data.dataset.x_train[rows])
            np.testing.assert_array_equal(kept["y"], data.dataset.y_train[rows])
            assert len(rest["x_train"]) == len(data.client_indices[index])
