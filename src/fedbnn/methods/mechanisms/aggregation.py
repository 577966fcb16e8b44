"""Secure aggregation as messages of a round: the protocol of `privacy.secure` between a server and its clients.

A round is then as many exchanges as the protocol has phases. In each the server sends the head at which sums are
wanted, the phase and its request; a client answers. It learns from its records in the first only, and the numbers that
it masks are a release of its own, under its own keys of this aggregation: numbers that went into one sum never go into
a second, since from two sums of nearly the same clients the difference could be taken.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from fedbnn.features.public import digest_of
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.parties import Client, Roster
from fedbnn.privacy.secure.client_half import ClientHalf
from fedbnn.privacy.secure.server_half import ServerHalf
from fedbnn.privacy.secure.session import Phase, ProtocolError, Session
from fedbnn.privacy.secure.signing import read_signing_key

_BYTES = 4  # of a word
_MOST = 2**32 - 1

Sums = Callable[[str], Tensor]
"""A client's noisy sums, for an occasion: on another one it is another release."""


def session_of(party: Client | Roster, head: Tensor, numbers: int) -> Session:
    """What client and server agree on, each by its own settings; with other noise it is another aggregation."""
    about = digest_of("dp_moments", party.seed, party.rounds, party.multiplicity, head.cpu())
    threshold = party.privacy.crowd(party.clients).threshold
    signers = tuple(bytes.fromhex(key) for key in party.signers)
    return Session(bytes.fromhex(about), party.clients, threshold, numbers, signers)


def question(half: ServerHalf, head: Tensor, client: int) -> dict[str, Tensor]:
    """What a client is asked with."""
    return {"head": head, "phase": torch.tensor([half.phase]), "request": words(half.request(client))}


def answer_spec(session: Session, phase: Phase) -> UploadSpec:
    """What a client must answer in this phase."""
    return {"answer": Integers((session.answer_size(phase) // _BYTES,), _MOST)}


def taken(half: ServerHalf, replies: Mapping[int, Message]) -> ServerHalf:
    """The server's half after these replies."""
    answers = {}
    for client, reply in replies.items():
        with suppress(ProtocolError):
            answers[client] = data(reply.arrays["answer"])
    return half.taken(answers)


def phase_of(message: Message) -> Phase:
    """Which phase a message asks for."""
    phase = message.get("phase")
    if phase is None or phase.shape != (1,) or phase.dtype != torch.int64 or not 0 <= int(phase) < Phase.DONE:
        raise ProtocolError("secure aggregation: a message does not say which phase it asks for")
    return Phase(int(phase))


def answered(
    memory: Tensor | None, client: Client, message: Message, session: Session, sums: Sums
) -> tuple[Message, Tensor | None]:
    """A client's answer, and its memory for the next phase."""
    phase, request = phase_of(message), message.get("request")
    if request is None or request.dtype != torch.int64 or request.dim() != 1:
        raise ProtocolError("secure aggregation: a message comes without request")
    asked = data(request)
    if phase == Phase.KEYS:
        half, answer = ClientHalf.begin(session, client.index, _signing_key(client))
    elif memory is None:
        raise ProtocolError(f"secure aggregation: phase {phase.name} was asked for, none has begun")
    else:
        half = ClientHalf.from_bytes(session, data(memory))
        if phase == Phase.SHARES:
            half, answer = half.shared(asked)
        elif phase == Phase.MASKED:
            half.check(asked)
            occasion = hashlib.sha256(half.card).hexdigest()
            half, answer = half.masked(asked, sums(occasion).numpy())
        elif phase == Phase.VOTES:
            half, answer = half.vote(asked, _signing_key(client))
        else:
            half, answer = half.revealed(asked)
    return Message({"answer": words(answer)}), None if half.phase == Phase.DONE else words(half.to_bytes())


def words(given: bytes) -> Tensor:
    """Bytes as whole numbers, four to each: larger ones are not let through by either side's door."""
    return torch.from_numpy(np.frombuffer(given, "<u4").astype(np.int64))


def data(given: Tensor) -> bytes:
    """The bytes that `words` was given."""
    if bool(((given < 0) | (given > _MOST)).any()):
        raise ProtocolError(f"secure aggregation: a message holds numbers that are not from 0 to {_MOST}")
    return given.cpu().numpy().astype("<u4").tobytes()


def _signing_key(client: Client) -> bytes:
    return b"" if client.signing_key is None else read_signing_key(client.signing_key)
