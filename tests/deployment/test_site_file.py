from pathlib import Path

import pytest

from fedbnn import ModelSettings, UserError
from fedbnn.deployment.site_file import read_site
from fedbnn.privacy import Budget
from tests.deployment.deployment_sample import small_terms

FULL = """
# everything about one site, with comments
name = "Long Beach VA"        # as it stands in the terms
terms = "agreed/terms.json"
alignment = "/srv/alignment.npz"
state = "~/state"
device = "auto"
share_metrics = "no"

[data]
source = "csv"
path = "../records.csv"
target = "sick"
columns = ["age", "weight"]
test_fraction = 0

[model]
name = "mlp"
options = { hidden = [32, 16] }

# the most that may ever be spent
[privacy]
epsilon = 3
delta = 1e-6
multiplicity = 2
"""
LEAST = 'name = "a"\n[data]\npath = "records.npz"\n'


def written(folder: Path, text: str) -> Path:
    (folder / "site.toml").write_text(text, encoding="utf-8")
    return folder / "site.toml"


def test_every_field_is_read_and_paths_start_at_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    site = read_site(written(tmp_path, FULL))
    assert site.name == "Long Beach VA"
    assert site.terms == tmp_path / "agreed" / "terms.json"
    assert site.alignment == Path("/srv/alignment.npz")
    assert site.state == tmp_path / "home" / "state"
    assert site.data.path.resolve() == tmp_path.parent / "records.csv"
    assert (site.data.target, site.data.columns, site.data.test_fraction) == ("sick", ("age", "weight"), 0)
    assert site.model == ModelSettings("mlp", options={"hidden": [32, 16]})
    assert site.privacy is not None
    assert site.privacy.budget == Budget(3.0, 1e-6)
    assert site.privacy.multiplicity == 2


def test_little_has_to_be_said(tmp_path, monkeypatch):
    written(tmp_path, LEAST)
    monkeypatch.chdir(tmp_path)
    site = read_site(Path("site.toml"))
    assert site.data.source == "npz"
    assert site.data.path == tmp_path / "records.npz"
    assert site.state == tmp_path / "state"
    assert site.terms == tmp_path / "terms.json"
    assert site.alignment == tmp_path / "alignment.npz"
    assert site.privacy is None


SEEDED = ("dp_fedavg", 'methods.dp_fedavg.noise="seed"')  # whoever knows the seed takes the noise away


@pytest.mark.parametrize("share", ["auto", "yes", "no"])
@pytest.mark.parametrize(
    ("changes", "promised"),
    [
        (("fedbnn",), False),
        (("fedbnn", "privacy.mechanism=dp_teacher"), True),
        (("dp_fedavg",), True),
        (SEEDED, False),
    ],
)
def test_metrics_leave_only_where_nothing_is_promised(tmp_path, share, changes, promised):
    site = read_site(written(tmp_path, f'share_metrics = "{share}"\n{LEAST}'))
    assert site.shares(small_terms(*changes)) == (share != "no" and not promised)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name is missing"),
        ('name = "a"', "data is missing"),
        (LEAST + 'target = "t"\n', "data: target and columns are for source = 'csv'"),
        (LEAST + 'source = "csv"\n', "data: target is missing"),
        (LEAST + 'source = "csv"\ntarget = "t"\ncolumns = ["a", "a"]\n', "columns names 'a' more than once"),
        (LEAST + 'source = "csv"\ntarget = "t"\ncolumns = ["t"]\n', "columns names the target 't'"),
        (LEAST + 'source = "sql"\n', "data.source = 'sql': Input should be 'npz', 'csv' or 'parquet'"),
        (LEAST + "test_fraction = 1\n", "data.test_fraction = 1"),
        (LEAST + "[model]\nshare = 2.0\n", "share is for configurations"),
        (LEAST + "[privacy]\nepsilon = 3\n", "privacy.delta is missing"),
        (LEAST + "[privacy]\nepsilon = 0\ndelta = 1e-5\n", "privacy.epsilon = 0"),
        (LEAST + "[privacy]\nepsilonn = 3\ndelta = 1e-5\n", "unknown key 'privacy.epsilonn'; did you mean 'epsilon'?"),
        ('device = "gpu"\n' + LEAST, "device = 'gpu': must be auto"),
        ('share_metrics = "maybe"\n' + LEAST, "share_metrics = 'maybe'"),
        ("since = 2020-01-01\n" + LEAST, "dates and times"),
        ("name = ", "cannot be read as TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_field(tmp_path, text, words):
    with pytest.raises(UserError) as error:
        read_site(written(tmp_path, text))
    assert words in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "site.toml"))
    assert "\n" not in str(error.value)


def test_no_file_is_told(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_site(tmp_path / "site.toml")
