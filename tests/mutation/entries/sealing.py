"""Sealed packets: the cipher in kernels, packet numbers, replay windows, senders and keys."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_GCM = "engine/tidecast/native/crypto/aes_gcm.py"
_SENDER = "engine/tidecast/protocol/sealing/sender.py"
_RECEIVER = "engine/tidecast/protocol/sealing/receiver.py"
_WINDOW = "engine/tidecast/protocol/sealing/window.py"
_GCM_UNIT = "tests/unit/test_aes_gcm.py::"
_UNIT = "tests/unit/test_sealing.py::"
_NETWORK = "tests/simulation/test_sealed_transport.py::"
_NONCES = "tests/property/test_sealed_nonces.py::"

MUTATIONS = (
    Mutation(
        "seal-forged-tag-passes",
        _GCM,
        "        return FORGED\n    return DONE",
        "        return DONE\n    return DONE",
        (f"{_GCM_UNIT}test_every_flipped_bit_is_refused", f"{_GCM_UNIT}test_published_vectors"),
        "A packet with a forged tag is delivered.",
    ),
    Mutation(
        "seal-forged-text-stays",
        _GCM,
        "    if outcome != DONE:\n",
        "    if outcome == DONE and n < 0:\n",
        (f"{_GCM_UNIT}test_every_flipped_bit_is_refused",),
        "The text of a forged packet stays where a reader could find it.",
    ),
    Mutation(
        "seal-number-is-used-again",
        _SENDER,
        "sealer.next = number + 1  # whatever happens below",
        "sealer.next = number + (target == ALL)",
        (f"{_NONCES}test_no_pair_of_key_and_nonce_occurs_twice",),
        "Two control packets are sealed under one nonce.",
    ),
    Mutation(
        "seal-nonce-of-the-sequence",
        _SENDER,
        "key.mask_head, key.mask_tail, number)",
        "key.mask_head, key.mask_tail, number - number % 2)",
        (f"{_NONCES}test_no_pair_of_key_and_nonce_occurs_twice",),
        "Neighbouring packets share a nonce.",
    ),
    Mutation(
        "seal-run-keeps-its-key",
        _SENDER,
        "end = min(packets, done + left)",
        "end = packets + 0 * left",
        (f"{_UNIT}test_the_key_changes_within_a_run_at_the_next_generation",),
        "A run that comes to the next generation stays under the key of the one before.",
    ),
    Mutation(
        "seal-source-of-the-ring",
        _SENDER,
        "    store_u16(out, out_at + wire.SOURCE_AT, sealer.source)\n",
        "",
        (f"{_UNIT}test_a_ring_cannot_name_another_source_or_length",),
        "A client's ring names the node that a packet comes from.",
    ),
    Mutation(
        "seal-replays-pass",
        _RECEIVER,
        "        return REPLAYED\n",
        "        pass\n",
        (f"{_UNIT}test_each_number_opens_once_in_any_order",),
        "A recorded packet is delivered again.",
    ),
    Mutation(
        "seal-window-keeps-old-bits",
        _WINDOW,
        "            words[(last + 1 + k) & _MASK] = 0\n",
        "            words[(last + 1 + k) & _MASK] &= -1\n",
        (f"{_UNIT}test_the_window_agrees_with_a_set_of_numbers",),
        "New packets count as replays when the bitmap comes round.",
    ),
    Mutation(
        "seal-control-under-the-key-for-all",
        _RECEIVER,
        "load_u16(buffer, at + lay.SEAL_FLAGS_AT) != flags",
        "load_u16(buffer, at + lay.SEAL_FLAGS_AT) > lay.FLAG_PAIR",
        (f"{_UNIT}test_a_control_packet_under_the_key_for_all_is_refused",),
        "A control packet may come under the key that all receivers have.",
    ),
    Mutation(
        "seal-stranger-is-learned",
        _RECEIVER,
        "        if not self._opens(raw, suite, made):\n",
        "        if made is None:\n",
        (
            f"{_UNIT}test_an_unknown_sender_enters_by_an_authentic_packet_alone",
            f"{_UNIT}test_a_stranger_with_another_secret_is_not_learned",
        ),
        "Forged packets throw known senders out of the table.",
    ),
    Mutation(
        "seal-old-starts-push-senders-out",
        _RECEIVER,
        '            if now_ns - int(state.senders[silent]["heard_ns"]) < RECENT_NS:\n',
        "            if now_ns < 0:\n",
        (f"{_UNIT}test_old_starts_that_are_replayed_push_no_sender_out_that_is_heard",),
        "Recorded packets of old starts empty the replay window of a living sender.",
    ),
    Mutation(
        "seal-plain-passes-where-sealed-is-required",
        "engine/tidecast/agents/live/unsealing.py",
        "    if mode == MODE_REQUIRED and _is_plain(buffer, at, n):\n",
        "    if mode < 0 and _is_plain(buffer, at, n):\n",
        (f"{_NETWORK}test_plain_packets_are_refused_where_sealed_ones_are_required",),
        "A plain packet is delivered by a transport that requires sealed ones.",
    ),
    Mutation(
        "seal-plain-control-passes",
        "engine/tidecast/agents/live/sender.py",
        "        if opened == REFUSED:\n            return\n",
        "        if opened == REFUSED:\n            opened = AS_IT_CAME\n",
        (f"{_NETWORK}test_a_forged_packet_changes_nothing",),
        "A plain ACK, NAK or STATUS is taken where sealed ones are required.",
    ),
    Mutation(
        "seal-sends-plain-without-a-key",
        "engine/tidecast/transport/wire_io.py",
        "            tx.io[IO_KEYLESS] += 1\n            return -sys.ENOKEY\n        memory, at",
        "            tx.io[IO_SEALS] = 0\n            return 0\n        memory, at",
        (f"{_NETWORK}test_without_a_key_packets_are_held_back_and_never_sent_plain",),
        "A sender without a key sends plain packets.",
    ),
)
