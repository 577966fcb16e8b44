"""Certificates and keys of a deployment: the server shows who it is by TLS, a site by a key of its own.

Two files with a private key are made at the server (`ca.key`, `server.key`) and one at every site. None of them ever
travels: sites get `ca.pem`, the server gets a site's public key.
"""

import datetime
import inspect
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbnn.base.errors import UserError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397  # the longest that browsers and Apple's TLS accept of a server
CLOCK_SKEW = datetime.timedelta(hours=1)  # a site whose clock is a little behind accepts a new certificate at once
HOST_NAME = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")

Names = list[x509.GeneralName]


def make_authority(folder: Path) -> None:
    """Write `ca.pem`, which sites trust, and `ca.key`, which signs the server's certificates and nothing below them."""
    refuse_existing(folder / "ca.pem", folder / "ca.key")
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbnn federation")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _dated(AUTHORITY_DAYS)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", _pem(key))
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def make_server_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Write `server.pem` and `server.key`, signed by the authority in the same folder.

    `hosts` are the names and IP addresses under which the server is called, by sites and by itself: a client refuses
    the certificate under any other.
    """
    names = [_general_name(host) for host in hosts]
    if not names:
        raise UserError("--host: name at least one host name or IP address under which sites reach the server")
    refuse_existing(folder / "server.pem", folder / "server.key")
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _dated(SERVER_DAYS)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbnn server")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_private(folder / "server.key", _pem(key))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def make_node_key(path: Path) -> Path:
    """Write a site's private key to `path` and its public key to `path`.pub; return the latter.

    ECDSA on P-384, both in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` makes them and Flower reads them.
    """
    public = path.with_name(path.name + ".pub")
    refuse_existing(path, public)
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def refuse_existing(*paths: Path) -> None:
    """A key that is there may be in use: never write over it."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path} is there already; move it away first if you want a new one")
        if not path.parent.is_dir():
            raise UserError(f"{path.parent} is no folder; make it first")


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner can read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder}: ca.pem and ca.key cannot be read ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UserError(f"{folder}: ca.key does not belong to ca.pem")
    return certificate, key


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST_NAME.match(host.lower()):
        raise UserError(
            f"--host {host}: give a host name such as fed.example.org, or an IP address; no port, no scheme"
        )
    return x509.DNSName(host.lower())


def _dated(days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*granted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in granted for usage in inspect.signature(x509.KeyUsage).parameters})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
