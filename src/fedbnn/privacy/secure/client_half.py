"""The client's half of an aggregation: what it answers in each phase, and what it refuses.

Its memory is bytes of a fixed layout, so that it can be kept on disk between the phases, and every phase is answered
once: an answer leaves the half in the next phase. When it has revealed shares, it has forgotten all secrets, so that no
later question can make it reveal the other share of anybody.
"""

import hashlib
import os
from dataclasses import dataclass, replace

from fedbnn.privacy.secure import shamir
from fedbnn.privacy.secure.masks import Numbers, mask, pair_masks, words
from fedbnn.privacy.secure.primitives import (
    KEY,
    NONCE,
    SIGNATURE,
    Forged,
    opened,
    public_key,
    sealed,
    signature,
)
from fedbnn.privacy.secure.session import (
    CARD,
    LETTER,
    REVEAL,
    Kind,
    Phase,
    ProtocolError,
    Session,
    named,
    padded,
    pieces,
    present,
    rows,
)

_PAIR = 2 * shamir.SHARE


def commitment(seed: bytes) -> bytes:
    """By which the server knows a seed that it has put together from shares; says nothing about 32 random bytes."""
    return hashlib.sha256(b"fedbnn seed" + seed).digest()


@dataclass(frozen=True)
class ClientHalf:
    """Attributes:

    phase: the next to be answered.
    letter_private, pair_private, seed: its secrets.
    cards: the keys of all of U_0, by client.
    shares: of the secrets of each of U_1, by client, the own among them: pair key's and seed's.
    survivors: U_2, as flags, once it was told.

    """

    session: Session
    index: int
    phase: Phase
    letter_private: bytes
    pair_private: bytes
    seed: bytes
    cards: bytes
    shares: bytes
    survivors: bytes

    @classmethod
    def begin(cls, session: Session, index: int, signing: bytes = b"") -> tuple["ClientHalf", bytes]:
        """The answer of the phase KEYS; `signing` is this client's own signing key, if it has one."""
        if not 0 <= index < session.clients:
            raise ValueError(f"client {index} of {session.clients}")
        if bool(session.signers) != bool(signing):
            raise ProtocolError("secure aggregation: a signing key is needed if signers are known, and only then")
        letter, pair = os.urandom(KEY), os.urandom(KEY)
        keys = public_key(letter) + public_key(pair)
        signed = signature(signing, session.keys_text(index, keys)) if signing else bytes(SIGNATURE)
        session.check_signed(index, signed, session.keys_text(index, keys))  # the key is that of the agreed signer
        half = cls(
            session,
            index,
            session.after(Phase.KEYS),
            letter,
            pair,
            os.urandom(KEY),
            bytes(CARD * session.clients),
            bytes(_PAIR * session.clients),
            bytes(padded(session.clients)),
        )
        own = [bytes(CARD)] * session.clients
        own[index] = keys + signed
        return replace(half, cards=b"".join(own)), keys + signed

    def to_bytes(self) -> bytes:
        """All of its memory but the session, in whole words."""
        head = self.session.context + self.index.to_bytes(4) + self.phase.to_bytes(4)
        body = self.letter_private + self.pair_private + self.seed + self.cards + self.shares + self.survivors
        return (head + body).ljust(_memory(self.session), b"\0")

    @classmethod
    def from_bytes(cls, session: Session, data: bytes) -> "ClientHalf":
        """The half that `to_bytes` was called on, if it was in the same session."""
        count = session.clients
        sizes = (32, 4, 4, KEY, KEY, KEY, CARD * count, _PAIR * count, padded(count))
        context, index, phase, *rest, _ = pieces(data, *sizes, _memory(session) - sum(sizes))
        if context != session.context:
            raise ProtocolError("secure aggregation: a question belongs to another aggregation than the one begun")
        return cls(session, int.from_bytes(index), Phase(int.from_bytes(phase)), *rest)

    def shared(self, request: bytes) -> tuple["ClientHalf", bytes]:
        """The answer of the phase SHARES, to the keys of all."""
        self._expect(Phase.SHARES)
        session, count = self.session, self.session.clients
        cards = rows(request, count, CARD)
        if cards[self.index] != self.card:
            raise ProtocolError("secure aggregation: the keys that came back are not this client's")
        there = present(cards)
        session.require_enough(there, "sent keys")
        keys = [key for client in there for key in pieces(cards[client], KEY, KEY, SIGNATURE)[:2]]
        if len(set(keys)) != len(keys):
            raise ProtocolError("secure aggregation: two clients have the same key")
        for client in there:
            session.check_signed(client, cards[client][2 * KEY :], session.keys_text(client, cards[client][: 2 * KEY]))
        of_pairs = shamir.split(self.pair_private, session.threshold, there)
        of_seed = shamir.split(self.seed, session.threshold, there)
        letters = [bytes(LETTER)] * count
        own = [bytes(_PAIR)] * count
        for client in there:
            pair = of_pairs[client] + of_seed[client]
            if client == self.index:
                own[client] = pair
            else:
                key = session.letter_key(self.letter_private, cards[client][:KEY], self.index, client)
                letters[client] = sealed(key, os.urandom(NONCE), pair, session.context)
        half = replace(self, phase=session.after(Phase.SHARES), cards=request, shares=b"".join(own))
        return half, commitment(self.seed) + b"".join(letters)

    @property
    def card(self) -> bytes:
        """Its own public keys, as no other aggregation has them."""
        return rows(self.cards, self.session.clients, CARD)[self.index]

    def check(self, request: bytes) -> None:
        """Refuse what `masked` would refuse, before there are numbers."""
        self._read(request)

    def masked(self, request: bytes, numbers: Numbers) -> tuple["ClientHalf", bytes]:
        """The answer of the phase MASKED, to the letters that the others have written: the numbers, masked."""
        session = self.session
        if numbers.shape != (session.numbers,):
            raise ValueError(f"{numbers.shape} numbers, agreed were {session.numbers}")
        shares, seeds = self._read(request)
        total = words(numbers) + mask(self.seed, session.numbers)
        total += pair_masks(self.index, seeds, session.numbers)
        half = replace(self, phase=session.after(Phase.MASKED), shares=b"".join(shares))
        return half, total.astype("<u8").tobytes()

    def _read(self, request: bytes) -> tuple[list[bytes], dict[int, bytes]]:
        """The shares in the letters of the others, and the seeds in common with them."""
        self._expect(Phase.MASKED)
        session, count = self.session, self.session.clients
        letters, cards, shares = (
            rows(data, count, size) for data, size in ((request, LETTER), (self.cards, CARD), (self.shares, _PAIR))
        )
        senders = present(letters)
        if self.index in senders or not set(senders) <= set(present(cards)):
            raise ProtocolError("secure aggregation: a letter comes from a client that has no keys")
        session.require_enough([*senders, self.index], "sent shares")
        seeds = {}
        for sender in senders:
            letter_public, pair_public = cards[sender][:KEY], cards[sender][KEY : 2 * KEY]
            key = session.letter_key(self.letter_private, letter_public, sender, self.index)
            shares[sender] = _opened(key, letters[sender], session.context, sender)
            seeds[sender] = session.pair_seed(self.pair_private, pair_public, self.index, sender)
        return shares, seeds

    def vote(self, request: bytes, signing: bytes) -> tuple["ClientHalf", bytes]:
        """The answer of the phase VOTES: those whose numbers are added, signed."""
        self._expect(Phase.VOTES)
        survivors = self._survivors(request)
        half = replace(self, phase=self.session.after(Phase.VOTES), survivors=request)
        return half, signature(signing, self.session.vote_text(survivors, self.cards))

    def revealed(self, request: bytes) -> tuple["ClientHalf", bytes]:
        """The answer of the phase REVEALED: one share of every client that sent shares. Forgets all secrets."""
        self._expect(Phase.REVEALED)
        session, count = self.session, self.session.clients
        flags, votes = pieces(request, padded(count), SIGNATURE * count)
        survivors = self._survivors(flags)
        if session.signers:
            if flags != self.survivors:
                raise ProtocolError("secure aggregation: other clients survive than this client voted for")
            signed = rows(votes, count, SIGNATURE)
            voters = present(signed)
            if not set(voters) <= set(survivors):
                raise ProtocolError("secure aggregation: a vote comes from a client that does not survive")
            session.require_enough(voters, "voted")
            for voter in voters:
                session.check_signed(voter, signed[voter], session.vote_text(survivors, self.cards))
        answers = [bytes(REVEAL)] * count
        shares = rows(self.shares, count, _PAIR)
        for client in present(shares):
            of_pairs, of_seed = pieces(shares[client], shamir.SHARE, shamir.SHARE)
            kind, share = (Kind.SEED, of_seed) if client in survivors else (Kind.PAIRS, of_pairs)
            answers[client] = (share + kind.to_bytes(1)).ljust(REVEAL, b"\0")
        return self._forgetful(), b"".join(answers)

    def _survivors(self, flags: bytes) -> list[int]:
        survivors = named(flags, self.session.clients)
        if self.index not in survivors:
            raise ProtocolError("secure aggregation: this client is said to be gone")
        if not set(survivors) <= set(present(rows(self.shares, self.session.clients, _PAIR))):
            raise ProtocolError("secure aggregation: a client is said to be there that sent no shares")
        self.session.require_enough(survivors, "sent numbers")
        return survivors

    def _expect(self, phase: Phase) -> None:
        if self.phase != phase:
            raise ProtocolError(f"secure aggregation: phase {phase.name} was asked for, {self.phase.name} is next")

    def _forgetful(self) -> "ClientHalf":
        nothing = bytes(KEY)
        return replace(
            self,
            phase=Phase.DONE,
            letter_private=nothing,
            pair_private=nothing,
            seed=nothing,
            shares=bytes(len(self.shares)),
        )


def _opened(key: bytes, letter: bytes, label: bytes, sender: int) -> bytes:
    """Two shares, if the letter is from who it says and holds two."""
    try:
        pair = opened(key, letter, label)
        for share in pieces(pair, shamir.SHARE, shamir.SHARE):
            shamir.number(share)
        if not any(pair):
            raise ValueError("no shares")
    except (Forged, ValueError):
        raise ProtocolError(f"secure aggregation: the letter of client {sender} is not its own, or empty") from None
    return pair


def _memory(session: Session) -> int:
    count = session.clients
    return padded(40 + 3 * KEY + CARD * count + _PAIR * count + padded(count))
