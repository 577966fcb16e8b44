"""The commands of `fedbnn flower`, as far as they go without starting Flower."""

import importlib.util
from pathlib import Path

import pytest

from fedbnn.cli.app import main
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import read_terms
from tests.conftest import TINY


@pytest.fixture
def call(capsys):
    """Run the command line: exit code, standard output, standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["flower", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def tiny():
    return [part for change in TINY if not change.startswith("partition") for part in ("--set", change)]


def test_help_names_every_command(call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert all(name in out for name in ("init", "up", "certificates", "key", "docs/deployment.md"))


def test_init_writes_as_many_sites_as_it_is_told(call, tiny, tmp_path: Path) -> None:
    code, out, err = call("init", tmp_path / "new", "--nodes", 2, "--run", "trial-1", *tiny)
    assert (code, err) == (0, "")
    assert f"fedbnn flower up {tmp_path / 'new'}" in out
    terms = read_terms(tmp_path / "new" / "server" / "terms.json")
    assert (terms.run, terms.sites) == ("trial-1", ("client-0", "client-1"))
    assert read_site(tmp_path / "new" / "sites" / "client-1" / "site.toml").name == "client-1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "2", "--set", "partition.kind=natural"], "--nodes 2"),
        (["--set", "rounds=0"], "rounds"),
        (["--run", "../x"], "--run ../x"),
        (["--run", "a\n"], "--run a"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_init_tells_a_mistake_and_writes_nothing(call, tmp_path: Path, arguments: list[str], said: str) -> None:
    code, _, err = call("init", tmp_path / "new", *arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_what_is_no_federation_or_not_all_of_it(call, tiny, tmp_path: Path) -> None:
    code, _, err = call("up", tmp_path)
    assert (code, "flower init" in err) == (2, True)
    call("init", tmp_path / "new", "--nodes", 3, *tiny)
    code, _, err = call("up", tmp_path / "new", "--nodes", 2)
    assert code == 2
    assert "name 3 sites" in err
    assert "fedbnn flower init NEW --nodes 2" in err
    assert not (tmp_path / "new" / "loopback").exists()


def test_up_reads_every_site_file_before_it_starts_anything(call, tiny, tmp_path: Path) -> None:
    call("init", tmp_path / "new", "--nodes", 2, *tiny)
    (tmp_path / "new" / "sites" / "client-1" / "site.toml").write_text("name = 3\n", encoding="utf-8")
    code, _, err = call("up", tmp_path / "new")
    assert code == 2
    assert "client-1" in err
    assert not (tmp_path / "new" / "loopback").exists()


@pytest.mark.parametrize("command", [["up", "x"], ["certificates", "x", "--host", "a"], ["key", "x"]])
def test_without_the_extra_there_is_one_clear_error(call, monkeypatch, tmp_path: Path, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = call(*command)
    assert (code, "pip install 'fedbnn[flower]'" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_certificates_and_keys_are_made_once(call, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    made = tmp_path / "server"
    assert call("certificates", made, "--host", "fed.example.org")[0] == 0
    assert sorted(path.name for path in made.iterdir()) == ["ca.key", "ca.pem", "server.key", "server.pem"]
    code, _, err = call("certificates", made, "--host", "fed.example.org")
    assert (code, "is there already" in err) == (2, True)
    authority = (made / "ca.pem").read_bytes()
    for name in ("server.pem", "server.key"):
        (made / name).unlink()
    assert call("certificates", made, "--host", "other.example.org")[0] == 0
    assert (made / "ca.pem").read_bytes() == authority

    code, out, _ = call("key", tmp_path / "north")
    assert (code, str(tmp_path / "north.pub") in out) == (0, True)
    assert call("key", tmp_path / "north")[0] == 2
