import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbnn import UserError
from fedbnn.deployment.agreement import check_terms
from fedbnn.deployment.node import Node, Request
from fedbnn.deployment.site_file import CapSettings, RecordsSettings, SiteSettings
from fedbnn.deployment.terms import Terms
from tests.deployment.deployment_sample import small_config, small_terms, write_sites

TERMS = small_terms("fedbnn", "privacy.mechanism=dp_teacher", "privacy.epsilon=2.0")


def site(name=TERMS.sites[0], **cap):
    return SiteSettings(name, RecordsSettings(Path("records.npz")), privacy=CapSettings(**cap) if cap else None)


def asked(**changes):
    raw = json.loads(TERMS.to_json())
    for dotted, value in changes.items():
        table, _, field = dotted.rpartition("__")
        (raw[table] if table else raw)[field] = value
    return Terms.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alignment__points": 800}, "the server asks for alignment.points = 800, agreed was 20"),
        ({"alignment__sha256": "0" * 64}, "alignment.sha256 = '0000"),
        ({"privacy__epsilon": 8.0}, "privacy.epsilon = 8.0, agreed was 2.0"),
        ({"privacy__mechanism": "none"}, "privacy.mechanism = 'none', agreed was 'dp_teacher'"),
        ({"rounds": 50}, "rounds = 50, agreed was 2"),
        ({"settings__gamma": 0.1}, "settings.gamma = 0.1, agreed was "),
        ({"seed": 3, "rounds": 4, "evaluate_every": 5, "run": "x"}, "; and 1 more"),
    ],
)
def test_other_terms_than_those_agreed_on_are_refused(changes, words):
    with pytest.raises(UserError) as error:
        check_terms(asked(**changes), TERMS, site(epsilon=100.0, delta=0.1))
    assert words in str(error.value)
    assert str(error.value).startswith("refused")


def test_the_terms_agreed_on_are_taken_up_to_the_cap():
    check_terms(asked(), TERMS, site())
    check_terms(asked(), TERMS, site(epsilon=2.0, delta=1e-5))


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        ({"epsilon": 1.9, "delta": 1e-5}, "epsilon = 2, this site's cap is 1.9"),
        ({"epsilon": 2.0, "delta": 1e-6}, "delta = 1e-05, this site's cap is 1e-06"),
    ],
)
def test_terms_beyond_the_cap_are_refused_even_if_the_copies_agree(cap, words):
    with pytest.raises(UserError, match=words):
        check_terms(TERMS, TERMS, site(**cap))


def test_a_site_that_wants_privacy_takes_no_part_without():
    terms = asked(privacy__mechanism="none")
    check_terms(terms, terms, site())
    with pytest.raises(UserError, match="promise nothing about records"):
        check_terms(terms, terms, site(epsilon=3.0, delta=1e-5))


@pytest.mark.parametrize("changes", [("fedbnn", "privacy.mechanism=dp_teacher"), ("dp_fedavg",)])
def test_to_share_metrics_would_break_a_promise(changes):
    terms = small_terms(*changes)
    sharing = replace(site(), share_metrics="yes")
    with pytest.raises(UserError, match="share_metrics = 'yes': the terms promise epsilon 3 for each record"):
        check_terms(terms, terms, sharing)
    for share in ("auto", "no"):
        check_terms(terms, terms, replace(sharing, share_metrics=share))
    open_terms = small_terms("fedbnn")
    check_terms(open_terms, open_terms, sharing)


def test_a_site_that_is_not_named_takes_no_part():
    with pytest.raises(UserError, match="name = 'elsewhere' is not a site of the terms"):
        check_terms(TERMS, TERMS, site("elsewhere"))


def test_a_node_refuses_before_it_reads_a_record(tmp_path):
    config = small_config("fedbnn", "privacy.mechanism=dp_teacher", "privacy.epsilon=3.0")
    file = write_sites(tmp_path, config, "[privacy]\nepsilon = 1\ndelta = 1e-5")[0]
    (file.parent / "records.npz").unlink()
    with pytest.raises(UserError, match="this site's cap is 1"):
        Node.from_file(file)
    assert not (file.parent / "state").exists()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("alignment", {"points": 800}, "alignment.points = 800, agreed was 20"),
        ("privacy", {"epsilon": 9.0}, "privacy.epsilon = 9.0, agreed was 3.0"),
    ],
)
def test_a_node_refuses_a_server_with_other_terms(tmp_path, field, value, words):
    node = Node.from_file(write_sites(tmp_path, small_config())[0])
    raw = json.loads(node.terms.to_json())
    raw[field] |= value
    other = Terms.from_json(json.dumps(raw))
    with pytest.raises(UserError, match=words):
        node.answer(Request("hello", 0, other.to_json()))
    for kind in ("update", "evaluate"):
        with pytest.raises(UserError, match="works under other terms"):
            node.answer(Request(kind, 0, other.digest))
    assert not node.state.path.exists()


def test_what_are_no_terms_is_refused(tmp_path):
    node = Node.from_file(write_sites(tmp_path, small_config())[0])
    with pytest.raises(UserError, match="the server's terms: "):
        node.answer(Request("hello", 0, "{}"))
