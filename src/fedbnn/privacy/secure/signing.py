"""A client's signing key in secure aggregation: an Ed25519 key in a file, one line of hex, for its owner's eyes only.

The private half signs this client's keys and votes in every aggregation and never leaves; the public half stands in
what all parties agree on, so that nobody, the server least of all, can speak for another.
"""

import os
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.privacy.secure.primitives import KEY, signer_of


def make_signing_key(path: Path) -> str:
    """Write a new private key to a file that is not there yet; return the public one, in hex."""
    key = os.urandom(KEY)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.hex() + "\n")
    except FileExistsError:
        raise UserError(f"{path} is there already; move it away first if you want a new one") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return signer_of(key).hex()


def read_signing_key(path: Path) -> bytes:
    """The private key that `make_signing_key` wrote."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        key = b""
    if len(key) != KEY:
        raise UserError(f"signing_key = '{path}': is no key that `fedbnn flower signing-key` has made")
    return key
