"""What all parties of one aggregation agree on beforehand, and the layout of what they send.

An aggregation goes through phases, in each of which the server asks (R) and every client that is left answers (A); n
clients, U_k those whose answer of phase k arrived in time, each at least t of them:

    KEYS       R nothing                              A two public keys, signed
    SHARES     R the keys of all of U_0               A for each of U_0 a sealed pair of shares; a hash of the own seed
    MASKED     R the sealed shares for this client    A its numbers, masked against U_1
    VOTES      R U_2                                  A a signature of U_2 and of the keys of U_0
    REVEALED   R U_2 and the signatures               A for each of U_1 one share: of its seed if it is in U_2, else of
                                                        its key for pairs

Signatures need every client to know the others' signers, their Ed25519 public keys, beforehand. Without them there are
no VOTES, and whoever runs the server could play all the peers of a client: all of this then protects against a server
that follows the protocol and is curious, and no more. With them and 2 t > n + corrupt, not even a server that lies,
together with `corrupt` clients, learns anything of the others but the sum of at least t - corrupt of them:

- to unmask a client u it needs u's seed b_u, and u's pair masks: u's pair key or those of all its peers. Every client
  that follows the protocol reveals one kind of share of u, once. For t shares of both kinds, two sets of t clients
  would have only liars in common: 2 t <= n + corrupt;
- for the same reason no two different U_2 get t signatures: all who reveal anything do so for the same U_2, which has
  t members or more. A signature is of the table of keys too, in which the client's own are fresh: those of another
  aggregation, be it about the same, are of no use.

What is sent is bytes of a fixed length for n clients, whole words of 8 bytes. Anything else is refused.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

from fedbnn.base.errors import UserError
from fedbnn.privacy.secure.primitives import KEY, SEAL, SIGNATURE, Forged, agreed_key, check_signature
from fedbnn.privacy.secure.shamir import SECRET, SHARE

MOST_CLIENTS = 1000
HASH = 32
LETTER = SEAL + 2 * SHARE  # a sealed pair of shares
CARD = 2 * KEY + SIGNATURE  # public keys of a client
REVEAL = 40  # a share, its kind and padding


class ProtocolError(UserError):
    """A message that is not as agreed, or too few of them; the text tells nothing that depends on records."""


class Phase(IntEnum):
    """What clients answer."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    VOTES = 3
    REVEALED = 4
    DONE = 5


class Kind(IntEnum):
    """Of which of a client's two secrets a revealed share is."""

    NONE = 0
    SEED = 1  # of a client whose numbers arrived
    PAIRS = 2  # the private key behind its pair masks, of a client whose numbers did not arrive


@dataclass(frozen=True)
class Session:
    """One aggregation. Attributes:

    about: a hash of what is added, e.g. a round of a run; every key and signature is bound to it.
    clients: how many there are; a client is known by its index.
    threshold: t, how many must stay to the end.
    numbers: how many numbers each client has.
    signers: the Ed25519 public keys of all clients; empty: none of them are known.

    """

    about: bytes
    clients: int
    threshold: int
    numbers: int
    signers: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.about) != HASH:
            raise ProtocolError(f"what an aggregation is about is a hash of {HASH} bytes, not {len(self.about)}")
        if not 2 <= self.clients <= MOST_CLIENTS:
            raise ProtocolError(f"secure aggregation is for 2 to {MOST_CLIENTS} clients, not {self.clients}")
        if not self.clients < 2 * self.threshold <= 2 * self.clients:
            raise ProtocolError(
                f"threshold is {self.threshold}: must be more than half of the {self.clients} clients, and no more "
                "than there are"
            )
        if self.signers and (len(set(self.signers)) != self.clients or {*map(len, self.signers)} != {KEY}):
            raise ProtocolError(f"signers must be {self.clients} different keys of {KEY} bytes")

    @property
    def context(self) -> bytes:
        """A hash of all of the above."""
        return hashlib.sha256(b"fedbnn secure aggregation 1" + self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """All of the above, in whole words."""
        sizes = (self.clients, self.threshold, self.numbers, len(self.signers))
        return b"".join([*(size.to_bytes(8) for size in sizes), self.about, *self.signers])

    @classmethod
    def read(cls, data: bytes) -> tuple["Session", bytes]:
        """The session that `to_bytes` was called on, and what follows it."""
        sizes = [int.from_bytes(data[8 * k : 8 * (k + 1)]) for k in range(4)]
        about, end = data[32 : 32 + HASH], 32 + HASH + KEY * sizes[3]
        signers = rows(data[32 + HASH : end], sizes[3], KEY)
        return cls(about, sizes[0], sizes[1], sizes[2], tuple(signers)), data[end:]

    def after(self, phase: Phase) -> Phase:
        """The next phase."""
        if phase == Phase.MASKED and not self.signers:
            return Phase.REVEALED
        return Phase(phase + 1)

    def request_size(self, phase: Phase) -> int:
        """Bytes of what the server asks with."""
        flags = padded(self.clients)
        sizes = {
            Phase.KEYS: 0,
            Phase.SHARES: CARD * self.clients,
            Phase.MASKED: LETTER * self.clients,
            Phase.VOTES: flags,
            Phase.REVEALED: flags + SIGNATURE * self.clients,
        }
        return sizes[phase]

    def answer_size(self, phase: Phase) -> int:
        """Bytes of what a client answers."""
        sizes = {
            Phase.KEYS: CARD,
            Phase.SHARES: SECRET + LETTER * self.clients,
            Phase.MASKED: 8 * self.numbers,
            Phase.VOTES: SIGNATURE,
            Phase.REVEALED: REVEAL * self.clients,
        }
        return sizes[phase]

    def require_enough(self, clients: Collection[int], what: str) -> None:
        if len(clients) < self.threshold:
            raise ProtocolError(
                f"secure aggregation: {len(clients)} clients {what}, {self.threshold} of {self.clients} are needed"
            )

    def pair_seed(self, private: bytes, public: bytes, one: int, other: int) -> bytes:
        """The seed that two clients have in common."""
        first, second = sorted((one, other))
        return self._agreed(private, public, b"mask", first, second)

    def letter_key(self, private: bytes, public: bytes, sender: int, receiver: int) -> bytes:
        """The key under which one client seals shares for another."""
        return self._agreed(private, public, b"letter", sender, receiver)

    def check_signed(self, client: int, signature: bytes, text: bytes) -> None:
        """Refuse what this client did not sign; without signers nothing is signed."""
        if not self.signers:
            return
        try:
            check_signature(self.signers[client], signature, text)
        except Forged:
            raise ProtocolError(f"secure aggregation: the signature of client {client} does not fit") from None

    def keys_text(self, client: int, keys: bytes) -> bytes:
        """What a client signs of its keys."""
        return b"keys" + self.context + client.to_bytes(4) + keys

    def vote_text(self, survivors: Collection[int], cards: bytes) -> bytes:
        """What a client signs of those whose numbers are added, in the aggregation with this table of keys."""
        return b"vote" + self.context + hashlib.sha256(cards).digest() + flags_of(survivors, self.clients)

    def _agreed(self, private: bytes, public: bytes, purpose: bytes, one: int, other: int) -> bytes:
        try:
            return agreed_key(private, public, purpose + self.context + one.to_bytes(4) + other.to_bytes(4))
        except Forged:
            raise ProtocolError("secure aggregation: a client's public key is none") from None


def pieces(data: bytes, *sizes: int) -> list[bytes]:
    """The data cut into pieces of these sizes, which must be all of it."""
    if len(data) != sum(sizes):
        raise ProtocolError(f"secure aggregation: a message has {len(data)} bytes, agreed were {sum(sizes)}")
    found, start = [], 0
    for size in sizes:
        found.append(data[start : start + size])
        start += size
    return found


def rows(data: bytes, count: int, size: int) -> list[bytes]:
    """The data cut into so many pieces of one size."""
    return pieces(data, *[size] * count)


def present(table: Sequence[bytes]) -> list[int]:
    """The rows in which anything stands."""
    return [index for index, row in enumerate(table) if any(row)]


def padded(size: int) -> int:
    """The size in whole words of 8 bytes."""
    return -(-size // 8) * 8


def flags_of(clients: Collection[int], count: int) -> bytes:
    """A byte for each client, 1 for those named, in whole words."""
    return bytes(index in clients for index in range(padded(count)))


def named(flags: bytes, count: int) -> list[int]:
    """The clients that `flags_of` was given."""
    found = [index for index, flag in enumerate(flags) if flag]
    if flags != flags_of(found, count) or any(index >= count for index in found):
        raise ProtocolError("secure aggregation: a list of clients is not as agreed")
    return found
