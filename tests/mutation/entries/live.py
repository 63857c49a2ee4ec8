"""Live topics: rings, wire parsers, gaps, NAKs, repairs, flow control, rates."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_WRITER = "engine/tidecast/buffers/writer.py"
_READER = "engine/tidecast/buffers/reader.py"
_LOSS = "engine/tidecast/protocol/loss.py"
_FLOW = "engine/tidecast/protocol/flow_control.py"
_CHECK = "engine/tidecast/protocol/check.py"
_AREA = "engine/tidecast/protocol/area.py"
_PEERS = "engine/tidecast/node/live/peers.py"
_RECEIVING = "engine/tidecast/agents/live/receiving.py"
_SENDING = "engine/tidecast/agents/live/sending.py"
_RING = "tests/unit/test_packet_ring.py::"
_STEPS = "tests/unit/test_protocol_steps.py::"
_LOSS_UNIT = "tests/unit/test_protocol_loss.py::"
_LOSS_SIM = "tests/simulation/test_loss.py::"
_GAPS = "tests/simulation/test_exact_gaps.py::"
_JOINING = "tests/simulation/test_joining.py::"
_FORGED_PACKETS = "tests/simulation/test_forged_packets.py::"
_RING_RACES = "tests/unit/test_ring_races.py::"
_CLIENT_SUBSCRIBE = "tests/unit/test_client_subscribe.py::"
_FLOWS = "tests/simulation/test_flow.py::"
_PROTOCOL_CHECK = "tests/unit/test_protocol_check.py::"
_LEVELS = "tests/simulation/test_levels.py::"
_LEASES = "tests/simulation/test_durable_leases.py::"
_REQUESTER = "engine/tidecast/client/requests/requester.py"
_ARRIVALS = "engine/tidecast/client/remote/arrivals.py"
_REQUESTS = "tests/unit/test_requests.py::"
_GATEWAY_REQUESTS = "tests/unit/test_gateway_requests.py::"
_CLIENT_BATCHES = "tests/property/test_client_batches.py::"

MUTATIONS = (
    Mutation(
        "join-by-age-when-handled",
        "engine/tidecast/node/live/sessions.py",
        "        if setup.age_ns < setup.received_ns - subscription.created_ns:",
        "        if setup.age_ns < self._ctx.clock_ns() - subscription.created_ns:",
        (_JOINING + "test_the_age_of_a_subscription_is_that_when_the_setup_came",),
        "A conductor that is held up gives a late subscription all of a publication.",
    ),
    Mutation(
        "join-by-earlier-setup",
        "engine/tidecast/node/live/sessions.py",
        'if mode == "latest" and s.created_ns > setup.received_ns]',
        'if mode == "latest" and s.created_ns < 0]',
        (_JOINING + "test_a_conductor_that_is_held_up_makes_no_publication_younger",),
        "A subscription starts at the live edge of a SETUP that came before it.",
    ),
    Mutation(
        "acks-of-the-next-owner-wait",
        "engine/tidecast/agents/live/sender.py",
        "    if moved and heard and not follows:",
        "    if moved and heard:",
        (_LEASES + "test_the_next_owner_acks_as_soon_as_the_owner_before_has_left",),
        "An owner's LEAVE is forgotten: acks of the next owner wait for a second.",
    ),
    Mutation(
        "ring-overwrites-tethered",
        _WRITER,
        "            limit = min(limit, position + slots)",
        "            limit = min(limit, position + slots + 1)",
        (_RING + "test_tethered_reader_holds_the_writer_back",),
        "A writer overwrites a packet that a tethered reader still reads.",
    ),
    Mutation(
        "ring-committed-before-copied",
        _WRITER,
        "        copy(ring, at + 4 + meta_n, source, 0, n)\n        w[W_USED] = used + need\n"
        "        done = seal(ring, w) if flush and _flush_seals(ring, w) else commit(ring, w)\n",
        "        w[W_USED] = used + need\n"
        "        done = seal(ring, w) if flush and _flush_seals(ring, w) else commit(ring, w)\n"
        "        copy(ring, at + 4 + meta_n, source, 0, n)\n",
        (_RING_RACES + "test_what_a_reader_sees_was_written_before",),
        "A message is visible before its bytes are written.",
    ),
    Mutation(
        "ring-plain-store",
        _WRITER,
        "    done = compare_and_swap(ring, at, control_word(seq, lay.OPEN, w[W_COMMITTED]), new)\n",
        "    store_release(ring, at, new)\n    done = True\n",
        (_RING + "test_a_running_writer_does_not_overwrite_a_packet_that_the_engine_sealed",),
        "A writer changes a packet that the engine sealed.",
    ),
    Mutation(
        "ring-nobody-woken",
        "engine/tidecast/buffers/slots.py",
        "    if load_relaxed(ring, lay.ARMED_AT) != 0:\n        _wake(ring, bells)",
        "    if load_relaxed(ring, lay.ARMED_AT) < 0:\n        _wake(ring, bells)",
        (
            _CLIENT_SUBSCRIBE + "test_a_wake_up_that_is_missed_is_counted",
            _CLIENT_SUBSCRIBE + "test_a_waiting_subscriber_is_woken",
        ),
        "A commit wakes nobody who sleeps.",
    ),
    Mutation(
        "ring-lapped-unseen",
        _READER,
        "    if lapped(ring, r, first):",
        "    if lapped(ring, r, first) and limit < 0:",
        (
            _CLIENT_BATCHES + "test_a_lapped_batch_is_a_gap_and_counts_nothing",
            _RING_RACES + "test_what_a_reader_sees_was_written_before[False]",
        ),
        "A reader hands out packets that were overwritten while it read.",
    ),
    Mutation(
        "ring-gap-range-wrong",
        _READER,
        "        _note_gap(r, end, G_LOST)\n        return GAP\n    if not holds",
        "        _note_gap(r, end + 1, G_LOST)\n        return GAP\n    if not holds",
        (_RING + "test_gone_packets_are_one_gap",),
        "A gap names one packet more than was lost.",
    ),
    Mutation(
        "ring-end-of-session-hangs",
        _READER,
        "    return end if end > r[R_SEQ] else -1",
        "    return -1",
        (_GAPS + "test_a_session_that_ends_with_holes_delivers_the_rest",),
        "What follows a hole of a session that ended is never delivered.",
    ),
    Mutation(
        "ring-closed-loses-last",
        _WRITER,
        "    store_i64(ring, lay.END_SEQ_AT, w[W_SEQ])",
        "    store_i64(ring, lay.END_SEQ_AT, w[W_SEQ] - 1)",
        (_RING + "test_closed_ring_is_drained",),
        "The last packet of a publication that closes is not part of it.",
    ),
    Mutation(
        "loss-one-packet-too-many",
        _LOSS,
        "        ranges[taken, 1] = gaps[i].end - gaps[i].first\n",
        "        ranges[taken, 1] = gaps[i].end - gaps[i].first + 1\n",
        (_LOSS_UNIT + "test_all_due_gaps_are_asked_for_at_once_and_no_others",),
        "A NAK asks for a packet that is there.",
    ),
    Mutation(
        "loss-no-backoff",
        _LOSS,
        "    delay = base_ns << min(tries, BACKOFF_DOUBLINGS_MAX)",
        "    delay = base_ns",
        (_LOSS_UNIT + "test_repeats_back_off_and_stay_bounded",),
        "NAKs are repeated at a fixed rate.",
    ),
    Mutation(
        "loss-split-forgets-rest",
        _LOSS,
        "    gaps[i + 1].first = seq + 1\n",
        "    gaps[i + 1].first = seq + 2\n",
        (_LOSS_UNIT + "test_gaps_fill_from_either_end_and_split_in_the_middle",),
        "A repair in the middle of a gap hides the packet behind it.",
    ),
    Mutation(
        "loss-one-gap-a-nak",
        _RECEIVING,
        "        S.ranges,\n        wire.NAK_RANGES_MAX,\n    )",
        "        S.ranges,\n        1,\n    )",
        (_LOSS_SIM + "test_a_nak_names_all_gaps_that_are_due",),
        "A NAK names one gap only.",
    ),
    Mutation(
        "loss-window-ignored",
        _RECEIVING,
        "    image.window_end = slowest + image.slots\n    if seq < image.window_end:\n"
        "        return True",
        "    image.window_end = slowest + image.slots + 1\n    if seq < image.window_end:\n"
        "        return True",
        (
            _FLOWS + "test_min_flow_holds_the_publisher_back_and_loses_nothing",
            _FLOWS + "test_rate_flow_lets_a_laggard_gap_and_nobody_waits",
            "tests/simulation/test_network.py",
        ),
        "A packet is written over one that a reader has not read.",
    ),
    Mutation(
        "loss-foreign-receiver-delivered",
        _RECEIVING,
        "    if receiver != wire.RECEIVER_ALL and receiver != S.misc[M_NODE]:",
        "    if receiver != wire.RECEIVER_ALL and receiver < 0:",
        (_JOINING + "test_unicast_reaches_one_node_and_leaves_no_gap_elsewhere",),
        "A message for one node reaches the subscribers of all.",
    ),
    Mutation(
        "loss-end-too-early",
        _RECEIVING,
        "    if image.end_seq < 0 or image.contiguous < image.end_seq:",
        "    if image.end_seq < 0:",
        (
            _GAPS + "test_a_session_that_ends_with_holes_delivers_the_rest",
            _LOSS_SIM + "test_exactly_once_in_order_under_loss",
            _JOINING + "test_closing_drains_to_all",
        ),
        "A session ends although packets of it are missing.",
    ),
    Mutation(
        "loss-gap-not-counted",
        _RECEIVING,
        "    S.counters[image.row, C.LOST_FOR_GOOD] += lost\n",
        "",
        (
            _FLOWS + "test_history_overrun_is_a_gap_with_the_right_range",
            _GAPS + "test_a_gap_is_reported_once_with_its_reason",
        ),
        "Packets that are given up are not counted.",
    ),
    Mutation(
        "repair-overwritten-slot",
        _SENDING,
        "    if load_acquire(ring, at) != word:\n        return 0  # the writer has just",
        "    if load_acquire(ring, at) < 0:\n        return 0  # the writer has just",
        (_RING_RACES + "test_a_repair_is_never_part_of_another_packet",),
        "A repair carries the bytes of the packet that has just replaced it.",
    ),
    Mutation(
        "repair-spends-nothing",
        _SENDING,
        "    total = total * sent // n\n    _spend(S, pub, sent, total)\n"
        "    counted(S, pub, C.PACKETS_RESENT, sent)",
        "    total = total * sent // n\n    counted(S, pub, C.PACKETS_RESENT, sent)",
        (_FLOWS + "test_packet_rate_holds_with_retransmissions",),
        "Repairs do not count against the rate limit.",
    ),
    Mutation(
        "flow-min-follows-fastest",
        _FLOW,
        "        lowest_end = min(lowest_end, end)",
        "        lowest_end = max(highest_end, end)",
        (_STEPS + "test_min_follows_the_slowest_window_max_the_fastest_rate_none",),
        "Flow control by the slowest receiver follows the fastest.",
    ),
    Mutation(
        "flow-belated-status",
        _FLOW,
        "    if consumed > receivers[i].consumed:",
        "    if consumed != receivers[i].consumed:",
        (_STEPS + "test_positions_never_go_back",),
        "A belated STATUS takes a receiver's position back.",
    ),
    Mutation(
        "flow-excluded-holds-back",
        _FLOW,
        "        if receivers[i].id == 0 or receivers[i].excluded != 0:",
        "        if receivers[i].id == 0:",
        (_STEPS + "test_an_excluded_receiver_counts_again_once_it_moves",),
        "A receiver that is stuck holds the publisher back for ever.",
    ),
    Mutation(
        "flow-naks-unlimited",
        _FLOW,
        "    entry.credit = min(entry.credit + earned, 2 * slots)",
        "    entry.credit = 2 * slots",
        (_FORGED_PACKETS + "test_a_flood_of_naks_costs_a_bounded_number_of_repairs",),
        "One receiver may ask for any number of repairs.",
    ),
    Mutation(
        "flow-joins-unrated",
        _FLOW,
        "    if joins <= 0 or here >= RECEIVERS_AN_ADDRESS_MAX:",
        "    if joins < -1:",
        (_FORGED_PACKETS + "test_one_address_has_few_receivers_and_new_ones_are_rated",),
        "One address takes all places of receivers.",
    ),
    Mutation(
        "rate-idle-banks-credit",
        "engine/tidecast/protocol/rate_limit.py",
        "    return min(max(tokens, 0.0) + rate_per_s * (elapsed_ns / 1e9), cap)",
        "    return max(tokens, 0.0) + rate_per_s * (elapsed_ns / 1e9)",
        (_STEPS + "test_idle_time_earns_one_burst_and_no_more",),
        "Idle time earns credit without bound.",
    ),
    Mutation(
        "wire-length-unchecked",
        _CHECK,
        "    if length < wire.PACKET_HEADER_BYTES or length > n:",
        "    if length < wire.PACKET_HEADER_BYTES:",
        (_PROTOCOL_CHECK + "test_every_truncation_is_short",),
        "A packet may claim more bytes than arrived.",
    ),
    Mutation(
        "wire-nak-count-unchecked",
        _CHECK,
        "        if length < wire.NAK_RANGES_AT + count * wire.NAK_RANGE_BYTES:",
        "        if length < wire.NAK_RANGES_AT:",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "A NAK is read beyond its packet.",
    ),
    Mutation(
        "wire-nak-overlap",
        _CHECK,
        "            if first < end or first > _SEQ_MAX:",
        "            if first > _SEQ_MAX:",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "One NAK asks for the same packets again and again.",
    ),
    Mutation(
        "wire-status-order-unchecked",
        _CHECK,
        "        if not (0 <= consumed <= contiguous <= _SEQ_MAX):",
        "        if not (0 <= consumed and contiguous <= _SEQ_MAX):",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "A receiver claims to have consumed what it has not received.",
    ),
    Mutation(
        "wire-setup-slots-unchecked",
        _CHECK,
        "        or slots & (slots - 1) != 0\n",
        "",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "A ring of any number of slots is announced.",
    ),
    Mutation(
        "wire-setup-platform-unchecked",
        _CHECK,
        "    end = length - load_u8(buffer, at + wire.SETUP_PLATFORM_LEN_AT)\n",
        "    end = length\n",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "The platform of a SETUP lies in its names or in the producer's block.",
    ),
    Mutation(
        "wire-area-value-unchecked",
        _AREA,
        "        if kind == 0 or value_at + n > end:",
        "        if kind == 0:",
        (_PROTOCOL_CHECK + "test_each_fault_has_its_cause",),
        "A field of SETUP's area claims bytes beyond the area.",
    ),
    Mutation(
        "wire-critical-field-skipped",
        _PEERS,
        "        if setup.critical:",
        "        if setup.critical < 0:",
        (_LEVELS + "test_a_session_with_a_field_that_must_be_known_is_refused",),
        "A session is received without a field that a receiver must know.",
    ),
    Mutation(
        "request-to-an-ended-responder",
        _REQUESTER,
        "        self._look()  # their end is reported once: they must get no more requests\n",
        "        self._inbox.changed = True\n",
        (_REQUESTS + "test_a_request_never_goes_to_a_responder_that_is_known_to_have_ended",),
        "A request goes to a responder whose end was read, and gets neither reply nor error.",
    ),
    Mutation(
        "remote-ring-ends-before-the-next",
        _ARRIVALS,
        "        return incoming.available(), gone\n",
        "        return gone, incoming.available()\n",
        (
            _GATEWAY_REQUESTS
            + "test_a_large_reply_moves_to_a_larger_ring_and_its_responder_is_not_lost",
        ),
        "A remote session has no ring for a moment when it moves to a larger one.",
    ),
)
