"""A site with numbers to predict: of every kind of file the records of the local engine, and none that it refuses."""

import json

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.data import load_dataset
from fedbnn.data.check import check_data
from fedbnn.deployment.alignment import write_alignment
from fedbnn.deployment.labelled import read_labelled
from fedbnn.deployment.new_records import CodedTables
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_check import check_site
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import Terms, alignment_of, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.models.regression import Measured, Scale
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import write_sites
from tests.deployment.regression_sites import MEAN, SD, diabetes, hospitals, stays
from tests.deployment.test_site import assert_same

CODED = 'data.columns={age={kind="number", unit="years", low=0, high=120}, ward={kind="category", values=["A", "B"]}}'
FEATURES = {"plain": ["age", "dose"], "coded": ["age", "ward", "dose"]}


def loaded(file):
    settings = read_site(file)
    return load_site(settings, read_terms(settings.terms))


def whole(tmp_path, kind, *changes):
    """Both hospitals as the local engine deals them: configuration, table, and data."""
    table = stays().drop(columns=[] if kind == "coded" else ["ward"])
    table.to_csv(tmp_path / "all.csv", index=False)
    config = hospitals(tmp_path / "all.csv", *([CODED] if kind == "coded" else []), *changes)
    return config, table, Prepared.of(config, ["fedavg"])


def own_site(folder, config, data, name, rows, kind="plain", source="csv", extra="", columns=True):
    """A site's folder with these rows of the table in a file of its own."""
    folder.mkdir(exist_ok=True)
    terms = Terms.of(config, data, "trial")
    (folder / "terms.json").write_text(terms.to_json(), encoding="utf-8")
    write_alignment(folder / "alignment.npz", alignment_of(data))
    if source == "parquet":
        rows.to_parquet(folder / "own.parquet", index=False)
    else:
        rows.to_csv(folder / "own.csv", index=False)
    named = f"columns = {json.dumps(FEATURES[kind])}" if columns else ""
    (folder / "site.toml").write_text(
        f"name = '{name}'\n[data]\nsource = '{source}'\npath = 'own.{source}'\ntarget = 'days'\n{named}\n{extra}\n"
        "[model]\nname = 'mlp'\noptions = {hidden = []}\n",
        encoding="utf-8",
    )
    return folder / "site.toml"


def rows_of(table, targets):
    """The rows of a table that have these targets, in their order: every record has one of its own."""
    numbers = table["days"].to_numpy().astype(np.float32).tolist()
    return table.iloc[[numbers.index(one) for one in targets.tolist()]]


def test_of_an_archive_it_is_bit_for_bit_the_dealt_one(tmp_path):
    config = diabetes("fedavg")
    expected = Prepared.of(config, ["fedavg"]).sites
    for file, site in zip(write_sites(tmp_path, config), expected, strict=True):
        found = loaded(file)
        for part in ("train", "alignment", "classes", "outputs", "scale", "training"):
            assert_same(getattr(found.client, part), getattr(site.client, part))
        assert_same(found.evaluation, site.evaluation)
        assert_same(found.own, site.own)
        assert isinstance(found.client.train, Measured)
        assert found.client.regression
        assert torch.equal(found.client.initial_weights(), site.client.initial_weights())


@pytest.mark.parametrize("columns", [True, False], ids=["named", "by default"])
@pytest.mark.parametrize(("kind", "source"), [("plain", "csv"), ("coded", "csv"), ("coded", "parquet")])
def test_of_a_table_it_is_bit_for_bit_the_dealt_one(tmp_path, kind, source, columns):
    config, table, prepared = whole(tmp_path, kind)
    data = prepared.data
    for index, (name, site) in enumerate(zip(data.client_names, prepared.sites, strict=True)):
        rows = rows_of(table, data.client_arrays(index)[1]).drop(columns="hospital")
        file = own_site(tmp_path / name, config, data, name, rows, kind, source, "test_fraction = 0", columns)
        found = loaded(file)
        assert_same(found.client.train, site.client.train)
        assert_same(found.client.alignment, site.client.alignment)
        assert found.client.scale == site.client.scale == Scale(MEAN, SD)
        assert len(found.evaluation) == 0
        assert not found.scored


@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_rows_held_out_keep_their_unit_and_move_no_others(tmp_path, kind):
    config, table, prepared = whole(tmp_path, kind)
    rows = table.drop(columns="hospital")

    def halves(rows):
        return loaded(own_site(tmp_path / "south", config, prepared.data, "south", rows, kind))

    site = halves(rows)
    assert len(site.client.train) + len(site.evaluation) == len(rows)
    assert 10 < len(site.evaluation) < 50
    assert site.own.all()  # there is no class that is another's
    days = table["days"].to_numpy().astype(np.float32)
    trained, scored = site.client.train.y, site.evaluation.y
    asked = torch.from_numpy(days[~np.isin(days, scored.numpy())])
    assert torch.equal(trained, (asked - MEAN) / SD)  # learned in the scale of the terms, scored in days
    fewer = halves(rows.drop(index=[0, 17]))
    for half in ("train", "evaluation"):
        many, few = ((one.client.train if half == "train" else one.evaluation).y for one in (site, fewer))
        assert set(few.tolist()) <= set(many.tolist())


@pytest.mark.parametrize("written", ["61", "61.0", "6.1e1"])
def test_a_number_is_the_same_record_however_it_is_written(tmp_path, written):
    config, table, prepared = whole(tmp_path, "plain")
    rows = table.drop(columns="hospital").astype({"days": str})
    before = loaded(own_site(tmp_path / "south", config, prepared.data, "south", rows.assign(days="61")))
    after = loaded(own_site(tmp_path / "south", config, prepared.data, "south", rows.assign(days=written)))
    assert_same(after.client.train, before.client.train)
    assert_same(after.evaluation, before.evaluation)


@pytest.mark.parametrize("kind", ["plain", "coded"])
@pytest.mark.parametrize("cell", ["", "NA", "nan", "inf", "1e39", "-1e39", "long", "3,5"])
def test_a_target_that_is_no_finite_number_is_refused_as_on_the_local_engine(tmp_path, kind, cell):
    config, table, prepared = whole(tmp_path, kind)
    bad = table.astype({"days": str})
    bad.loc[3, "days"] = cell
    bad.to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(UserError, match="line 5: column 'days'"):
        load_dataset(config.data)
    file = own_site(tmp_path / "south", config, prepared.data, "south", bad.drop(columns="hospital"), kind)
    with pytest.raises(UserError) as error:
        loaded(file)
    assert "\n" not in str(error.value)
    assert "line 5" in str(error.value)
    assert "column 'days'" in str(error.value)


@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_a_number_that_stands_for_a_missing_value_is_none(tmp_path, kind):
    config, table, prepared = whole(tmp_path, kind)
    rows = table.drop(columns="hospital").astype({"days": str})
    rows.loc[3, "days"] = "-99"
    extra = "missing = ['-99']"
    file = own_site(tmp_path / "south", config, prepared.data, "south", rows, kind, extra=extra)
    with pytest.raises(UserError, match="line 5: column 'days' has no value"):
        loaded(file)
    columns = () if kind == "coded" else FEATURES[kind]
    terms, settings = read_terms(file.parent / "terms.json"), read_site(file).data
    coded = None if terms.coding is None else CodedTables.of_site(settings, terms.coding)
    with pytest.raises(UserError, match="record 3 has no finite number to predict"):
        read_labelled(file.parent / "own.csv", (), "days", columns, terms.input_shape, settings.layout, coded)


def test_a_decimal_comma_is_declared(tmp_path):
    config, table, prepared = whole(tmp_path, "coded")
    rows = table.drop(columns="hospital")
    plain = loaded(own_site(tmp_path / "south", config, prepared.data, "south", rows, "coded"))
    file = own_site(tmp_path / "comma", config, prepared.data, "south", rows, "coded", extra="decimal = ','")
    rows.to_csv(file.parent / "own.csv", index=False, sep=";", decimal=",")
    assert_same(loaded(file).client.train, plain.client.train)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (lambda y: np.where(np.arange(len(y)) == 2, np.nan, y), "y_train holds NaN or infinity in 1 record"),
        (lambda y: y.astype(np.float64) * 1e300, "y_train holds NaN or infinity"),
        (lambda y: y.astype(np.str_), "y_train is <U.* one number a record is needed"),
        (lambda y: np.stack([y, y], 1), r"y_train is float32 of shape \(\d+, 2\); one number a record is needed"),
        (lambda y: y[:-1], "records but y_train has"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_as_on_the_local_engine(tmp_path, y, words):
    config = diabetes("fedavg")
    file = write_sites(tmp_path, config)[0]
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    np.savez(file.parent / "records.npz", **(arrays | {"y_train": y(arrays["y_train"])}))
    with pytest.raises(UserError, match=words):
        loaded(file)
    told = hospitals(file.parent / "records.npz", "data.source=npz", "data.client_column=", "data.target=")
    with pytest.raises(UserError, match=words):
        load_dataset(told.data)


def test_whole_numbers_are_numbers_and_no_classes(tmp_path):
    file = write_sites(tmp_path, diabetes("fedavg"))[0]
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    np.savez(file.parent / "records.npz", **(arrays | {"y_train": arrays["y_train"].astype(np.int64)[:, None]}))
    y = torch.from_numpy(arrays["y_train"])
    assert torch.equal(loaded(file).client.train.y, (y - 150.0) / 80.0)


# The folder that `fedbnn flower init` writes, and what `fedbnn data check --site` says of it


def test_a_written_site_is_the_client_of_a_run_bit_for_bit(tmp_path):
    config, _, prepared = whole(tmp_path, "plain", "data.calibration=0.3")
    terms = write_federation(tmp_path / "new", config, "trial")
    data = prepared.data
    for index, site in enumerate(prepared.sites):
        folder = tmp_path / "new" / "sites" / site.client.name
        found = loaded(folder / "site.toml")
        assert_same(found.client.train, site.client.train)
        assert_same(found.evaluation, site.evaluation.take(site.own.nonzero()[:, 0]))  # of a natural client its own
        assert found.own.all()
        assert read_terms(folder / "terms.json") == terms
        with np.load(folder / "calibration.npz", allow_pickle=False) as kept:
            np.testing.assert_array_equal(kept["y"], data.dataset.y_train[data.calibration_indices[index]])
        text = (folder / "site.toml").read_text()
        assert '# a number to predict: "days", about 90, by about 10 more or less' in text
        assert '# target = "days"' in text
        assert "holds the number" in text
        assert "class" not in text


@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_the_check_of_a_site_tells_of_its_records(tmp_path, kind):
    config, table, prepared = whole(tmp_path, kind)
    data = prepared.data
    rows = rows_of(table, data.client_arrays(0)[1]).drop(columns="hospital")
    name = data.client_names[0]
    found = check_site(own_site(tmp_path / name, config, data, name, rows, kind, extra="test_fraction = 0"))
    here = found.clients[0]
    there = check_data(config.data, config.partition, config.seed).clients[0]
    assert (here.name, here.records, here.classes) == (there.name, there.records, {})
    assert (here.duplicates, here.public) == (there.duplicates, there.public)
