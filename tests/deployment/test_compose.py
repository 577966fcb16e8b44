"""deploy/: the image and the containers. There is no Docker here, so that all is checked that needs none."""

import inspect
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from fedbnn.cli.app import main
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import read_terms
from fedbnn.deployment.trial import loopback

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SITES = ("client-0", "client-1", "client-2")


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """What setup.sh writes: a shell runs it, and this process what it calls, so that torch is imported once."""
    folder, programs = tmp_path_factory.mktemp("federation"), tmp_path_factory.mktemp("programs")
    (programs / "fedbnn").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" "" >> "{programs}/called"\n', encoding="utf-8")
    (programs / "fedbnn").chmod(0o755)
    env = {"FED": str(folder), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", DEPLOY / "setup.sh"], env=env, check=True)
    calls = (programs / "called").read_text(encoding="utf-8").strip().split("\n\n")
    assert len(calls) == 5
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            main(call.split("\n"))
        assert not ended.value.code
    return folder


def lines_of(name: str) -> list[list[str]]:
    """The instructions of a Dockerfile, each in words."""
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def mounts(service) -> dict[str, str]:
    """By place in the container: what of deploy/ is there."""
    return {one.split(":")[1]: one.split(":")[0] for one in service.get("volumes", [])}


def options(command: str) -> set[str]:
    return {word for word in shlex.split(command) if word.startswith("--")}


def test_the_image_has_exact_versions_no_root_and_no_secret():
    steps = lines_of("Dockerfile")
    installs = [words for words in steps if words[0] == "RUN" and "pip" in words and "install" in words]
    assert all(
        "--constraint" in words and words[words.index("--constraint") + 1] == "constraints.txt" for words in installs
    )
    assert installs[0][-1] == "torch"
    assert installs[0][installs[0].index("--index-url") + 1].endswith("/whl/cpu")
    assert "\ntorch==" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    extras = re.fullmatch(r'"\.\[(.*)\]"', installs[1][-1])
    assert extras
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= known.keys()
    assert [words[1] for words in steps if words[0] == "USER"] == ["fed"]
    assert next(words for words in reversed(steps) if words[0] == "FROM")[1] == steps[0][1]
    for words in steps:
        assert not (words[0] in ("ENV", "ARG") and re.search("(?i)secret|token|passw|_key", " ".join(words)))


def test_what_is_copied_is_there_and_nothing_else_gets_into_the_image():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line[1:] for line in rules if line.startswith("!")}
    copied = {
        one
        for words in lines_of("Dockerfile")
        if words[0] == "COPY" and "--from=build" not in words
        for one in words[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    assert all(os.access(DEPLOY / name, os.X_OK) for name in ("setup.sh", "submit.sh"))


def test_setup_writes_a_federation_whose_sites_are_the_services(services, federation):
    terms = read_terms(federation / "trial" / "server" / "terms.json")
    assert terms.sites == SITES
    assert {name for name in services if name.startswith("client-")} == set(SITES)
    for name in SITES:
        found = mounts(services[name])
        inside = DEPLOY / found.pop("/site")
        assert inside == DEPLOY / "federation" / "trial" / "sites" / name
        assert list(found) == ["/certificates/ca.pem"]  # nothing of others, and not the authority's key
        assert read_site(federation / "trial" / "sites" / name / "site.toml").name == name


def test_every_path_that_is_mounted_or_named_exists(services, federation):
    for name, service in services.items():
        held = mounts(service)
        for place in held.values():
            assert place.startswith("./")
            if place.startswith("./federation"):
                assert (federation / Path(place).relative_to("federation")).exists(), (name, place)
            else:
                assert (DEPLOY / place).exists(), (name, place)
        for word in shlex.split(service.get("command", "")):
            for path in re.findall(r"/(?:certificates|site|link)/[\w.-]+", word):
                if path != "/link/link.db":  # which the link makes
                    [(place, outer)] = [(a, b) for a, b in held.items() if path == a or path.startswith(f"{a}/")]
                    outer_path = federation / Path(outer).relative_to("federation") / Path(path).relative_to(place)
                    assert outer_path.exists(), (name, path)
    app = tomllib.loads((federation / "trial" / "pyproject.toml").read_text(encoding="utf-8"))
    server = Path(app["tool"]["flwr"]["app"]["config"]["server"])
    assert Path("/fed") / server.relative_to(federation) == Path("/fed/trial/server")
    assert "/fed/trial/server" in mounts(services["link"])


def test_commands_are_those_that_trials_run(services):
    """Trials on the loopback are run for real (`make test-flower`); what they do not pass, containers do not either."""
    passed = set(re.findall(r'"(--[\w-]+)"', inspect.getsource(loopback)))
    for name in ("link", *SITES):
        command = services[name]["command"]
        assert shlex.split(command)[0] == ("flower-superlink" if name == "link" else "flower-supernode")
        assert options(command) <= passed
    submitted = (DEPLOY / "submit.sh").read_text(encoding="utf-8")
    assert options(" ".join(re.findall("^ *flwr .*?(?= \\|\\||$)", submitted, re.MULTILINE))) == {"--name", "--stream"}
    for name, script in (("setup", "setup.sh"), ("submit", "submit.sh")):
        assert services[name]["command"] == script


def test_ports_and_names_agree(services, federation):
    nginx = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    link, site = (shlex.split(services[name]["command"]) for name in ("link", "client-0"))
    host, port = site[site.index("--superlink") + 1].split(":")
    assert re.findall(r"listen (\d+) ssl;", nginx) == [port]
    assert host in services
    assert re.findall(r"server_name (\w+);", nginx) == [host]
    inner = link[link.index("--port") + 1]
    assert re.findall(r"proxy_pass https://(\w+):(\d+);", nginx) == [("link", inner)]
    assert f'address = "link:{inner}"' in (DEPLOY / "submit.sh").read_text(encoding="utf-8")
    certificate = x509.load_pem_x509_certificate((federation / "certificates" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"link", host} <= set(names.get_values_for_type(x509.DNSName))
    assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))
    assert re.findall(r"location (\S+) ", nginx) == ["/v1/fleet/", "/"]
    assert "location / { return 404; }" in nginx


def test_sites_reach_the_proxy_alone_and_nobody_is_root(services):
    networks = {name: set(service.get("networks", [])) for name, service in services.items()}
    assert [name for name, on in networks.items() if "server" in on and "sites" in on] == ["proxy"]
    assert networks["link"] == networks["submit"] == {"server"}
    assert all(networks[name] == {"sites"} for name in SITES)
    declared = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["networks"]
    assert declared == {"server": {"internal": True}, "sites": {"internal": True}}
    for service in services.values():
        assert "ports" not in service
        assert not service["user"].startswith("0")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
