"""The server's half of an aggregation: asks every client phase by phase, and puts the sum together.

    sum of U_2 = sum_{u in U_2} (y_u - m(b_u)) + sum_{v in U_1 - U_2} (v's pair masks with U_2)

The masks of pairs within U_2 cancel; those with v, who is gone, are what v would have added, had it stayed. The server
holds what clients sent, as it came. An answer that is not as agreed is as good as none: who sent it has dropped out.
Fewer than t answers in a phase end the aggregation, and nothing can be unmasked.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from fedbnn.privacy.secure import shamir
from fedbnn.privacy.secure.client_half import commitment
from fedbnn.privacy.secure.masks import Numbers, mask, pair_masks, signed
from fedbnn.privacy.secure.primitives import KEY, SIGNATURE, public_key
from fedbnn.privacy.secure.session import (
    CARD,
    LETTER,
    REVEAL,
    Kind,
    Phase,
    ProtocolError,
    Session,
    flags_of,
    pieces,
    present,
    rows,
)

_TOLD = {
    Phase.KEYS: "sent keys",
    Phase.SHARES: "sent shares",
    Phase.MASKED: "sent numbers",
    Phase.VOTES: "voted",
    Phase.REVEALED: "revealed shares",
}
_HEAD = 8  # bytes that say the phase
_KEPT = (Phase.KEYS, Phase.SHARES, Phase.MASKED, Phase.VOTES)  # whose answers are needed later


@dataclass(frozen=True)
class ServerHalf:
    """Attributes:

    phase: what is asked for now.
    answers: what came in each phase before, by client; nothing from who did not answer.

    """

    session: Session
    phase: Phase
    answers: Mapping[Phase, tuple[bytes, ...]]

    @classmethod
    def begin(cls, session: Session) -> "ServerHalf":
        return cls(session, Phase.KEYS, {})

    @property
    def begun(self) -> bool:
        """Whether anybody has answered yet."""
        return self.phase > Phase.KEYS

    @property
    def asked(self) -> list[int]:
        """Who is asked now: everybody at first, then those who answered before."""
        before = max(self.answers, default=None)
        return list(range(self.session.clients)) if before is None else self._there(before)

    @property
    def survivors(self) -> list[int]:
        """Whose numbers arrived, and make up the sum."""
        return self._there(Phase.MASKED)

    def request(self, client: int) -> bytes:
        """What this client is asked with."""
        session = self.session
        if self.phase == Phase.SHARES:
            return self._table(Phase.KEYS, CARD)
        if self.phase == Phase.MASKED:
            sent = [row or bytes(session.answer_size(Phase.SHARES)) for row in self.answers[Phase.SHARES]]
            return b"".join(pieces(row, KEY, *[LETTER] * session.clients)[1 + client] for row in sent)
        if self.phase == Phase.VOTES:
            return flags_of(self.survivors, session.clients)
        if self.phase == Phase.REVEALED:
            votes = self._table(Phase.VOTES, SIGNATURE) if session.signers else bytes(SIGNATURE * session.clients)
            return flags_of(self.survivors, session.clients) + votes
        return b""

    def taken(self, replies: Mapping[int, bytes]) -> "ServerHalf":
        """The half in the next phase, if enough of those asked answered as agreed."""
        good = {client: reply for client, reply in replies.items() if not self.refusal(client, reply)}
        self.session.require_enough(good, _TOLD[self.phase])
        came = tuple(good.get(client, b"") for client in range(self.session.clients))
        return replace(self, phase=self.session.after(self.phase), answers={**self.answers, self.phase: came})

    def refusal(self, client: int, reply: bytes) -> str:
        """Why this answer is not let in; empty when it is."""
        session = self.session
        check: dict[Phase, Callable[[int, bytes], None]] = {
            Phase.KEYS: self._check_keys,
            Phase.SHARES: self._check_letters,
            Phase.VOTES: self._check_vote,
            Phase.REVEALED: self._check_revealed,
        }
        try:
            if client not in self.asked:
                raise ProtocolError(f"secure aggregation: client {client} was not asked")
            pieces(reply, session.answer_size(self.phase))
            if not any(reply):
                raise ProtocolError("secure aggregation: an answer is empty")
            if self.phase in check:
                check[self.phase](client, reply)
        except ProtocolError as error:
            return str(error)
        return ""

    def total(self) -> Numbers:
        """The sum of the survivors' numbers, once enough shares are revealed."""
        if self.phase != Phase.DONE:
            raise ValueError(f"phase {self.phase.name} is not over")
        session, size, survivors = self.session, self.session.numbers, self.survivors
        total = np.zeros(size, np.uint64)
        for client in survivors:
            committed = self.answers[Phase.SHARES][client][:KEY]
            seed = self._joined(client, commitment, committed)
            total += np.frombuffer(self.answers[Phase.MASKED][client], "<u8")
            total -= mask(seed, size)
        cards = self.answers[Phase.KEYS]
        for gone in set(self._there(Phase.SHARES)) - set(survivors):
            public = cards[gone][KEY : 2 * KEY]
            private = self._joined(gone, public_key, public)
            seeds = {peer: session.pair_seed(private, cards[peer][KEY : 2 * KEY], gone, peer) for peer in survivors}
            total += pair_masks(gone, seeds, size)
        return signed(total)

    def to_bytes(self) -> bytes:
        """All of its memory, in whole words."""
        tables = [self._table(phase, self.session.answer_size(phase)) for phase in _KEPT if phase in self.answers]
        return b"".join([self.session.to_bytes(), self.phase.to_bytes(_HEAD), *tables])

    @classmethod
    def from_bytes(cls, data: bytes) -> "ServerHalf":
        """The half that `to_bytes` was called on, before the last phase was over."""
        session, data = Session.read(data)
        phase = Phase(int.from_bytes(data[:_HEAD]))
        done = [one for one in _KEPT if one < phase and (session.signers or one != Phase.VOTES)]
        _, *tables = pieces(data, _HEAD, *(session.clients * session.answer_size(one) for one in done))
        answers = {
            one: tuple(row if any(row) else b"" for row in rows(table, session.clients, session.answer_size(one)))
            for one, table in zip(done, tables, strict=True)
        }
        return cls(session, phase, answers)

    def _there(self, phase: Phase) -> list[int]:
        return present(self.answers[phase])

    def _table(self, phase: Phase, size: int) -> bytes:
        return b"".join(row or bytes(size) for row in self.answers[phase])

    def _check_keys(self, client: int, card: bytes) -> None:
        self.session.check_signed(client, card[2 * KEY :], self.session.keys_text(client, card[: 2 * KEY]))

    def _check_vote(self, client: int, vote: bytes) -> None:
        text = self.session.vote_text(self.survivors, self._table(Phase.KEYS, CARD))
        self.session.check_signed(client, vote, text)

    def _check_letters(self, client: int, reply: bytes) -> None:
        """A letter for every peer that sent keys, and for nobody else."""
        _, *letters = pieces(reply, KEY, *[LETTER] * self.session.clients)
        if {*present(letters), client} != set(self._there(Phase.KEYS)) or any(letters[client]):
            raise ProtocolError("secure aggregation: letters are missing, or go to clients without keys")

    def _check_revealed(self, client: int, reply: bytes) -> None:
        """One share of everybody that sent shares, each of the kind that was asked for."""
        survivors, there = set(self.survivors), set(self._there(Phase.SHARES))
        for other, row in enumerate(rows(reply, self.session.clients, REVEAL)):
            wanted = (Kind.SEED if other in survivors else Kind.PAIRS) if other in there else Kind.NONE
            share, kind, rest = pieces(row, shamir.SHARE, 1, REVEAL - shamir.SHARE - 1)
            if kind[0] != wanted or any(rest) or int.from_bytes(share) >= shamir.PRIME:
                raise ProtocolError("secure aggregation: revealed shares are not as asked for")

    def _joined(self, client: int, public: Callable[[bytes], bytes], known: bytes) -> bytes:
        """A client's secret from the shares that were revealed, as many as needed; what is public of it is known.

        Where they do not fit, others are tried: if more than t were revealed, a single liar spoils nothing.
        """
        came, start = self.answers[Phase.REVEALED], REVEAL * client
        holders = present(came)
        for first in range(len(holders)):
            chosen = (holders[first:] + holders[:first])[: self.session.threshold]
            with suppress(ValueError):
                secret = shamir.joined({holder: came[holder][start : start + shamir.SHARE] for holder in chosen})
                if public(secret) == known:
                    return secret
        raise ProtocolError(f"secure aggregation: the shares of client {client}'s secret do not fit")
