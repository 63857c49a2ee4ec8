"""Tables of keys and headers: definitions, references, and the packets that need them."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_READING = "engine/tidecast/protocol/tables/reading.py"
_WRITING = "engine/tidecast/protocol/tables/writing.py"
_SENDER = "engine/tidecast/agents/live/sender.py"
_EXPANDING = "engine/tidecast/agents/live/expanding.py"
_UNIT = "tests/unit/test_tables.py::"
_NETWORK = "tests/simulation/test_tables.py::"

MUTATIONS = (
    Mutation(
        "tables-number-unchecked",
        _READING,
        "load_u32(buffer, at + wire.COMPACT_TABLE_AT) != load_i64(block, _NUMBER)\n        or ",
        "",
        (_UNIT + "test_a_table_that_is_full_gives_way_to_another",),
        "A packet is read by another table than it names.",
    ),
    Mutation(
        "tables-entry-beyond-the-needed",
        _READING,
        "        if entry >= entries:\n            return MALFORMED\n",
        "",
        (_UNIT + "test_packets_that_lie_are_refused",),
        "A packet refers to an entry that the table need not have.",
    ),
    Mutation(
        "tables-copy-beyond-the-packet",
        _READING,
        "            if p + n > end or to + n > full:",
        "            if to + n > full:",
        (_UNIT + "test_packets_that_lie_are_refused",),
        "A copy reads beyond the end of its packet.",
    ),
    Mutation(
        "tables-shorter-than-said",
        _READING,
        "    if to != full:\n        return MALFORMED\n",
        "",
        (_UNIT + "test_packets_that_lie_are_refused",),
        "A packet that gives less than it says is delivered with old bytes at its end.",
    ),
    Mutation(
        "tables-definitions-out-of-order",
        _READING,
        "    if first > entries:\n        return False\n",
        "",
        (_UNIT + "test_an_image_without_the_table_reads_nothing",),
        "Entries are taken whose predecessors are missing.",
    ),
    Mutation(
        "tables-too-many-bytes",
        _READING,
        "            if used + n > TABLE_BYTES_MAX:\n                break\n",
        "",
        (_UNIT + "test_definitions_of_more_bytes_than_a_table_has_end_there",),
        "Definitions are written behind the table.",
    ),
    Mutation(
        "tables-same-number",
        _WRITING,
        "    number = (load_i64(block, T_NUMBER) + 1) & 0xFFFFFFFF",
        "    number = load_i64(block, T_NUMBER)",
        (_UNIT + "test_a_table_that_is_full_gives_way_to_another",),
        "Two tables have one number.",
    ),
    Mutation(
        "tables-older-receivers",
        _SENDER,
        "    if reads == 0:\n        pub.compacts = 0\n",
        "    if reads == 0:\n        pass\n",
        (_NETWORK + "test_an_older_receiver_gets_packets_in_full",),
        "A receiver that reads no tables gets COMPACT packets until the next look.",
    ),
    Mutation(
        "tables-unread-packets-are-not-missing",
        _EXPANDING,
        "    miss_packet(S, image, load_i64(buffer, at + wire.SEQ_AT), now_ns)\n",
        "",
        (_NETWORK + "test_the_last_packet_is_asked_for_before_a_heartbeat_reveals_it",),
        "A packet whose table is missing is asked for only once a later packet comes.",
    ),
)
