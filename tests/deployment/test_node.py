import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedbnn
from fedbnn import Federation, InProcess, UserError
from fedbnn.base.files import locked
from fedbnn.deployment.node import LARGEST, Answer, Node, Request
from fedbnn.federation.engines import ClientFailure
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.message import Message, check
from fedbnn.federation.sites import with_ledgers
from fedbnn.models.training import channels_last
from fedbnn.privacy import Budget, Ledger, gaussian_mu
from fedbnn.privacy.account import ledgers_in
from fedbnn.runs.experiment import Prepared
from tests.deployment import dying_node
from tests.deployment.deployment_sample import (
    HandServer,
    ask,
    dealt,
    site_nodes,
    small_config,
    small_terms,
    write_sites,
)

FAST = {
    "fedbnn": (),
    "fedavg": (),
    "pfedgp": tuple(
        f"methods.pfedgp.{setting}"
        for setting in ("embedding=8", "train_chains=2", "test_chains=3", "gibbs_steps=2", "inner_steps=2")
    ),
}
PRIVATE = ("privacy.mechanism=dp_teacher", "privacy.dimensions=10")


def files_of(folder):
    """Everything below a folder: name and bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def first_message(node):
    """What the server of the terms sends this node in the warm-up; the same for every site."""
    config = small_config(node.terms.method, *PRIVATE if node.terms.privacy.on else FAST[node.terms.method])
    federation = Federation(config.chosen(), Prepared.of(config, [config.method]).sites, seed=config.seed)
    return federation.method.broadcast(federation.server, node.site.client.index)


def charges(node):
    return {path: Ledger.read(path).entries for path in ledgers_in(node.site.client.ledgers)}


@pytest.fixture
def node(tmp_path):
    return Node.from_file(write_sites(tmp_path, small_config())[0])


@pytest.fixture
def private(tmp_path):
    config = small_config("fedbnn", *PRIVATE)
    return Node.from_file(write_sites(tmp_path, config, "[privacy]\nepsilon = 5\ndelta = 1e-5")[0])


# The same federation


@pytest.mark.parametrize("fresh", [False, True], ids=["one process", "anew each round"])
@pytest.mark.parametrize("method", FAST)
def test_nodes_and_the_local_engine_agree_bit_for_bit(tmp_path, method, fresh):
    config = small_config(method, *FAST[method])
    sites = Prepared.of(config, [method]).sites
    federation = Federation(config.chosen(), sites, seed=config.seed, engine=InProcess())
    files = write_sites(tmp_path, config)
    nodes = site_nodes(files)
    server = HandServer(nodes[0].terms, federation.roster)
    x = channels_last(torch.from_numpy(dealt(config).evaluation("test")[0][:40]))
    for _ in range(config.rounds + 1):
        if fresh:
            nodes = site_nodes(files)
        record, answers = federation.step(), server.step(nodes)
        expected, found = federation.server.tensors(), server.state.tensors()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        for client, answer in answers.items():
            scores = {variant: one.to_dict() for variant, one in record.scores[client].items()}
            assert answer.facts["evaluation"] == json.loads(json.dumps(scores))
            assert answer.facts["info"] == record.turns[client].info
    variants = list(record.scores[0])
    for client, again in enumerate(site_nodes(files)):
        for variant in (None, *variants):
            one, other = federation.predict(client, x, variant), again.predict(x, variant)
            assert torch.equal(one.probs, other.probs)
            assert torch.equal(one.aleatoric, other.aleatoric)


def test_simulated_sites_answer_as_those_of_files(tmp_path):
    """Without any site.toml, and with the state of each read back from disk as another process would."""
    config = small_config()
    sites = Prepared.of(config, [config.method]).sites
    terms = small_terms()
    federation = Federation(config.chosen(), sites, seed=config.seed)
    server = HandServer(terms, federation.roster)

    def simulated():
        return [Node(terms, site, tmp_path / site.client.name, share_metrics=True) for site in sites]

    cached, others = simulated(), simulated()
    for nodes in (cached, others, cached):
        federation.step()
        server.step(nodes)
    assert torch.equal(server.state.phi_bar, federation.server.phi_bar)


def test_under_privacy_each_side_spends_once(tmp_path):
    config = small_config("fedbnn", *PRIVATE)
    sites = with_ledgers(Prepared.of(config, ["fedbnn"]).sites, tmp_path / "local")
    federation = Federation(config.chosen(), sites, seed=config.seed)
    nodes = site_nodes(write_sites(tmp_path, config))
    server = HandServer(nodes[0].terms, federation.roster)
    for _ in range(config.rounds + 1):
        federation.step()
        server.step(nodes)
    for node, site in zip(nodes, sites, strict=True):
        [mine], [theirs] = (
            charges(node).items(),
            [(path, Ledger.read(path).entries) for path in ledgers_in(site.client.ledgers)],
        )
        assert mine[0].name == theirs[0].name == site.client.gate.account.fingerprint[:16]
        assert len(mine[1]) == len(theirs[1]) == 1
        assert node.site.client.multiplicity == 1
        if site.client.multiplicity == 1:
            assert mine[1][0].cost == theirs[1][0].cost


# What leaves


def test_hello_tells_who_and_nothing_of_the_records(node):
    answer = node.answer(Request("hello", 0, node.terms.to_json()))
    assert answer.message == Message()
    assert answer.facts == {
        "name": node.terms.sites[0],
        "model": {"name": "mlp", "options": {}},
        "version": fedbnn.__version__,
        "terms": node.terms.digest,
    }
    assert not node.state.path.exists()


def test_metrics_stay_at_home_under_privacy(private):
    update = ask(private, "update", 0, first_message(private))
    assert update.message.arrays
    assert update.facts == {}
    assert ask(private, "evaluate", 0, first_message(private)).facts == {}
    lines = [json.loads(line) for line in (private.state.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["update", "evaluate"]
    assert 0 <= lines[1]["scores"]["personal"]["own_class_accuracy"] <= 1


def test_a_site_without_test_records_keeps_the_message_and_says_nothing(tmp_path):
    node = Node.from_file(write_sites(tmp_path, small_config(), test_records=False)[0])
    message = first_message(node)
    ask(node, "update", 0, message)
    assert ask(node, "evaluate", 0, message).facts == {}
    assert node.state.received()[0] == 0
    assert len(node.predict(torch.zeros(2, 1, 8, 8)).probs) == 2


DP_FEDAVG = ("methods.dp_fedavg.steps=2", "methods.dp_fedavg.epsilon=8.0")
PROMISING = {
    "dp_teacher": ("fedbnn", *PRIVATE),
    "dp_moments": ("fedbnn", *PRIVATE, "privacy.mechanism=dp_moments"),
    "output_perturbation": ("fedmd", *PRIVATE, "privacy.mechanism=output_perturbation", "privacy.force=true"),
    "records": ("dp_fedavg", *DP_FEDAVG),
    "clients": ("dp_fedavg", *DP_FEDAVG, 'methods.dp_fedavg.level="user"'),
}


def spoil(file, half, value=3e38):
    """Give a site one record that no model can bear."""
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    arrays[f"x_{half}"] = arrays[f"x_{half}"].copy()
    arrays[f"x_{half}"][0] = value
    np.savez(file.parent / "records.npz", **arrays)


@pytest.mark.parametrize("promise", PROMISING)
def test_under_a_promise_the_agreed_arrays_leave_and_nothing_else(tmp_path, promise):
    config = small_config(*PROMISING[promise])
    sites = Prepared.of(config, [config.method]).sites
    federation = Federation(config.chosen(), sites, seed=config.seed)
    nodes = site_nodes(write_sites(tmp_path, config))
    terms = nodes[0].terms
    assert terms.chosen().protects(terms.privacy) is not None
    for node in nodes:
        message = federation.method.broadcast(federation.server, node.site.client.index)
        update = ask(node, "update", 0, message)
        check(update.message, config.chosen().expected_upload(federation.roster, node.site.client.index))
        assert update.facts == {}
        assert ask(node, "update", 0, message).facts == {}
        assert ask(node, "evaluate", 0, message) == Answer()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("promise", ["dp_teacher", "records"])
def test_under_a_promise_no_record_changes_what_is_said_of_an_evaluation(tmp_path, promise, caplog):
    config = small_config(*PROMISING[promise])
    file = write_sites(tmp_path, config)[0]
    spoil(file, "test")
    node = Node.from_file(file)
    federation = Federation(config.chosen(), Prepared.of(config, [config.method]).sites, seed=config.seed)
    message = federation.method.broadcast(federation.server, 0)
    ask(node, "update", 0, message)
    assert ask(node, "evaluate", 0, message) == Answer()
    assert "values that are not finite" in caplog.text  # at home


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_without_a_promise_a_model_that_fails_is_told_of(tmp_path):
    file = write_sites(tmp_path, small_config())[0]
    spoil(file, "test")
    node = Node.from_file(file)
    ask(node, "update", 0, first_message(node))
    with pytest.raises(UserError, match="values that are not finite"):
        ask(node, "evaluate", 0, first_message(node))


def test_a_method_that_sends_more_than_agreed_is_stopped_at_home(private, monkeypatch):
    real = ClientHost.update

    def more(*arguments):
        reply = real(*arguments)
        return replace(reply, message=Message({**reply.message.arrays, "records": torch.tensor([60.0])}))

    monkeypatch.setattr(ClientHost, "update", more)
    with pytest.raises(UserError, match=r"it holds \['phi', 'records'\], agreed were \['phi'\]"):
        ask(private, "update", 0, first_message(private))
    assert private.state.turn() is None


@pytest.mark.parametrize("arrays", [{}, {"x": torch.ones(1)}, {"weights": torch.ones(7)}], ids=["none", "x", "short"])
@pytest.mark.parametrize("test_records", [True, False])
@pytest.mark.parametrize("silent", [True, False])
def test_a_message_that_no_model_can_use_is_not_kept(tmp_path, arrays, test_records, silent):
    """A server may send what it likes after the last round: the site's predictions stay as they were."""
    head = f"share_metrics = '{'no' if silent else 'yes'}'"
    node = Node.from_file(write_sites(tmp_path, small_config("fedavg"), head=head, test_records=test_records)[0])
    ask(node, "update", 0, first_message(node))
    ask(node, "evaluate", 0, first_message(node))
    x = torch.zeros(2, 1, 8, 8)
    before = node.predict(x).probs
    if silent:
        assert ask(node, "evaluate", 1, Message(arrays)) == Answer()
    else:
        with pytest.raises(ClientFailure):
            ask(node, "evaluate", 1, Message(arrays))
    assert node.state.received()[0] == 0
    assert torch.equal(node.predict(x).probs, before)


def test_a_stored_message_that_cannot_be_read_is_told_in_one_line(node):
    ask(node, "update", 0, first_message(node))
    unreadable = Message({"__metadata__": torch.ones(3)})  # as files of safetensors call something else
    node.state.keep_received(0, unreadable)
    with pytest.raises(UserError, match=r"message\.safetensors cannot be read .* delete"):
        node.predict(torch.zeros(2, 1, 8, 8))


def test_what_a_site_keeps_is_its_owners_to_read(private):
    for number in (0, 1):
        ask(private, "update", number, first_message(private))
        ask(private, "evaluate", number, first_message(private))
    state = private.state.path.parents[1]
    files = [path for path in state.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert {"metrics.jsonl", "turn.json", "manifest.json", "client-0000.safetensors", "message.safetensors"} <= {
        path.name for path in files
    }
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {path.name: "0o600" for path in files}
    for folder in (state, private.state.path, private.state.path / "checkpoint", private.state.path / "received"):
        assert folder.stat().st_mode & 0o777 == 0o700


# Asked again


def test_the_same_round_gets_the_stored_reply(private, monkeypatch):
    message = first_message(private)
    first = ask(private, "update", 0, message)
    before, spent = files_of(private.state.path), charges(private)
    assert [len(entries) for entries in spent.values()] == [1]

    def never(*arguments):
        raise AssertionError("nothing is to be computed")

    monkeypatch.setattr(ClientHost, "update", never)
    for again in (private, Node.from_file(private.state.path.parents[2] / "site.toml")):
        answer = ask(again, "update", 0, Message(dict(reversed(message.arrays.items()))))
        assert answer.message.to_bytes() == first.message.to_bytes()
        assert answer.facts == first.facts
    assert files_of(private.state.path) == before
    assert charges(private) == spent


def test_the_same_round_with_another_message_is_refused(tmp_path):
    node = Node.from_file(write_sites(tmp_path, small_config("fedavg"))[0])
    message = first_message(node)
    ask(node, "update", 0, message)
    other = Message({name: array + 1 for name, array in message.arrays.items()})
    before = files_of(node.state.path)
    with pytest.raises(UserError, match="round 0 was asked for before, with another message"):
        ask(node, "update", 0, other)
    assert files_of(node.state.path) == before


def test_past_rounds_are_refused_and_missed_ones_are_not(node):
    message = first_message(node)
    ask(node, "update", 0, message)
    ask(node, "update", 2, message)
    for kind in ("update", "evaluate"):
        with pytest.raises(UserError, match="round 1 is past"):
            ask(node, kind, 1, message)
    assert node.state.turn().round_number == 2


@pytest.mark.parametrize(
    ("kind", "number", "arrays", "words"),
    [
        ("update", 3, {}, "round 3 was asked for, agreed were 0 to 2"),
        ("update", -1, {}, "agreed were 0 to 2"),
        ("update", True, {}, "agreed were 0 to 2"),
        ("train", 0, {}, "not 'train'"),
        ("update", 0, {"a": torch.zeros(2, dtype=torch.float64)}, "'a' is torch.float64"),
        ("update", 0, {"a": torch.tensor([0.0, torch.nan])}, "'a' holds values that are not finite"),
        ("evaluate", 0, {"a": torch.tensor([torch.inf])}, "'a' holds values that are not finite"),
        ("update", 0, {"phi_bar": torch.tensor([[0.0, 3e38]])}, "'phi_bar' holds values beyond 1000000"),
        ("evaluate", 0, {"a": torch.tensor([-1.1e6])}, "'a' holds values beyond 1000000"),
        ("update", 0, {"a": torch.tensor([2**53 + 1])}, "'a' holds values beyond 9007199254740992"),
        ("update", 0, {"a": torch.tensor([-(2**63)])}, "'a' holds values beyond 9007199254740992"),
        ("update", 0, {"__metadata__": torch.zeros(1)}, "an array is called '__metadata__'"),
        ("evaluate", 0, {"__metadata__": torch.zeros(1)}, "an array is called '__metadata__'"),
        ("evaluate", 0, {"\x1b[2J": torch.zeros(1)}, "an array is called"),
        ("evaluate", 0, {"": torch.zeros(1)}, "an array is called ''"),
        ("update", 0, {"a" * 61: torch.zeros(1)}, "at most 60"),
        ("update", 0, {"a": torch.zeros(1).expand(LARGEST // 4 + 1)}, "at most 1073741824 are taken"),
    ],
)
def test_requests_that_no_server_of_these_terms_makes_are_refused(node, kind, number, arrays, words):
    with pytest.raises(UserError, match=words):
        ask(node, kind, number, Message(arrays))
    assert not node.state.path.exists()


def test_two_processes_do_not_work_on_one_run_of_a_site(node):
    ask(node, "update", 0, first_message(node))
    program = (
        "import sys; from pathlib import Path; from fedbnn.base.files import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(node.state.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="is in use by another process"):
            ask(node, "update", 1, first_message(node))
        other.stdin.close()
    ask(node, "update", 1, first_message(node))


def test_a_lock_in_the_same_process_counts_too(node):
    ask(node, "update", 0, first_message(node))
    with locked(node.state.path), pytest.raises(UserError, match="another process"):
        ask(node, "update", 1, first_message(node))


def test_another_model_cannot_go_on(tmp_path):
    file = write_sites(tmp_path, small_config())[0]
    node = Node.from_file(file)
    message = first_message(node)
    ask(node, "update", 0, message)
    file.write_text(file.read_text().replace("'mlp'", "'cnn2'"))
    other = Node.from_file(file)
    with pytest.raises(UserError, match=r"model.name was 'mlp', is 'cnn2'"):
        ask(other, "update", 1, message)


def test_a_damaged_turn_falls_back_to_the_one_before(node, caplog):
    message = first_message(node)
    ask(node, "update", 0, message)
    first = ask(node, "update", 1, message)
    file = node.state.path / "checkpoint" / "round-00001" / "client-0000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    again = ask(node, "update", 1, message)
    assert again.message.to_bytes() == first.message.to_bytes()
    assert "round-00001 is corrupt" in caplog.text


# Killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of sites whose nodes were killed, by the moment."""
    config = small_config("fedbnn", *PRIVATE, "privacy.mechanism=output_perturbation", "privacy.force=true")
    budget = "[privacy]\nepsilon = 5\ndelta = 1e-5"
    files = {one: write_sites(tmp_path_factory.mktemp(one), config, budget)[0] for one in dying_node.MOMENTS}
    words = [str(word) for moment, file in files.items() for word in (file, moment)]
    program = [sys.executable, "-m", "tests.deployment.dying_node", *words]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["-9"] * len(files), ended.stderr
    return files


@pytest.mark.parametrize("moment", dying_node.MOMENTS)
def test_killed_in_a_round_it_goes_on_with_nothing_spent_twice(killed, moment):
    """SIGKILL in round 1; a process that comes after answers as one that was never killed."""
    file = killed[moment]
    node = Node.from_file(file)
    released = sorted(path.name for path in node.site.client.ledgers.rglob("releases/*.bin"))
    assert node.state.turn().round_number == (1 if moment == "saved" else 0)
    warm_up = files_of(node.state.path / "checkpoint" / "round-00000")
    reply = ask(node, "update", 1, dying_node.message())
    assert files_of(node.state.path / "checkpoint" / "round-00000") == warm_up
    [(_, entries)] = charges(node).items()
    assert len(entries) == 2  # one for the warm-up, one for round 1
    if moment in ("charged", "writing", "saved"):
        assert sorted(path.name for path in node.site.client.ledgers.rglob("releases/*.bin")) == released
    again = ask(Node.from_file(file), "update", 1, dying_node.message())
    assert again.message.to_bytes() == reply.message.to_bytes()


# The cap


def test_the_cap_holds_for_all_runs_of_the_same_records_together(tmp_path):
    """Each run asks for epsilon 3: two cost 4.5 together, which a cap of 5 allows, and three 5.7, which it does not."""
    config = small_config("fedbnn", *PRIVATE)
    file = write_sites(tmp_path, config, "[privacy]\nepsilon = 5\ndelta = 1e-5")[0]
    for dimensions in (10, 11, 12):  # other features are another question, which is another release
        terms = json.loads((file.parent / "terms.json").read_text())
        terms["privacy"]["dimensions"] = dimensions
        (file.parent / "terms.json").write_text(json.dumps(terms))
        node = Node.from_file(file)
        if dimensions < 12:
            ask(node, "update", 0, Message())
        else:
            with pytest.raises(UserError, match=r"is refused: epsilon 4.* is spent on this data.* the cap is 5"):
                ask(node, "update", 0, Message())
            assert node.state.turn() is None
    [(folder, entries)] = charges(node).items()
    assert [entry.cap for entry in entries] == [Budget(5.0, 1e-5)] * 2
    assert entries[0].cost.mu == pytest.approx(gaussian_mu(3.0, 1e-5), rel=3e-6)
    assert 4 < Ledger.read(folder).spent(1e-5) < 5
    assert len(list((file.parent / "state" / "runs").iterdir())) == 3
