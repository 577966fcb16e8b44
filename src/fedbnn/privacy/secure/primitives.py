"""The cryptography that the protocol stands on, each primitive as one function over bytes.

X25519 agrees on a secret, HKDF-SHA256 makes keys of it, ChaCha20 stretches a key to a mask, ChaCha20-Poly1305 seals
shares on their way through the server, Ed25519 signs. All are the package `cryptography`'s; none is written here.
"""

import importlib
from typing import Any

from fedbnn.base.errors import UserError

KEY = 32  # bytes of a key, public or private, and of a seed
SIGNATURE = 64
NONCE = 12
SEAL = NONCE + 16  # bytes that sealing adds

_ASYMMETRIC = "hazmat.primitives.asymmetric"


class Forged(ValueError):
    """Bytes that do not come from who they claim to come from."""


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private one: any 32 random bytes."""
    key = _module(f"{_ASYMMETRIC}.x25519").X25519PrivateKey.from_private_bytes(private)
    return bytes(key.public_key().public_bytes_raw())


def agreed_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key that the owners of both pairs, and nobody else, can make for this purpose; Forged for a bad point."""
    x25519 = _module(f"{_ASYMMETRIC}.x25519")
    try:
        other = x25519.X25519PublicKey.from_public_bytes(public)
        secret = x25519.X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:  # of low order: the secret would be the same for every private key
        raise Forged("a public key is none") from error
    hashes, hkdf = _module("hazmat.primitives.hashes"), _module("hazmat.primitives.kdf.hkdf")
    return bytes(hkdf.HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=purpose).derive(secret))


def stream(seed: bytes, size: int) -> bytes:
    """The first `size` bytes of ChaCha20's key stream; a seed is used for one stream only."""
    ciphers = _module("hazmat.primitives.ciphers")
    algorithm = ciphers.algorithms.ChaCha20(seed, bytes(16))
    return bytes(ciphers.Cipher(algorithm, mode=None).encryptor().update(bytes(size)))


def sealed(key: bytes, nonce: bytes, text: bytes, label: bytes) -> bytes:
    """The text, readable and changeable for owners of the key only, and bound to the label."""
    return nonce + bytes(_aead(key).encrypt(nonce, text, label))


def opened(key: bytes, data: bytes, label: bytes) -> bytes:
    """What was sealed under this key and label; Forged if it was not."""
    try:
        return bytes(_aead(key).decrypt(data[:NONCE], data[NONCE:], label))
    except _module("exceptions").InvalidTag as error:
        raise Forged("a sealed text was changed") from error


def signer_of(signing: bytes) -> bytes:
    """The Ed25519 public key by which others know the owner of a signing key: any 32 random bytes."""
    key = _module(f"{_ASYMMETRIC}.ed25519").Ed25519PrivateKey.from_private_bytes(signing)
    return bytes(key.public_key().public_bytes_raw())


def signature(signing: bytes, text: bytes) -> bytes:
    return bytes(_module(f"{_ASYMMETRIC}.ed25519").Ed25519PrivateKey.from_private_bytes(signing).sign(text))


def check_signature(signer: bytes, signed: bytes, text: bytes) -> None:
    """Raise Forged unless this signer signed this text."""
    try:
        _module(f"{_ASYMMETRIC}.ed25519").Ed25519PublicKey.from_public_bytes(signer).verify(signed, text)
    except (ValueError, _module("exceptions").InvalidSignature) as error:
        raise Forged("a signature does not fit") from error


def _aead(key: bytes) -> Any:
    return _module("hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.{name}")
    except ImportError as error:
        raise UserError("privacy.aggregation = 'secure' needs the extra: pip install 'fedbnn[secure]'") from error
