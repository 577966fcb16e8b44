"""Certificates and keys: read back by independent readers, and tried in real handshakes."""

import datetime
import ipaddress
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store

from fedbnn.base.errors import UserError
from fedbnn.deployment.trial.certificates import make_authority, make_node_key, make_server_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    make_server_certificate(folder, ["localhost", "127.0.0.1", "Fed.Example.org", "::1"])
    return folder


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", ["localhost", "fed.example.org"])
def test_the_chain_verifies_for_the_names_given_and_for_no_other(made: Path, host: str) -> None:
    policy = PolicyBuilder().store(Store([_certificate(made / "ca.pem")]))
    server = _certificate(made / "server.pem")
    policy.build_server_verifier(x509.DNSName(host)).verify(server, [])
    policy.build_server_verifier(x509.IPAddress(ipaddress.ip_address("127.0.0.1"))).verify(server, [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_server_verifier(x509.DNSName("evil.example.org")).verify(server, [])


def test_the_server_certificate_can_sign_no_other_and_ends_in_time(made: Path) -> None:
    server, authority = _certificate(made / "server.pem"), _certificate(made / "ca.pem")
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    now = datetime.datetime.now(datetime.UTC)
    assert now + datetime.timedelta(days=396) < server.not_valid_after_utc < now + datetime.timedelta(days=398)
    assert server.not_valid_before_utc < now


def _handshake(server: Path, trusted: Path, name: str) -> str:
    """What a client that trusts this authority says to a server with these files: its TLS version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)

    def serve() -> None:
        connection, _ = listener.accept()
        connection.settimeout(30)
        try:
            with context.wrap_socket(connection, server_side=True) as channel:
                channel.recv(1)
        except (ssl.SSLError, OSError):
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=trusted)
        with (
            socket.create_connection(listener.getsockname(), timeout=30) as plain,
            client.wrap_socket(plain, server_hostname=name) as channel,
        ):
            return channel.version() or ""
    finally:
        thread.join()
        listener.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_accepts_the_server(made: Path, name: str) -> None:
    assert _handshake(made, made / "ca.pem", name) == "TLSv1.3"


def test_a_client_refuses_another_authority_and_another_name(made: Path, tmp_path: Path) -> None:
    make_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(made, tmp_path / "ca.pem", "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _handshake(made, made / "ca.pem", "evil.example.org")


def test_private_keys_are_their_owners_alone(made: Path, tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node")
    assert public == tmp_path / "node.pub"
    assert [_mode(path) for path in (made / "ca.key", made / "server.key", tmp_path / "node")] == [0o600] * 3


def test_a_node_key_is_p384_in_openssh_format(tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node")
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == load_ssh_public_key(public.read_bytes())


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH here")
def test_openssh_derives_the_same_public_key(tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node")
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "node"], check=True, capture_output=True, text=True
    ).stdout
    assert derived.split()[:2] == public.read_text().split()


def test_nothing_is_written_over(made: Path, tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    before = {path: path.read_bytes() for path in (*made.iterdir(), *tmp_path.iterdir())}
    for again in (
        lambda: make_authority(made),
        lambda: make_server_certificate(made, ["localhost"]),
        lambda: make_node_key(tmp_path / "node"),
    ):
        with pytest.raises(UserError, match="is there already"):
            again()
    assert {path: path.read_bytes() for path in before} == before


def test_a_new_server_certificate_needs_no_new_authority(made: Path, tmp_path: Path) -> None:
    for name in ("ca.pem", "ca.key"):
        shutil.copy(made / name, tmp_path)
    make_server_certificate(tmp_path, ["localhost"])
    assert _handshake(tmp_path, made / "ca.pem", "localhost")


@pytest.mark.parametrize(
    ("hosts", "said"),
    [([], "--host"), (["https://x"], "https://x"), (["x:1"], "x:1"), (["a b"], "a b"), ([""], "--host")],
)
def test_hosts_that_are_none_are_refused_before_anything_is_written(
    tmp_path: Path, hosts: list[str], said: str
) -> None:
    make_authority(tmp_path)
    with pytest.raises(UserError, match=said):
        make_server_certificate(tmp_path, hosts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem"]


def test_a_key_that_is_not_the_authoritys_is_refused(made: Path, tmp_path: Path) -> None:
    make_authority(tmp_path)
    shutil.copy(made / "ca.pem", tmp_path)
    with pytest.raises(UserError, match=r"ca\.key does not belong"):
        make_server_certificate(tmp_path, ["localhost"])
