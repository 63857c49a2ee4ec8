"""Sealed packets: golden bytes, keys, packet numbers, replays, forgeries, epochs, generations."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import struct

import numpy as np
import pytest
from tests.support import packets
from tests.support.aes_gcm import Cipher
from tests.support.sealing import (
    SECRETS,
    TRANSPORT,
    Node,
    array,
    length_of,
    number_of,
    seal_one,
)

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.native.crypto.libcrypto import (
    DECRYPT_FINAL,
    ENCRYPT_FINAL,
    SUITE_AES_128_GCM,
    SUITE_AES_256_GCM,
)
from tidecast.protocol.sealing.keys import Purpose, packet_key, root_of
from tidecast.protocol.sealing.receiver import (
    FORGED_PACKET,
    LEARNED,
    MALFORMED,
    NO_ROOM,
    RECENT_NS,
    REPLAYED,
    SENDERS_A_NODE_MAX,
    TAG_FAILED,
    UNKNOWN_KEY,
)
from tidecast.protocol.sealing.sender import NO_KEY, OUT_OF_RANGE
from tidecast.protocol.sealing.window import WINDOW_NUMBERS

DATA = packets.data(packets.message(b"hello"), source=3, seq=9)
GENERATION = 1 << lay.GENERATION_BITS
PURPOSE = Purpose(epoch=1, suite=SUITE_AES_128_GCM, source=3, boot=77)


@pytest.fixture
def sender() -> Node:
    return Node(3)


@pytest.fixture
def receiver(sender: Node) -> Node:
    """It knows the sender."""
    made = Node(1, boot=5)
    assert made.take(sender.seal(DATA)) == DATA
    return made


# --- bytes ---------------------------------------------------------------------------------------

GOLDEN = {
    "DATA": (DATA, 0),
    "HEARTBEAT": (packets.heartbeat(source=3, seq=9), 0),
    "LOST": (packets.lost(source=3, seq=9), 0),
    "SETUP": (packets.setup(source=3), 0),
    "NAK": (packets.nak([(4, 2)], source=3), 1),
    "STATUS": (packets.status(source=3), 1),
    "ACK": (packets.ack(source=3), 1),
}
GOLDEN_DIGESTS = {
    "DATA": "b14f892947470039",
    "HEARTBEAT": "0092b5ca721d182e",
    "LOST": "f8d1ad14a6324d88",
    "SETUP": "98bdb5c53548e656",
    "NAK": "5fe262679dbb2fcc",
    "STATUS": "565f91a0c94ff8b3",
    "ACK": "a35996ea9717fb34",
}
"""Of SHA-256 of the sealed packet."""


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    packet, target = GOLDEN[name]
    sealed = Node(3).seal(packet, target)
    assert len(sealed) == len(packet) + lay.SEAL_BYTES
    assert sealed[0] == 2
    assert sealed[1:32] == packet[1:32]
    assert struct.unpack_from("<IBBHQQ", sealed, 32) == (1, 0, 1, int(target > 0), 77, 1)
    assert hashlib.sha256(sealed).hexdigest()[:16] == GOLDEN_DIGESTS[name]


def test_a_packet_is_what_the_decision_record_says() -> None:
    """From the words alone: HKDF, nonce and AES-GCM, without a function of the engine."""
    sealed = Node(3).seal(DATA)
    root = hmac.digest(b"tidecast wire 2", SECRETS[1], "sha256")
    info = b"data" + bytes([3]) + b"lan" + struct.pack("<IBHQBHI", 1, 1, 3, 77, 0, 0, 0)
    made = hmac.digest(root, info + b"\x01", "sha256")
    key, mask = made[:16], made[16:28]
    nonce = bytes(a ^ b for a, b in zip(mask, bytes(4) + (1).to_bytes(8, "big"), strict=True))
    assert sealed[56:] == Cipher(key).seal(nonce, sealed[:56], DATA[32:])


def test_keys_are_those_of_rfc_5869() -> None:
    """The RFC's first case, with the salt and secret that it has."""
    from tidecast.protocol.sealing import keys

    root = hmac.digest(bytes(range(13)), b"\x0b" * 22, "sha256")
    made = keys._expand(root, bytes(range(0xF0, 0xFA)), 42)
    assert made.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


# --- keys ----------------------------------------------------------------------------------------


def test_each_field_of_a_purpose_gives_another_key_and_mask() -> None:
    root = root_of(SECRETS[1])
    others = [
        dataclasses.replace(PURPOSE, **{name: value})
        for name, value in (
            ("epoch", 2),
            ("suite", SUITE_AES_256_GCM),
            ("source", 4),
            ("boot", 78),
            ("lane", 1),
            ("target", 1),
            ("generation", 1),
        )
    ]
    made = [packet_key(root, TRANSPORT, each) for each in (PURPOSE, *others)]
    made += [packet_key(root, "wan", PURPOSE), packet_key(root_of(SECRETS[2]), TRANSPORT, PURPOSE)]
    assert (
        len({each.secret[:16] for each in made}) == len({each.mask for each in made}) == len(made)
    )
    assert "secret" not in repr(made[0])


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("epoch", 0, "1 to 4294967295"),
        ("epoch", 1 << 32, "1 to 4294967295"),
        ("suite", 3, "1, 2"),
        ("source", 0, "1 to 65535"),
        ("source", 1 << 16, "1 to 65535"),
        ("boot", -1, "0 to 18446744073709551615"),
        ("lane", 8, "0 to 7"),
        ("target", 1 << 16, "0 to 65535"),
        ("generation", 1 << 32, "0 to 4294967295"),
    ],
)
def test_fields_out_of_range_are_refused(field: str, value: int, allowed: str) -> None:
    purpose = dataclasses.replace(PURPOSE, **{field: value})
    with pytest.raises(ValueError, match=f"^{field}: {value}: allowed are {allowed}$"):
        packet_key(root_of(SECRETS[1]), TRANSPORT, purpose)


def test_secrets_and_names_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^secret: 31 bytes: allowed are exactly 32$"):
        root_of(bytes(31))
    for name in ("", "x" * 256):
        with pytest.raises(ValueError, match=r"^transport: .* allowed are 1 to 255$"):
            packet_key(root_of(SECRETS[1]), name, PURPOSE)


# --- sealing and opening -------------------------------------------------------------------------


@pytest.mark.parametrize("suite", [SUITE_AES_128_GCM, SUITE_AES_256_GCM])
@pytest.mark.parametrize("name", GOLDEN)
def test_what_was_sealed_opens_at_its_target_alone(name: str, suite: int) -> None:
    packet, target = GOLDEN[name]
    sealed = Node(3, suite=suite).seal(packet, target)
    assert Node(1, boot=5).take(sealed) == packet
    assert Node(2, boot=6).take(sealed) == (UNKNOWN_KEY if target else packet)


def test_padding_behind_a_packet_does_not_matter(sender: Node, receiver: Node) -> None:
    """Runs are sent with equal strides."""
    assert receiver.open(sender.seal(DATA) + bytes(100)) == DATA


def test_every_flipped_bit_is_refused_and_changes_nothing(sender: Node, receiver: Node) -> None:
    _, sealed = sender.seal(DATA), sender.seal(DATA)  # a flipped bit makes number 3 of 1
    before = receiver.opener.windows.copy()
    codes = set()
    for bit in range(8 * len(sealed)):
        forged = bytearray(sealed)
        forged[bit // 8] ^= 1 << bit % 8
        codes.add(receiver.open(bytes(forged)))
        assert receiver.takes.learn(bytes(forged), 0) != LEARNED
    assert codes == {MALFORMED, UNKNOWN_KEY, REPLAYED, TAG_FAILED}
    assert (receiver.opener.windows == before).all()
    assert receiver.open(sealed) == DATA


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 55, 56, 71, -1])
def test_short_datagrams_are_refused(sender: Node, receiver: Node, cut: int) -> None:
    assert receiver.open(sender.seal(DATA)[:cut]) == MALFORMED


def test_a_length_beyond_the_datagram_is_refused(sender: Node, receiver: Node) -> None:
    for length in (0, 31, len(DATA) + 1, 65_001, 65_535):
        forged = bytearray(sender.seal(DATA))
        struct.pack_into("<H", forged, wire.LENGTH_AT, length)
        assert receiver.open(bytes(forged)) == MALFORMED


@pytest.mark.parametrize("number", [0, -1, lay.NUMBER_MAX + 1, -(1 << 63)])
def test_numbers_out_of_range_are_refused(sender: Node, receiver: Node, number: int) -> None:
    forged = bytearray(sender.seal(DATA))
    struct.pack_into("<q", forged, lay.NUMBER_AT, number)
    assert receiver.open(bytes(forged)) == MALFORMED
    assert receiver.takes.learn(bytes(forged), 0) == FORGED_PACKET


@pytest.mark.parametrize("length", [-1, 0, 31, wire.PACKET_BYTES_MAX + 1])
def test_lengths_that_cannot_be_sealed_use_no_number(sender: Node, length: int) -> None:
    room = np.zeros(1 << 17, dtype=np.uint8)
    assert seal_one(sender.sealer.words, 0, room, length, room) == OUT_OF_RANGE
    assert number_of(sender.seal(DATA)) == 1


def test_a_ring_cannot_name_another_source_or_length(sender: Node, receiver: Node) -> None:
    forged = bytearray(DATA)
    struct.pack_into("<H", forged, wire.SOURCE_AT, 9)
    struct.pack_into("<H", forged, wire.LENGTH_AT, 40_000)
    assert receiver.open(sender.seal(bytes(forged))) == DATA


def test_a_control_packet_under_the_key_for_all_is_refused(sender: Node, receiver: Node) -> None:
    """Else each member could forge ACK and STATUS of others."""
    assert receiver.open(sender.seal(packets.status(source=3))) == MALFORMED
    assert receiver.open(sender.seal(DATA, 1)) == MALFORMED


def test_a_control_packet_for_another_node_does_not_open(sender: Node, receiver: Node) -> None:
    assert receiver.take(sender.seal(packets.nak([(1, 1)], source=3), 1)) == packets.nak(
        [(1, 1)], source=3
    )
    assert receiver.take(sender.seal(packets.nak([(1, 1)], source=3), 2)) == TAG_FAILED


# --- replays -------------------------------------------------------------------------------------


def test_each_number_opens_once_in_any_order(sender: Node, receiver: Node) -> None:
    sealed = [sender.seal(DATA) for _ in range(200)]
    order = np.random.default_rng(7).permutation(200)
    assert [receiver.open(sealed[i]) for i in order] == [DATA] * 200
    assert {receiver.open(each) for each in sealed} == {REPLAYED}


def test_a_packet_older_than_the_window_is_refused(sender: Node, receiver: Node) -> None:
    old, edge = sender.seal(DATA), sender.seal(DATA)
    sender.skip_to(number_of(edge) + WINDOW_NUMBERS - 1)
    newest = sender.seal(DATA)
    assert receiver.open(newest) == DATA
    assert receiver.open(old) == REPLAYED
    assert receiver.open(edge) == DATA
    assert receiver.open(edge) == REPLAYED


def test_the_window_agrees_with_a_set_of_numbers(sender: Node, receiver: Node) -> None:
    """Numbers that jump back and forth, by words and across whole windows."""
    random, came, highest, opened, refused = np.random.default_rng(3), {1}, 1, 0, 0
    for _ in range(1500):
        number = max(highest + int(random.choice([-5000, -300, -64, -1, 1, 2, 63, 64, 5000])), 1)
        sender.skip_to(number)
        expected = number not in came and number > highest - WINDOW_NUMBERS
        found = receiver.open(sender.seal(DATA))
        assert found == (DATA if expected else REPLAYED), (number, highest)
        opened, refused = opened + expected, refused + (not expected)
        if expected:
            came.add(number)
            highest = max(highest, number)
    assert min(opened, refused) > 100


def test_replays_do_not_pass_after_an_epoch_was_learned(sender: Node, receiver: Node) -> None:
    sealed = sender.seal(DATA)
    assert receiver.open(sealed) == DATA
    receiver.use(1, 2)
    sender.use(2)
    assert receiver.take(sender.seal(DATA)) == DATA
    assert receiver.take(sealed) == REPLAYED


# --- senders that are learned --------------------------------------------------------------------


def test_an_unknown_sender_enters_by_an_authentic_packet_alone(sender: Node) -> None:
    receiver, sealed = Node(1, boot=5), sender.seal(DATA)
    assert receiver.open(sealed) == UNKNOWN_KEY
    forged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    assert receiver.takes.learn(forged, 0) == FORGED_PACKET
    assert receiver.open(sealed) == UNKNOWN_KEY
    assert receiver.takes.learn(sealed, 0) == LEARNED
    assert receiver.open(sealed) == DATA


def test_a_stranger_with_another_secret_is_not_learned() -> None:
    stranger = Node(3, secrets=dict.fromkeys(SECRETS, b"x" * 32))
    receiver = Node(1, boot=5)
    assert receiver.take(stranger.seal(DATA)) == UNKNOWN_KEY
    assert not receiver.opener.senders["source"].any()


def test_a_removed_node_is_forgotten_and_not_learned_again(sender: Node, receiver: Node) -> None:
    receiver.removed = frozenset({3})
    receiver.takes.forget(3)
    assert receiver.take(sender.seal(DATA)) == UNKNOWN_KEY


def test_a_node_has_a_bounded_number_of_starts(receiver: Node, sender: Node) -> None:
    """The one that was silent longest makes room."""
    starts = [Node(3, boot=100 + k) for k in range(SENDERS_A_NODE_MAX)]
    for k, each in enumerate(starts):
        assert receiver.take(each.seal(DATA), now_ns=RECENT_NS + k) == DATA
    assert receiver.open(sender.seal(DATA)) == UNKNOWN_KEY
    assert [receiver.open(each.seal(DATA)) for each in starts] == [DATA] * len(starts)
    assert (receiver.opener.senders["source"] == 3).sum() == SENDERS_A_NODE_MAX


def test_old_starts_that_are_replayed_push_no_sender_out_that_is_heard(
    receiver: Node, sender: Node
) -> None:
    """Else its replay window would begin again, and what was recorded would open twice."""
    old = [Node(3, boot=100 + k) for k in range(SENDERS_A_NODE_MAX)]
    sealed = sender.seal(DATA)
    for each in old:
        receiver.take(each.seal(DATA), now_ns=RECENT_NS - 1)
    assert receiver.takes.learn(old[-1].seal(DATA), RECENT_NS - 1) == NO_ROOM
    assert receiver.open(sealed, RECENT_NS - 1) == DATA
    assert receiver.take(sealed, RECENT_NS - 1) == REPLAYED


@pytest.mark.parametrize("number", [1, 2, 63, 64, 65, 4095, 4096, 4097, 100_000])
def test_what_came_before_a_sender_was_known_does_not_open(sender: Node, number: int) -> None:
    """It was recorded, perhaps, and never opened here."""
    receiver, old = Node(1, boot=5), sender.seal(DATA)
    sender.skip_to(number)
    first, later = sender.seal(DATA), [sender.seal(DATA) for _ in range(200)]
    assert receiver.takes.learn(first, 0) == LEARNED
    assert receiver.open(old) == (DATA if number == 1 else REPLAYED)
    assert [receiver.open(each) for each in reversed(later)] == [DATA] * 200
    assert receiver.open(first) == (REPLAYED if number == 1 else DATA)


def test_each_channel_has_a_window(sender: Node, receiver: Node) -> None:
    """Each has a socket of its own: one is read while packets wait at another."""
    waits = sender.seal(DATA)
    sender.skip_to(number_of(waits) + 10 * WINDOW_NUMBERS)
    other = packets.data(packets.message(b"hello"), source=3, seq=9, channel=wire.CHANNEL_LARGE)
    assert receiver.open(sender.seal(other)) == other
    assert receiver.open(waits) == DATA
    assert receiver.open(waits) == REPLAYED


def test_lanes_have_numbers_of_their_own(receiver: Node) -> None:
    for lane in (1, 2):
        assert receiver.take(Node(3, lane=lane).seal(DATA)) == DATA


def test_closed_keys_open_and_seal_nothing(sender: Node, receiver: Node) -> None:
    sealed = sender.seal(DATA)
    receiver.takes.close()
    sender.sends.close()
    assert receiver.open(sealed) == UNKNOWN_KEY
    assert seal_one(sender.sealer.words, 0, array(DATA), len(DATA), array(bytes(200))) == NO_KEY
    assert not receiver.opener.keys["context"].any()
    assert not sender.sealer.keys["context"].any()


# --- generations and epochs ----------------------------------------------------------------------


def test_a_generation_is_prepared_before_it_begins(sender: Node, receiver: Node) -> None:
    sender.skip_to(GENERATION - 2)
    assert [receiver.open(sender.seal(DATA)) for _ in range(4)] == [DATA] * 4
    assert {p.generation for p in receiver.derived if p.source == 3} == {0, 1}


def test_without_preparation_nothing_is_sealed_and_no_number_used(sender: Node) -> None:
    sender.skip_to(2 * GENERATION)
    room = array(bytes(200))
    assert seal_one(sender.sealer.words, 0, array(DATA), len(DATA), room) == NO_KEY
    sender.use(1)
    assert number_of(sender.seal(DATA)) == 2 * GENERATION


def test_keys_follow_the_generations(sender: Node, receiver: Node) -> None:
    for generation in range(1, 6):
        sender.skip_to(generation * GENERATION)
        sender.use(1)
        late = sender.seal(DATA)
        assert receiver.open(sender.seal(DATA)) == DATA
        receiver.use(1)
        assert receiver.open(late) == DATA
    kept = receiver.opener.keys[receiver.opener.keys["context"] != 0]
    assert sorted(kept["generation"]) == [4, 5, 6]


def test_a_receiver_that_missed_generations_learns_the_key(sender: Node, receiver: Node) -> None:
    sender.skip_to(40 * GENERATION)
    sender.use(1)
    sealed = sender.seal(DATA)
    assert receiver.open(sealed) == UNKNOWN_KEY
    assert receiver.take(sealed) == DATA


def test_numbers_end(sender: Node) -> None:
    sender.skip_to(lay.NUMBER_MAX)
    sender.use(1)
    assert number_of(sender.seal(DATA)) == lay.NUMBER_MAX
    room = array(bytes(200))
    assert seal_one(sender.sealer.words, 0, array(DATA), len(DATA), room) == NO_KEY


def test_an_epoch_that_is_prepared_loses_no_packet(sender: Node, receiver: Node) -> None:
    receiver.use(1, 2)
    late = sender.seal(DATA)
    sender.use(2)
    assert receiver.open(sender.seal(DATA)) == DATA
    assert receiver.open(late) == DATA
    very_late = Node(3, boot=78).seal(DATA)
    receiver.use(2)
    assert receiver.take(very_late) == UNKNOWN_KEY
    assert receiver.open(sender.seal(DATA)) == DATA


def test_too_many_epochs_and_targets_are_refused(sender: Node) -> None:
    with pytest.raises(ValueError, match=r"^epochs: 3: allowed are 2 at most$"):
        sender.takes.update((1, 2, 3))
    with pytest.raises(ValueError, match=r"^targets: 513: allowed are 1 to 512$"):
        sender.sends.activate(1, tuple(range(513)))
    assert number_of(sender.seal(DATA)) == 1


# --- runs ----------------------------------------------------------------------------------------


RUN = [packets.data(packets.message(bytes([i]) * (40 * i)), source=3, seq=i) for i in range(9)]
STRIDE = 400


def test_a_run_has_the_bytes_of_its_packets_sealed_one_by_one() -> None:
    one_by_one, in_runs = Node(3), Node(3)
    wanted = [one_by_one.seal(each) for each in RUN]
    assert in_runs.seal_run(RUN[:4], STRIDE) + in_runs.seal_run(RUN[4:], STRIDE) == wanted
    assert in_runs.seal(DATA) == one_by_one.seal(DATA)


def test_a_run_bounds_the_lengths_that_a_client_scribbled(receiver: Node, sender: Node) -> None:
    scribbled = []
    for length in (0, 31, STRIDE + 1, 65_535):
        raw = bytearray(RUN[8].ljust(STRIDE, b"\xee"))
        struct.pack_into("<H", raw, wire.LENGTH_AT, length)
        scribbled.append(bytes(raw))
    sealed = sender.seal_run(scribbled, STRIDE)
    assert [length_of(each) for each in sealed] == [32, 32, STRIDE, STRIDE]
    for each, whole in zip(sealed, scribbled, strict=True):
        opened = receiver.open(each)
        assert isinstance(opened, bytes)
        assert opened[12:] == whole[12 : length_of(each)]


def test_the_key_changes_within_a_run_at_the_next_generation(sender: Node, receiver: Node) -> None:
    """A run that kept its key would seal under one that no receiver derives for these numbers."""
    sender.skip_to(GENERATION - 4)
    sender.use(1)
    before = sender.sealer.sealer[0]["key"]
    sealed = sender.seal_run(RUN, STRIDE)
    assert [number_of(each) for each in sealed] == list(range(GENERATION - 4, GENERATION + 5))
    assert sender.sealer.sealer[0]["key"] != before
    assert [receiver.take(each) for each in sealed] == RUN
    assert {receiver.open(each) for each in sealed} == {REPLAYED}
    for of_old, of_new in zip(sealed[:4], sealed[4:8], strict=True):
        # Under the other generation's key neither opens: the number is authenticated.
        assert receiver.open(of_old[:48] + of_new[48:]) in (REPLAYED, TAG_FAILED)


def test_a_run_stops_where_the_next_key_is_not_ready(sender: Node, receiver: Node) -> None:
    sender.skip_to(2 * GENERATION - 4)
    sender.use(1)  # keys of this generation, which is 1, and of 2
    sender.skip_to(3 * GENERATION - 4)
    first = sender.seal_run(RUN, STRIDE)
    assert [number_of(each) for each in first] == list(range(3 * GENERATION - 4, 3 * GENERATION))
    assert sender.seal_run(RUN[4:], STRIDE) == []
    assert int(sender.sealer.sealer[0]["next"]) == 3 * GENERATION, "no number is used without a key"
    sender.use(1)
    rest = sender.seal_run(RUN[4:], STRIDE)
    assert [receiver.take(each) for each in first + rest] == RUN


def test_a_run_is_sealed_under_the_epoch_of_its_time(sender: Node, receiver: Node) -> None:
    receiver.takes.update((1, 2))
    sealed = sender.seal_run(RUN[:3], STRIDE)
    sender.use(2)
    sealed += sender.seal_run(RUN[3:], STRIDE)
    epochs = [struct.unpack_from("<I", each, lay.EPOCH_AT)[0] for each in sealed]
    assert epochs == [1] * 3 + [2] * 6
    assert [number_of(each) for each in sealed] == list(range(number_of(sealed[0]), 11))
    assert [receiver.take(each) for each in sealed] == RUN


def test_a_run_ends_with_the_last_number(sender: Node) -> None:
    sender.skip_to(lay.NUMBER_MAX - 1)
    sender.use(1)
    assert len(sender.seal_run(RUN, STRIDE)) == 2
    assert sender.seal_run(RUN, STRIDE) == []


def test_a_run_ends_where_libcrypto_refuses(sender: Node) -> None:
    functions = sender.sealer.evp
    refusing = functions.copy()
    refusing[ENCRYPT_FINAL] = refusing[DECRYPT_FINAL]  # refuses a context for sealing
    sender.sealer.replace("evp", refusing)
    assert sender.seal_run(RUN, STRIDE) == []
    sender.sealer.replace("evp", functions)
    assert int(sender.sealer.sealer[0]["failed"]) == 1
    assert number_of(sender.seal_run(RUN, STRIDE)[0]) == 2, "its number is never used again"
