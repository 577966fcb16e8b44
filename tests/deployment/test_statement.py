"""A page to sign: its numbers against the ledgers, its words against the terms, and names that are meant to harm."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from fedbnn import UserError
from fedbnn.data.identity import contents, identify
from fedbnn.deployment.node import Node
from fedbnn.deployment.statement import statement, write_statement
from fedbnn.federation.message import Message
from fedbnn.privacy import Budget, Cost, Sampled
from fedbnn.privacy.ledger import Ledger, Limit
from fedbnn.privacy.overview import overview
from fedbnn.report.figures import MISSING
from fedbnn.report.protection import PROTECTIONS
from tests.deployment.deployment_sample import ask, small_config, write_sites
from tests.report.reader import Reader

DELTA = 1e-5
CAP = Budget(3.0, DELTA)
PRIVATE = ("privacy.mechanism=dp_teacher", "privacy.dimensions=10", "privacy.epsilon=1.0")
SITE_CAP = "[privacy]\nepsilon = 3\ndelta = 1e-4"


def ledger(folder, *costs, fingerprint="f" * 64, owner="hospital", cap=CAP, run="", joined=0.0, records=b""):
    with Ledger.open(folder, fingerprint, owner, records) as opened:
        for number, cost in enumerate(costs):
            opened.release(f"release-{number}", "inputs", cost, [Limit(cap)], lambda: b"noise", run=run, joined=joined)
    return folder


def hashes(first, last):
    """Of the records number `first` to `last`."""
    x = np.arange(first, last, dtype=np.float32)[:, None]
    return contents(identify(x, ["a"] * len(x)))


def page_of(made, folder):
    page, data = write_statement(made, folder)
    return Reader(page.read_text("utf-8")), json.loads(data.read_text("utf-8"))


def text_of(reader):
    return " ".join(" ".join(reader.text).split())


def site(folder, *changes, extra=SITE_CAP):
    return write_sites(folder, small_config("fedbnn", *changes), extra)[0]


def releasing(file):
    node = Node.from_file(file)
    ask(node, "update", 0, Message())
    return node


def rewrite(file, **changes):
    terms = json.loads((file.parent / "terms.json").read_text())
    (file.parent / "terms.json").write_text(json.dumps(terms | changes))


# what it says


def test_a_site_that_released_once_more_from_one_record_less(tmp_path):
    file = site(tmp_path, *PRIVATE)
    first = releasing(file)
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    np.savez(file.parent / "records.npz", **arrays | {name: arrays[name][1:] for name in ("x_train", "y_train")})
    rewrite(file, run="again")
    second = releasing(file)
    state = file.parent / "state"
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}

    made = statement(state, DELTA)
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before
    [group] = made.groups
    spent = overview(state, DELTA)
    assert made.epsilon == group.epsilon == spent.epsilon
    assert 1.4 < made.epsilon < 1.5
    assert made.name == first.site.client.name
    assert group.seen
    count = len(first.site.client.train.y)
    assert sorted(one.records for one in group.sets) == [count - 1, count]
    left = 3 - group.cost.epsilon(1e-4)  # of the cap in the site's own file, at its delta
    assert [one.left for one in group.sets] == [pytest.approx(left)] * 2
    assert {release.run.name: release.charge.run for release in group.releases} == {
        "trial": first.terms.digest,
        "again": second.terms.digest,
    }

    reader, data = page_of(made, tmp_path / "out")
    text = text_of(reader)
    assert PROTECTIONS["dp_teacher"].sent in text
    assert first.terms.alignment.source in text
    assert first.terms.alignment.sha256[:16] in text
    assert f"ε = {math.ceil(made.epsilon * 1000) / 1000:.3f} at δ = 1e-05" in text
    assert f"in at most {math.ceil(1000 * norm.cdf(group.cost.mu / 2)) / 10:.1f} of 100 cases" in text
    assert f"{math.floor(left * 1000) / 1000:.3f}" in text
    assert "no other site holds the same record" in text
    assert "Note." not in text
    assert data["version"] == 1
    assert data["epsilon"] == made.epsilon
    assert [run["name"] for run in data["runs"]] == ["again", "trial"]
    assert [release["sha256"] for release in data["groups"][0]["releases"]] == [
        release.charge.sha256 for release in group.releases
    ]


@pytest.mark.parametrize("part", ["state", "site", "all"])
def test_a_folder_above_a_sites_own_is_refused(tmp_path, part):
    """From there the ledger is found, but not the run that promises nothing, of which the page must tell."""
    file = site(tmp_path, *PRIVATE)
    releasing(file)
    state = file.parent / "state"
    file.write_text(file.read_text().replace(SITE_CAP, ""))
    terms = json.loads((file.parent / "terms.json").read_text())
    rewrite(file, run="bare", privacy=terms["privacy"] | {"mechanism": "none"})
    releasing(file)
    folder = {"state": state, "site": file.parent, "all": tmp_path}[part]
    if part == "state":
        assert [run.name for run in statement(folder, DELTA).unprotected] == ["bare"]
        assert [run.name for run in statement(folder / "ledgers", DELTA).unprotected] == ["bare"]
        return
    with pytest.raises(UserError, match=f"above a site's state folder, .*: give '{state}'"):
        statement(folder, DELTA)


def test_every_release_with_its_own_cost_and_that_of_all_before(tmp_path):
    costs = (Cost(0.3), Cost(sampled=(Sampled(2.0, 0.1, 5),)), Cost(0.4))
    made = statement(ledger(tmp_path / "one", *costs), DELTA)
    [group] = made.groups
    assert [release.alone for release in group.releases] == [cost.epsilon(DELTA) for cost in costs]
    sums = [costs[0], costs[0] + costs[1], costs[0] + costs[1] + costs[2]]
    assert [release.after for release in group.releases] == [cost.epsilon(DELTA) for cost in sums]
    assert group.best_guess == sums[-1].best_guess() > norm.cdf(0.25)
    assert group.of_two_records is None  # samples have no such formula
    reader, _ = page_of(made, tmp_path)
    rows = reader.tables[1]
    assert [row[2] for row in rows[1:]] == ["μ = 0.3000", "5 steps at noise 2, sampling 0.1", "μ = 0.4000"]
    assert [row[1] for row in rows[1:]] == ["not told"] * 3


def test_two_records_of_one_person_are_two_steps_away(tmp_path):
    [group] = statement(ledger(tmp_path / "one", Cost(0.3), Cost(0.4)), DELTA).groups
    assert group.of_two_records == pytest.approx(Cost(1.0).epsilon(DELTA), rel=1e-12)


def test_what_holds_and_what_remains_if_aggregation_fails(tmp_path):
    made = statement(ledger(tmp_path / "one", Cost(0.5), joined=0.1), DELTA)
    assert made.epsilon == Cost(0.5).epsilon(DELTA)
    assert made.groups[0].if_joined == Cost(0.1).epsilon(DELTA)
    reader, data = page_of(made, tmp_path)
    both = [math.ceil(Cost(mu).epsilon(DELTA) * 1000) / 1000 for mu in (0.5, 0.1)]
    assert f"ε = {both[0]:.3f} is what holds if that fails; as long as it holds, ε = {both[1]:.3f}" in text_of(reader)
    assert "Secure aggregation" in text_of(reader)
    assert data["groups"][0]["epsilon_if_only_sums_are_seen"] == made.groups[0].if_joined


def test_a_charge_whose_bytes_were_never_made_counts_and_is_told(tmp_path):
    def fails():
        raise RuntimeError

    with Ledger.open(tmp_path / "one", "f" * 64, "hospital") as opened, pytest.raises(RuntimeError):
        opened.release("release", "inputs", Cost(0.5), [Limit(CAP)], fails)
    made = statement(tmp_path / "one", DELTA)
    assert made.epsilon == Cost(0.5).epsilon(DELTA)
    reader, data = page_of(made, tmp_path)
    assert reader.tables[1][1][-2:] == ["charged", MISSING]
    assert data["groups"][0]["releases"][0]["state"] == "charged"


def test_many_releases_are_folded_by_run_and_stay_whole_in_the_data(tmp_path):
    made = statement(ledger(tmp_path / "one", *[Cost(0.1)] * 20, run="a" * 64), DELTA)
    reader, data = page_of(made, tmp_path)
    [_, row] = reader.tables[1]
    assert row[1] == f"terms {'a' * 12}, not at hand"
    assert row[2].startswith("20 releases, μ = ")
    assert row[3] == row[4] == f"{math.ceil(Cost(math.sqrt(0.2)).epsilon(DELTA) * 1000) / 1000:.3f}"
    assert len(data["groups"][0]["releases"]) == 20


def test_one_ledger_of_several_does_not_tell_what_remains(tmp_path):
    for name in ("a", "b"):
        ledger(tmp_path / name, Cost(0.3), fingerprint=name * 64)
    assert [one.left is None for one in statement(tmp_path, DELTA).groups[0].sets] == [False, False]
    made = statement(tmp_path / "a", DELTA)
    assert [one.left for one in made.groups[0].sets] == [None]
    assert "beside it lie others (1)" in text_of(page_of(made, tmp_path / "out")[0])


def test_sets_that_are_declared_disjoint_have_a_cap_each(tmp_path):
    file = site(tmp_path, *PRIVATE, extra=SITE_CAP + "\ndisjoint = true")
    releasing(file)
    state = file.parent / "state"
    ledger(state / "ledgers" / "other", Cost(0.4), fingerprint="0" * 64, records=hashes(0, 5))
    made = statement(state, DELTA)
    [group] = made.groups  # a person in both costs both
    assert made.epsilon == overview(state, DELTA).epsilon
    by_cost = {one.fingerprint: one.left for one in group.sets}
    assert by_cost["0" * 64] == pytest.approx(3 - Cost(0.4).epsilon(1e-4))
    assert "are of different people" in text_of(page_of(made, tmp_path / "out")[0])


def test_runs_that_promise_nothing_are_named_as_not_covered(tmp_path):
    file = site(tmp_path, *PRIVATE, extra="")
    node = releasing(file)
    terms = json.loads((file.parent / "terms.json").read_text())
    rewrite(file, run="open", privacy=terms["privacy"] | {"mechanism": "none"})
    releasing(file)
    made = statement(file.parent / "state", DELTA)
    assert [run.name for run in made.unprotected] == ["open"]
    assert made.epsilon == overview(file.parent / "state", DELTA).epsilon
    text = text_of(page_of(made, tmp_path / "out")[0])
    assert "Not covered by anything on this page: open (method fedbnn, mechanism none)" in text
    assert node.terms.run in text


def test_a_site_whose_runs_all_promise_nothing_gets_no_page(tmp_path):
    file = site(tmp_path, extra="")
    releasing(file)
    with pytest.raises(UserError, match=r"its runs \('trial'\) promise nothing about records"):
        statement(file.parent / "state", DELTA)


def test_the_state_is_found_from_its_ledgers_too(tmp_path):
    file = site(tmp_path, *PRIVATE)
    releasing(file)
    state = file.parent / "state"
    whole = statement(state, DELTA)
    [place] = (state / "ledgers").glob("*/ledger.jsonl")
    for folder in (state / "ledgers", place.parent):
        found = statement(folder, DELTA)
        assert replace(found, folder=whole.folder, made=whole.made) == whole


def test_a_servers_own_ledger_is_about_clients(tmp_path):
    names = identify(np.zeros((5, 0), np.float32), list("abcde"))
    made = statement(ledger(tmp_path / "server", Cost(0.5), records=contents(names)), DELTA)
    assert made.groups[0].unit == "client"
    reader, _ = page_of(made, tmp_path)
    text = text_of(reader)
    assert reader.tables[0][1][2] == "5 clients"
    assert "any one client at most" in text
    assert "it sees what every client sends, and is trusted with it" in text
    assert "ε holds also if all of them work together" not in text


def test_a_delta_that_protects_nobody_is_told(tmp_path):
    folder = ledger(tmp_path / "one", Cost(0.5), records=hashes(0, 50))
    assert statement(folder, 0.019).notes == ()
    assert "not below one over the number of records (50)" in statement(folder, 0.02).notes[0]


# what must not happen


def test_names_that_are_meant_to_harm_stay_text(tmp_path):
    evil = '<script>alert("x")</script>{{ 7 * 7 }}\x00\ud800'
    made = statement(ledger(tmp_path / "one", Cost(0.5), owner=evil, run=evil, fingerprint=evil), DELTA)
    page, data = write_statement(replace(made, name=evil, notes=(evil,)), tmp_path)
    text = page.read_text("utf-8")
    reader = Reader(text)
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert not [a for a in reader.attributes if a[1] in {"src", "href"} or a[1].startswith("on")]
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert '<script>alert("x")</script>{{ 7 * 7 }}' in text_of(reader)
    assert json.loads(data.read_text())["groups"][0]["sets"][0]["owner"] == evil


def test_what_was_spent_is_unknown_where_a_ledger_is_broken(tmp_path):
    ledger(tmp_path / "all" / "good", Cost(0.3), fingerprint="good")
    bad = ledger(tmp_path / "all" / "bad", Cost(0.4), fingerprint="bad")
    (bad / "ledger.jsonl").write_text((bad / "ledger.jsonl").read_text().replace("0.4", "0.1"))
    made = statement(tmp_path / "all", DELTA)
    assert made.epsilon is None
    assert [one.left for group in made.groups for one in group.sets] == [None]
    reader, data = page_of(made, tmp_path)
    text = text_of(reader)
    assert "What was spent is not known" in text
    assert "one of them was changed" in text
    assert "costs any one record at most" not in text
    assert "of 100 cases" not in text
    assert (data["epsilon"], data["known"], len(data["broken"])) == (None, False, 1)


def test_files_beside_the_ledgers_that_cannot_be_read_are_told_and_do_no_harm(tmp_path):
    file = site(tmp_path, *PRIVATE)
    releasing(file)
    state = file.parent / "state"
    [terms] = state.glob("runs/*/terms.json")
    whole = statement(state, DELTA)
    for broken, words in ((terms, "cannot be told"), (file, "its declarations are not told")):
        before = broken.read_text()
        broken.write_text("{")
        made = statement(state, DELTA)
        assert made.epsilon == whole.epsilon
        assert [words in note for note in made.notes] == [True]
        broken.write_text(before)
    for text in ("[]", "{}", '{"site": 3}', '{"site": "/nowhere"}'):
        (state / "site.json").write_text(text)
        assert statement(state, DELTA).epsilon == whole.epsilon


def test_only_the_owner_can_read_a_page_that_tells_of_records(tmp_path):
    made = statement(ledger(tmp_path / "one", Cost(0.5)), DELTA)
    for file in write_statement(made, tmp_path / "deep" / "out"):
        assert file.stat().st_mode & 0o777 == 0o600
    write_statement(made, tmp_path / "deep" / "out")  # a page that is there is replaced
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        write_statement(made, Path(tmp_path / "file"))
