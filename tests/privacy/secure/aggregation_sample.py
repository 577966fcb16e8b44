"""A whole aggregation in one process, with clients that drop out where a test wants them to."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedbnn.privacy.secure.client_half import ClientHalf
from fedbnn.privacy.secure.primitives import signer_of
from fedbnn.privacy.secure.server_half import ServerHalf
from fedbnn.privacy.secure.session import Phase, Session


class Parties:
    """A server and its clients; `run` goes through the phases up to, but without, `until`."""

    def __init__(self, inputs: Sequence[np.ndarray], threshold: int, signers: bool = True, about: bytes = b"test"):
        self.inputs = [np.asarray(one, np.int64) for one in inputs]
        self.signing = [os.urandom(32) if signers else b"" for _ in inputs]
        known = tuple(signer_of(key) for key in self.signing) if signers else ()
        self.session = Session(hashlib.sha256(about).digest(), len(inputs), threshold, len(self.inputs[0]), known)
        self.server = ServerHalf.begin(self.session)
        self.clients: dict[int, ClientHalf] = {}
        self.sent: dict[Phase, dict[int, bytes]] = {}

    def answer(self, client: int, request: bytes | None = None) -> bytes:
        """The client's answer in the server's phase; the client goes on."""
        phase, request = self.server.phase, self.server.request(client) if request is None else request
        if phase == Phase.KEYS:
            self.clients[client], reply = ClientHalf.begin(self.session, client, self.signing[client])
            return reply
        half = self.clients[client]
        if phase == Phase.SHARES:
            half, reply = half.shared(request)
        elif phase == Phase.MASKED:
            half, reply = half.masked(request, self.inputs[client])
        elif phase == Phase.VOTES:
            half, reply = half.vote(request, self.signing[client])
        else:
            half, reply = half.revealed(request)
        self.clients[client] = half
        return reply

    def run(
        self, gone: Mapping[Phase, Collection[int]] | None = None, until: Phase = Phase.DONE, saved: bool = False
    ) -> "Parties":
        """Clients in gone[phase] do not answer from that phase on; with `saved` all memories go through bytes."""
        away: set[int] = set()
        while self.server.phase < until:
            phase = self.server.phase
            away |= set((gone or {}).get(phase, ()))
            replies = {client: self.answer(client) for client in self.server.asked if client not in away}
            self.sent[phase] = replies
            self.server = self.server.taken(replies)
            if saved:
                for client, half in self.clients.items():
                    self.clients[client] = ClientHalf.from_bytes(self.session, half.to_bytes())
                if self.server.phase < Phase.DONE:
                    self.server = ServerHalf.from_bytes(self.server.to_bytes())
        return self


def random_inputs(clients: int, size: int = 7, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**63), 2**63 - 1, size, np.int64, endpoint=True) for _ in range(clients)]


def wrapped_sum(inputs: Sequence[np.ndarray], clients: Collection[int]) -> np.ndarray:
    """Modulo 2^64, in Python's own whole numbers."""
    totals = [sum(int(inputs[client][k]) for client in clients) for k in range(len(inputs[0]))]
    return np.array([(total + 2**63) % 2**64 - 2**63 for total in totals], np.int64)
