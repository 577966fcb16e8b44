"""Sites with tables of their own under terms that describe columns."""

import csv
import dataclasses
import json
import logging

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.cli.app import main
from fedbnn.data import federate, load_dataset
from fedbnn.deployment.alignment import write_alignment
from fedbnn.deployment.predict import predict
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_check import check_site
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import Terms, alignment_of, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.loop import roster_of
from fedbnn.runs.config import parse_config
from tests.data.tables.hospitals import HEADER, records, settings, write
from tests.deployment.deployment_sample import HandServer, site_nodes

ROWS = {
    "Bern": [row | {"patient_id": f"B{k}"} for k, row in enumerate(records(1, 24)["Zürich"])],
    "Graz": records(each=24)["Graz"],
}


def config_of(folder, **changes):
    raw = {
        "method": "fedavg",
        "rounds": 1,
        "partition": {"kind": "natural"},
        "models": [{"name": "mlp", "options": {"hidden": [4]}}],
        "training": {"local_epochs": 1, "warmup_epochs": 1},
    }
    return dataclasses.replace(parse_config(raw | changes), data=settings(folder, alignment=12))


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    """What was agreed on, by way of data that is like the sites' own."""
    folder = tmp_path_factory.mktemp("agreed")
    write(folder / "hospitals", ROWS)
    config = config_of(folder / "hospitals")
    data = federate(load_dataset(config.data), config.data, config.partition, 0)
    return Terms.of(config, data, "trial"), data


def site(folder, agreed, name="Graz", extra="", header=HEADER, rows=None, terms=None):
    """A site's folder, with a table of its own."""
    folder.mkdir(exist_ok=True)
    with (folder / "own.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, header, delimiter=";", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(ROWS[name] if rows is None else rows)
    (folder / "terms.json").write_text((terms or agreed[0]).to_json(), encoding="utf-8")
    write_alignment(folder / "alignment.npz", alignment_of(agreed[1]))
    (folder / "site.toml").write_text(
        f"name = '{name}'\n[data]\nsource = 'csv'\npath = 'own.csv'\ntarget = 'outcome'\ndecimal = ','\n{extra}\n"
        "[model]\noptions = {hidden = [4]}\n",
        encoding="utf-8",
    )
    return folder / "site.toml"


def loaded(file):
    settings = read_site(file)
    return load_site(settings, read_terms(settings.terms))


def refusal(file):
    with pytest.raises(UserError) as caught:
        loaded(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_terms_carry_the_columns_and_only_then_another_digest(agreed):
    terms, data = agreed
    assert terms.coding == data.coding
    assert terms.input_shape == (len(data.coding.features),)
    again = Terms.from_json(terms.to_json())
    assert again == terms
    other = json.loads(terms.to_json())
    other["columns"][1]["fill"] += 1
    assert Terms.from_json(json.dumps(other)).digest != terms.digest
    plain = dataclasses.replace(terms, columns=())
    assert "columns" not in plain.to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "text"}, "terms: columns.1.kind = 'text'"),
        ({"kind": "category"}, "category"),
        ({"name": "sex"}, "column 'sex' stands there more than once"),
        ({"optional": True}, "columns have 11 features"),
    ],
)
def test_terms_whose_columns_cannot_be(agreed, change, words):
    raw = json.loads(agreed[0].to_json())
    raw["columns"][1] |= change
    with pytest.raises(UserError) as caught:
        Terms.from_json(json.dumps(raw))
    assert words in str(caught.value)


def test_columns_are_found_by_name_in_any_order(agreed, tmp_path):
    one = loaded(site(tmp_path / "one", agreed)).client.train
    other = loaded(site(tmp_path / "other", agreed, header=HEADER[::-1])).client.train
    torch.testing.assert_close(one.x, other.x, rtol=0, atol=0)
    terms, data = agreed
    at = terms.coding.features.index("age")
    ages = {np.float32(row["age"].replace(",", ".")) for row in ROWS["Graz"]}
    found = one.x[:, at].numpy() * data.std[at] + data.mean[at]
    assert np.abs(found[:, None] - np.array(sorted(ages))[None]).min(axis=1).max() < 1e-3


def test_a_site_may_call_its_columns_otherwise(agreed, tmp_path):
    own = {"age": "Alter", "sex": "Geschlecht", "smoker": "raucht", "crp": "CRP", "admitted": "Aufnahme"}
    rows = [{own.get(key, key): cell for key, cell in row.items()} for row in ROWS["Graz"]]
    extra = f"test_fraction = 0\ncolumns = {list(own.values())}"  # which are held out depends on what it names
    renamed = site(tmp_path / "other", agreed, header=list(rows[0]), rows=rows, extra=extra)
    expected = loaded(site(tmp_path / "one", agreed, extra="test_fraction = 0")).client.train
    torch.testing.assert_close(loaded(renamed).client.train.x, expected.x, rtol=0, atol=0)
    short = site(tmp_path / "short", agreed, header=list(rows[0]), rows=rows, extra='columns = ["Alter"]')
    assert "data.columns names 1 columns, but the terms have 5: 'age', 'sex'" in refusal(short)


def test_units_and_columns_that_were_not_agreed_on_are_refused(agreed, tmp_path):
    loaded(site(tmp_path / "a", agreed, extra='units = {age = "years"}'))
    assert "data.units.age = 'months', but agreed was 'years'" in refusal(
        site(tmp_path / "b", agreed, extra='units = {age = "months"}')
    )
    assert "data.units.agee: is not a column of the terms; did you mean 'age'?" in refusal(
        site(tmp_path / "c", agreed, extra='units = {agee = "years"}')
    )
    lacking = [name for name in HEADER if name != "smoker"]
    assert "has no column 'smoker', which the terms have" in refusal(site(tmp_path / "d", agreed, header=lacking))
    without_ids = [name for name in HEADER if name != "patient_id"]
    loaded(site(tmp_path / "e", agreed, header=without_ids))
    gone = [row | {"outcome": "NA"} for row in ROWS["Graz"]]
    assert "'' is not a class of the terms" in refusal(site(tmp_path / "f", agreed, rows=gone))


def test_values_that_are_not_as_agreed(agreed, tmp_path, caplog):
    """A mistake of a whole column is refused; under a promise the site starts, and only its own log tells."""
    wrong = [row | {"age": row["age"].replace(",", ".")} for row in ROWS["Graz"]]
    text = refusal(site(tmp_path / "open", agreed, rows=wrong))
    assert "most values of column 'age' are no number" in text
    raw = json.loads(agreed[0].to_json())
    raw |= {"method": "fedbnn", "settings": {}}
    raw["privacy"]["mechanism"] = "dp_teacher"
    private = Terms.from_json(json.dumps(raw))
    with caplog.at_level(logging.WARNING):
        client = loaded(site(tmp_path / "private", agreed, rows=wrong, terms=private)).client
    assert "column 'age': 24 value(s) no number" in caplog.text
    assert torch.isfinite(client.train.x).all()


def test_other_terms_do_not_make_records_look_new(agreed, tmp_path):
    """Whoever writes terms decides on fills, values and ranges: the ledger knows records by their cells."""
    raw = json.loads(agreed[0].to_json()) | {"method": "fedbnn", "settings": {}}
    raw["privacy"]["mechanism"] = "dp_teacher"
    one = Terms.from_json(json.dumps(raw))
    by_name = {column["name"]: column for column in raw["columns"]}
    by_name["age"] |= {"low": 50, "high": 51}
    by_name["crp"] |= {"fill": 77.0}
    by_name["sex"] |= {"values": ["NA", "?"]}
    other = Terms.from_json(json.dumps(raw))
    rows = [row | {"sex": "NA"} for row in ROWS["Graz"]]
    first, second = (
        loaded(site(tmp_path / str(number), agreed, terms=terms, rows=rows)).client
        for number, terms in enumerate((one, other))
    )
    assert not torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.identity, second.identity)


def test_parquet_needs_terms_that_describe_columns(agreed, tmp_path):
    plain = dataclasses.replace(agreed[0], columns=())
    file = site(tmp_path, agreed, terms=plain)
    file.write_text(file.read_text().replace("'csv'", "'parquet'"))
    assert "source = 'parquet' needs terms that describe columns" in refusal(file)


# --- predictions


@pytest.fixture(scope="module")
def state(agreed, tmp_path_factory):
    """The state folder of a site after a run."""
    folder = tmp_path_factory.mktemp("sites")
    nodes = site_nodes([site(folder / name, agreed, name) for name in agreed[0].sites])
    roster = roster_of([loaded(folder / name / "site.toml") for name in agreed[0].sites])
    server = HandServer(agreed[0], roster)
    for _ in range(2):
        server.step(nodes)
    return folder / "Graz" / "state"


def test_new_records_keep_their_ids_and_are_flagged(state, tmp_path):
    rows = [ROWS["Graz"][k] | {"patient_id": f"new-{k}"} for k in range(3)]
    rows[1] |= {"age": "-3", "sex": "?!", "crp": "NA"}
    with (tmp_path / "new.csv").open("w", newline="", encoding="latin-1") as stream:
        header = [name for name in HEADER[::-1] if name != "outcome"]
        writer = csv.DictWriter(stream, header, delimiter="\t", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    found = predict(state, tmp_path / "new.csv")
    assert found.class_names == ("gesund", "über Norm")
    assert found.ids == {"patient_id": ["new-0", "new-1", "new-2"]}
    assert list(found.wrong) == ["", "age: below 0; sex: not one of its values", ""]
    assert found.wrong[1] in found.flags[1]
    for ending in ("csv", "json"):
        out = tmp_path / f"out.{ending}"
        with pytest.raises(SystemExit) as done:
            main(["predict", "--state", str(state), "--input", str(tmp_path / "new.csv"), "--out", str(out)])
        assert done.value.code == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["patient_id"] for line in lines] == ["new-0", "new-1", "new-2"]
    assert [line["flags"] for line in lines] == ["; ".join(flags) for flags in found.flags]
    assert [line["class"] for line in lines] == found.labels
    listed = json.loads((tmp_path / "out.json").read_text())["records"]
    assert listed[1]["ids"] == {"patient_id": "new-1"}
    assert listed[1]["flags"] == list(found.flags[1])


def test_new_records_without_a_column(state, tmp_path):
    (tmp_path / "new.csv").write_text("age;sex\n3;f\n")
    with pytest.raises(UserError, match=r"new\.csv has no column 'smoker', which the terms have"):
        predict(state, tmp_path / "new.csv")


# --- init, and the check at a site


def test_init_carries_the_columns_to_every_party(tmp_path):
    write(tmp_path / "hospitals", ROWS)
    terms = write_federation(tmp_path / "fed", config_of(tmp_path / "hospitals"), "trial")
    text = (tmp_path / "fed" / "sites" / "Bern" / "site.toml").read_text(encoding="utf-8")
    assert '#   "age": number, "years", from 0, to 110\n#   "sex": category, ["f", "m"]\n' in text
    assert '# units = {"age" = "years"}' in text
    loaded(tmp_path / "fed" / "sites" / "Bern" / "site.toml")
    assert read_terms(tmp_path / "fed" / "sites" / "Graz" / "terms.json").columns == terms.columns


def test_a_site_checks_its_own_file(agreed, tmp_path):
    rows = [*ROWS["Graz"], ROWS["Graz"][0] | {"patient_id": "again"}, ROWS["Graz"][1] | {"age": "500"}]
    found = check_site(site(tmp_path, agreed, rows=rows, extra="test_fraction = 0"))
    [held] = found.clients
    assert (held.name, held.records, held.tested) == ("Graz", 26, 0)
    assert sum(held.classes.values()) == 26
    assert held.missing["crp"] == sum(row["crp"] == "NA" for row in rows)
    assert held.duplicates == 1
    assert held.public > 0  # the alignment set was drawn from the same hospital
    looks = {column.name: column for column in found.columns}
    assert looks["patient_id"].kind == "id"
    assert "named people" in looks["patient_id"].looks
    assert "column 'age': 1 value(s) above 110" in found.notes
