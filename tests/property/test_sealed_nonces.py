"""No (key, nonce) pair is used twice: over nodes, starts, epochs, generations, lanes and repairs.

A pair that is used twice gives the key of AES-GCM's tags away: an observer could forge packets.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import packets
from tests.support.sealing import TRANSPORT, Node, array

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.native.jit import kernel
from tidecast.native.memory import copy, load_i64, store_i64, store_u8
from tidecast.protocol.random import random_below
from tidecast.protocol.sealing.keys import ALL, generation_of, packet_key
from tidecast.protocol.sealing.sender import SEALER, seal_packet

SENDS = 2_000
STARTS, PHASES = 7, 8
"""Starts of engines; each sends `SENDS` packets in each of its phases."""
_sealer = SEALER.of


@kernel
def send_many(words, packet, n, target, sends, seed, out, log):  # type: ignore[no-untyped-def]
    """Seal new packets and repairs of old ones, one in three; log {context, nonce} of each.

    A repair has the sequence, and mostly the bytes, of a packet that was sealed before.
    """
    state = _sealer(words)
    seq = 0
    for i in range(sends):
        repair = seq > 0 and random_below(seed, 3) == 0
        named = random_below(seed, seq) if repair else seq
        store_i64(packet, wire.SEQ_AT, named)
        store_u8(packet, wire.FLAGS_AT, wire.FLAG_RETRANSMIT if repair else 0)
        if seal_packet(state, target, packet, 0, n, out, 0) < 0:
            return i
        seq += 0 if repair else 1
        store_i64(log, i * 24, state.keys[state.sealer[0].key].context)
        copy(log, i * 24 + 8, state.nonce, 0, 12)
        if load_i64(out, lay.NUMBER_AT) != state.sealer[0].next - 1:
            return -1
    return sends


def pairs_of(node: Node, target: int, sends: int, seed: int) -> set[tuple[bytes, bytes]]:
    """(key, nonce) of each packet that is sealed now; all differ."""
    packet = (
        packets.nak([(1, 1)], source=node.node)
        if target
        else packets.data(packets.message(b"x" * 20), source=node.node)
    )
    log = np.zeros(sends * 24, dtype=np.uint8)
    random = np.array([seed], dtype=np.int64)
    out = np.zeros(200, dtype=np.uint8)
    done = send_many(node.sealer.words, array(packet), len(packet), target, sends, random, out, log)
    assert done == sends
    secrets = {
        key.context: packet_key(
            node.roots[epoch],
            TRANSPORT,
            node.purpose(
                epoch=epoch, target=to, generation=generation, boot=node.boot, lane=node.lane
            ),
        ).secret
        for (epoch, generation, to), (_, key) in node.sends._keys.items()
    }
    rows = log.reshape(sends, 24)
    contexts = rows[:, :8].copy().view(np.int64)[:, 0].tolist()
    nonces = [row.tobytes() for row in rows[:, 8:20]]
    return {(secrets[c], nonce) for c, nonce in zip(contexts, nonces, strict=True)}


@pytest.mark.parametrize("suite", [1, 2])
def test_no_pair_of_key_and_nonce_occurs_twice(suite: int) -> None:
    """More than 100,000 packets of two nodes whose engines start again and again."""
    seen: set[tuple[bytes, bytes]] = set()
    sent = 0
    for start in range(STARTS):
        # Two nodes have the same number of starts; a node's two lanes have one start.
        node = Node(2 + start % 2, boot=1000 + start // 4, lane=start // 2 % 2, suite=suite)
        phases = 0
        for epoch in (1, 2):
            for generation in (0, 3):
                # Numbers never go back, also not with another secret.
                number = int(node.sealer.sealer[0]["next"])
                node.skip_to(max(number, (generation + 4 * epoch << lay.GENERATION_BITS) - 999))
                node.use(epoch)
                for target in (ALL, 1):
                    pairs = pairs_of(node, target, SENDS, seed=1 + start)
                    assert len(pairs) == SENDS
                    assert not seen & pairs
                    seen |= pairs
                    sent += SENDS
                    phases += 1
        assert phases == PHASES
        assert generation_of(int(node.sealer.sealer[0]["next"])) == 11
    assert sent == len(seen) == STARTS * PHASES * SENDS > 100_000


def test_one_start_never_repeats_under_two_targets_and_epochs() -> None:
    """Also where the secret of two epochs is the same: the operator's mistake is no catastrophe."""
    node = Node(2, secrets={1: b"s" * 32, 2: b"s" * 32})
    seen: set[tuple[bytes, bytes]] = set()
    for k, (epoch, target) in enumerate([(1, ALL), (1, 1), (2, ALL), (2, 1), (1, 2)]):
        node.use(epoch)
        node.skip_to(1)  # as if the counter had failed
        pairs = pairs_of(node, target, 500, seed=9)
        assert not seen & pairs
        seen |= pairs
        assert len(seen) == 500 * (k + 1)
