"""The sum is exact whoever drops out; what is not as agreed is refused; what the server sees determines only sums."""

import dataclasses
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnn.privacy.secure.client_half import ClientHalf
from fedbnn.privacy.secure.masks import mask, pair_masks, signed, words
from fedbnn.privacy.secure.primitives import SIGNATURE, public_key, signer_of
from fedbnn.privacy.secure.server_half import ServerHalf
from fedbnn.privacy.secure.session import CARD, LETTER, REVEAL, Phase, ProtocolError, Session, flags_of, padded
from fedbnn.privacy.secure.shamir import SHARE, joined
from tests.privacy.secure.aggregation_sample import Parties, random_inputs, wrapped_sum

ANSWERED = [Phase.KEYS, Phase.SHARES, Phase.MASKED, Phase.VOTES, Phase.REVEALED]


@pytest.mark.parametrize("signers", [True, False])
@pytest.mark.parametrize("clients", [2, 3, 7])
def test_the_sum_is_exact(clients, signers):
    inputs = random_inputs(clients)
    parties = Parties(inputs, clients // 2 + 1, signers).run(saved=True)
    assert np.array_equal(parties.server.total(), wrapped_sum(inputs, range(clients)))


@settings(max_examples=40)
@given(st.integers(3, 8), st.booleans(), st.randoms(), st.data())
def test_the_sum_is_that_of_the_survivors(clients, signers, rng, data):
    threshold = data.draw(st.integers(clients // 2 + 1, clients))
    leaving = data.draw(st.lists(st.sampled_from(range(clients)), max_size=clients - threshold, unique=True))
    gone: dict[Phase, list[int]] = {}
    for client in leaving:
        gone.setdefault(rng.choice(ANSWERED), []).append(client)
    inputs = random_inputs(clients, 3, rng.randrange(10**6))
    parties = Parties(inputs, threshold, signers).run(gone)
    late = [client for phase in gone if phase > Phase.MASKED for client in gone[phase]]
    alive = [client for client in range(clients) if client not in leaving or client in late]
    assert parties.server.survivors == alive
    assert np.array_equal(parties.server.total(), wrapped_sum(inputs, alive))


@pytest.mark.parametrize("phase", ANSWERED)
def test_too_few_survivors_are_a_clear_failure(phase):
    parties = Parties(random_inputs(5), 4)
    with pytest.raises(ProtocolError, match=r"3 clients .*, 4 of 5 are needed"):
        parties.run({phase: [1, 3]})
    assert parties.server.phase == phase
    with pytest.raises(ValueError, match="is not over"):
        parties.server.total()


def test_masked_numbers_are_uniform():
    sent = b"".join(
        b"".join(Parties([np.zeros(64)] * 3, 2).run(until=Phase.VOTES).sent[Phase.MASKED].values()) for _ in range(60)
    )
    counts = np.bincount(np.frombuffer(sent, np.uint8), minlength=256)
    expected = len(sent) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 380  # 255 degrees of freedom: 4e-7


def test_another_input_under_the_same_masks_shifts_by_the_difference():
    parties = Parties(random_inputs(4), 3).run(until=Phase.MASKED)
    half, request = parties.clients[2], parties.server.request(2)
    one, other = random_inputs(2, seed=5)
    answers = [np.frombuffer(half.masked(request, x)[1], "<u8") for x in (one, other)]
    assert np.array_equal(answers[1] - answers[0], words(other) - words(one))


def test_what_all_others_know_of_two_clients_determines_only_their_sum():
    """The server and all clients but two pool everything: of the two inputs they are left with x + M and x' - M.

    M is the mask of the pair, which they lack: they hold t - 1 shares of either pair key, which fit every key (see
    test_shamir), and with a mask that cannot be told from uniform, x + M and x' - M are uniform numbers with the sum
    x + x'. So all that the coalition sees can be made from that sum alone.
    """
    inputs = random_inputs(5)
    parties = Parties(inputs, 4).run(until=Phase.VOTES)
    coalition, (a, b) = (0, 2, 4), (1, 3)
    held = {u: parties.clients[u] for u in coalition}
    secret = parties.clients[a]
    session, cards = parties.session, parties.sent[Phase.KEYS]
    parties.run()
    left = {}
    for u in (a, b):
        seeds = {v: session.pair_seed(half.pair_private, cards[u][32:64], u, v) for v, half in held.items()}
        reveals = parties.sent[Phase.REVEALED]
        own = joined({v: reveals[v][REVEAL * u : REVEAL * u + SHARE] for v in (0, 1, 2, 3)})
        y = np.frombuffer(parties.sent[Phase.MASKED][u], "<u8")
        left[u] = y - mask(own, session.numbers) - pair_masks(u, seeds, session.numbers)
    between = mask(session.pair_seed(secret.pair_private, cards[b][32:64], a, b), session.numbers)
    assert np.array_equal(left[a] - words(inputs[a]), between)
    assert np.array_equal(words(inputs[b]) - left[b], between)
    assert np.array_equal(signed(left[a] + left[b]), wrapped_sum(inputs, (a, b)))
    # Shares of the pair keys of a and b that the coalition has seen: its own ones, and none was revealed.
    assert len(coalition) == session.threshold - 1
    for reply in parties.sent[Phase.REVEALED].values():
        assert all(reply[REVEAL * u + SHARE] == 1 for u in (a, b))  # the kind: shares of the seed


def test_nobody_reveals_both_secrets_of_a_peer():
    """A server that says to some that client 0 is gone and to others that it is there gets no second answer."""
    parties = Parties(random_inputs(4), 3, signers=False).run(until=Phase.REVEALED)
    alive = parties.server.request(1)
    dropped = flags_of([1, 2, 3], 4) + bytes(SIGNATURE * 4)
    first = parties.answer(1, alive)
    for again in (alive, dropped):
        with pytest.raises(ProtocolError, match="REVEALED was asked for, DONE is next"):
            parties.answer(1, again)
    half = parties.clients[1]
    for secret in (half.letter_private, half.pair_private, half.seed, half.shares):
        assert not any(secret)
    rows = [first[REVEAL * k : REVEAL * (k + 1)] for k in range(4)]
    assert all(any(row[:SHARE]) and row[SHARE] == 1 and not any(row[SHARE + 1 :]) for row in rows)


def test_a_server_cannot_change_the_survivors_after_the_vote():
    parties = Parties(random_inputs(4), 3).run(until=Phase.REVEALED)
    _, votes = parties.server.request(1)[:8], parties.server.request(1)[8:]
    with pytest.raises(ProtocolError, match="other clients survive than this client voted for"):
        parties.answer(1, flags_of([1, 2, 3], 4) + votes)


def test_votes_of_others_for_other_survivors_are_refused():
    """Clients 0 and 1 are told that 3 is gone, 2 that all are there: nobody then finds three votes for its own set."""
    parties = Parties(random_inputs(4), 3).run(until=Phase.VOTES)
    everybody, fewer = flags_of(range(4), 4), flags_of([0, 1, 2], 4)
    votes = {0: parties.answer(0, fewer), 1: parties.answer(1, fewer), 2: parties.answer(2, everybody)}
    parties.server = dataclasses.replace(parties.server, phase=Phase.REVEALED)
    for client, flags in ((0, fewer), (2, everybody)):
        table = b"".join(votes.get(k, bytes(SIGNATURE)) for k in range(4))
        with pytest.raises(ProtocolError, match=r"signature of client . does not fit"):
            parties.answer(client, flags + table)
        own_kind = b"".join(
            votes[k] if k in votes and (k == 2) == (client == 2) else bytes(SIGNATURE) for k in range(4)
        )
        with pytest.raises(ProtocolError, match="clients voted, 3 of 4 are needed"):
            parties.answer(client, flags + own_kind)


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("phase", ANSWERED[1:])
def test_requests_of_wrong_size_or_phase_are_refused(phase):
    parties = Parties(random_inputs(4), 3).run(until=phase)
    request, half = parties.server.request(0), parties.clients[0]
    for bad in (b"", request[:-1], request + b"\0", request[:-8]):
        with pytest.raises(ProtocolError, match=r"bytes, agreed were|not as agreed"):
            parties.answer(0, bad)
    parties.answer(0)
    with pytest.raises(ProtocolError, match=r"was asked for, .* is next"):
        parties.answer(0)  # replayed
    assert half.to_bytes() != parties.clients[0].to_bytes()


def test_keys_that_the_server_made_up_are_refused():
    """A server that plays all peers has no signatures of theirs; without signers it could (see `session`)."""
    parties = Parties(random_inputs(4), 3).run(until=Phase.SHARES)
    request = parties.server.request(0)
    cards = [request[CARD * k : CARD * (k + 1)] for k in range(4)]
    fake = public_key(os.urandom(32)) + public_key(os.urandom(32))
    for signature in (cards[1][64:], cards[2][64:], bytes(SIGNATURE)):
        with pytest.raises(ProtocolError, match="signature of client 1 does not fit"):
            parties.answer(0, b"".join([cards[0], fake + signature, cards[2], cards[3]]))
    swapped = b"".join([cards[0], cards[2], cards[1], cards[3]])
    with pytest.raises(ProtocolError, match="signature of client 1 does not fit"):
        parties.answer(0, swapped)
    with pytest.raises(ProtocolError, match="not this client's"):
        parties.answer(0, b"".join([cards[1], *cards[1:]]))
    with pytest.raises(ProtocolError, match="same key"):
        parties.answer(0, b"".join([cards[0], cards[1], cards[1], cards[3]]))
    with pytest.raises(ProtocolError, match="2 clients sent keys, 3 of 4"):
        parties.answer(0, b"".join([cards[0], cards[1], bytes(2 * CARD)]))


def test_public_keys_of_low_order_are_refused():
    parties = Parties(random_inputs(3), 2, signers=False).run(until=Phase.SHARES)
    request = parties.server.request(0)
    low = bytes([1]) + bytes(31)
    with pytest.raises(ProtocolError, match="public key is none"):
        parties.answer(0, request[:CARD] + low + request[CARD + 32 :])


def test_letters_that_were_changed_or_exchanged_are_refused():
    parties = Parties(random_inputs(4), 3).run(until=Phase.MASKED)
    request = parties.server.request(0)
    for at in (LETTER, LETTER + 20, 2 * LETTER - 1):
        with pytest.raises(ProtocolError, match="letter of client 1"):
            parties.answer(0, changed(request, at))
    letters = [request[LETTER * k : LETTER * (k + 1)] for k in range(4)]
    with pytest.raises(ProtocolError, match="letter of client 1"):
        parties.answer(0, b"".join([letters[0], letters[2], letters[1], letters[3]]))
    with pytest.raises(ProtocolError, match="letter of client 1"):  # what another was sent
        parties.answer(0, b"".join([letters[0], parties.server.request(2)[LETTER : 2 * LETTER], *letters[2:]]))
    with pytest.raises(ProtocolError, match="a client that has no keys"):
        parties.answer(0, b"".join([letters[1], *letters[1:]]))
    with pytest.raises(ProtocolError, match="2 clients sent shares"):
        parties.answer(0, b"".join([letters[0], letters[1], bytes(2 * LETTER)]))


def test_survivors_that_cannot_be_are_refused():
    parties = Parties(random_inputs(5), 3).run({Phase.SHARES: [4]}, until=Phase.VOTES)
    for flags, why in (
        (flags_of([1, 2, 3], 5), "this client is said to be gone"),
        (flags_of([0, 1, 2, 4], 5), "sent no shares"),
        (flags_of([0, 1], 5), "2 clients sent numbers"),
        (bytes([1, 1, 2, 1]) + bytes(padded(5) - 4), "not as agreed"),
        (flags_of([0, 1, 2], 5)[:-1] + b"\1", "not as agreed"),
    ):
        with pytest.raises(ProtocolError, match=why):
            parties.answer(0, flags)


def test_another_round_is_another_session():
    """Memory of one aggregation does not answer in another, nor do its keys count there."""
    one, other = (Parties(random_inputs(3), 2, about=about) for about in (b"round 1", b"round 2"))
    one.run(until=Phase.SHARES)
    with pytest.raises(ProtocolError, match="another aggregation"):
        ClientHalf.from_bytes(other.session, one.clients[0].to_bytes())
    session = dataclasses.replace(one.session, about=other.session.about)
    half, card = ClientHalf.begin(session, 0, one.signing[0])
    with pytest.raises(ProtocolError, match="signature of client 1"):
        half.shared(card + one.server.request(0)[CARD:])


def test_votes_of_an_earlier_aggregation_are_of_no_use_in_a_later_one():
    """About the same, among the same signers: with old votes a server could tell each client of other survivors."""
    first = Parties(random_inputs(4), 3).run({Phase.MASKED: [3]}, until=Phase.REVEALED)
    again = Parties(random_inputs(4), 3)
    again.session, again.signing = first.session, first.signing
    again.server = type(first.server).begin(first.session)
    again.run({Phase.MASKED: [3]}, until=Phase.VOTES)
    old = first.server.request(0)
    assert old.startswith(again.server.request(0))
    again.answer(0)
    with pytest.raises(ProtocolError, match="the signature of client 0 does not fit"):
        again.clients[0].revealed(old)


@pytest.mark.parametrize("phase", ANSWERED)
def test_hostile_answers_count_as_none(phase):
    parties = Parties(random_inputs(4), 3).run(until=phase)
    replies = {client: parties.answer(client) for client in range(4)}
    good = replies[2]
    bad = [b"", good[:-8], good + bytes(8), bytes(len(good))]
    if phase in (Phase.KEYS, Phase.VOTES):
        bad += [changed(good, 5), replies[1]]
    if phase == Phase.SHARES:
        bad += [
            good[:-LETTER] + bytes(LETTER),
            good[: 32 + 2 * LETTER] + good[32 : 32 + LETTER] + good[32 + 3 * LETTER :],
        ]
    if phase == Phase.REVEALED:
        bad += [changed(good, SHARE), b"\xff" * REVEAL + good[REVEAL:], changed(good, REVEAL - 1)]
    for reply in bad:
        assert parties.server.refusal(2, reply)
        taken = parties.server.taken({**replies, 2: reply})
        assert 2 not in taken.asked
    assert not parties.server.refusal(2, good)
    assert "was not asked" in parties.server.refusal(4, good)


@pytest.mark.parametrize("gone", [[], [3]])
def test_wrong_shares_are_noticed(gone):
    """Clients that reveal other shares spoil the sum; the server finds out instead of giving a wrong one."""
    inputs = random_inputs(5)
    parties = Parties(inputs, 4).run({Phase.MASKED: gone}, until=Phase.REVEALED)
    replies = {client: parties.answer(client) for client in parties.server.asked}
    for victim in (2, 3):
        spoiled = dict(replies)
        for liar in (0, 1):
            spoiled[liar] = changed(replies[liar], REVEAL * victim + 10 + liar)
            if liar == 0 and not gone:  # the others are still enough
                total = parties.server.taken(spoiled).total()
                assert np.array_equal(total, wrapped_sum(inputs, parties.server.survivors))
        with pytest.raises(ProtocolError, match=f"shares of client {victim}"):
            parties.server.taken(spoiled).total()


@pytest.mark.parametrize(
    ("clients", "threshold", "signers", "why"),
    [
        (1, 1, (), "2 to 1000 clients"),
        (4, 2, (), "more than half"),
        (4, 5, (), "more than half"),
        (2, 2, (bytes(32),), "different keys"),
        (2, 2, (bytes(32), bytes(32)), "different keys"),
        (2, 2, (bytes(32), bytes(31)), "different keys"),
    ],
)
def test_sessions_that_cannot_be_are_refused(clients, threshold, signers, why):
    with pytest.raises(ProtocolError, match=why):
        Session(bytes(32), clients, threshold, 3, signers)


def test_a_signing_key_must_be_that_of_the_agreed_signing_key():
    keys = [os.urandom(32) for _ in range(3)]
    session = Session(bytes(32), 3, 2, 1, tuple(map(signer_of, keys)))
    for key, why in ((keys[1], "does not fit"), (b"", "signing key is needed")):
        with pytest.raises(ProtocolError, match=why):
            ClientHalf.begin(session, 0, key)
    with pytest.raises(ProtocolError, match="signing key is needed"):
        ClientHalf.begin(Session(bytes(32), 3, 2, 1), 0, keys[0])


@pytest.mark.parametrize("phase", [*ANSWERED, Phase.DONE])
def test_memories_are_of_a_fixed_size_and_whole_words(phase):
    parties = Parties(random_inputs(5), 4).run({Phase.MASKED: [1]}, until=phase)
    sizes = {len(half.to_bytes()) for half in parties.clients.values()}
    assert len(sizes) <= 1
    assert all(size % 8 == 0 for size in sizes)
    if phase < Phase.DONE:
        data = parties.server.to_bytes()
        assert len(data) % 8 == 0
        assert ServerHalf.from_bytes(data).to_bytes() == data
        for client in parties.server.asked:
            assert len(parties.server.request(client)) == parties.session.request_size(phase)
            assert parties.session.request_size(phase) % 8 == parties.session.answer_size(phase) % 8 == 0
