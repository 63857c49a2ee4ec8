"""The archiver and what it knows of producers: appends, group commit, acks, duplicates."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_CYCLE = "engine/tidecast/agents/archiver/cycle.py"
_READING = "engine/tidecast/agents/archiver/reading.py"
_DEDUP = "engine/tidecast/protocol/dedup.py"
_PUBLISH = "tests/simulation/test_durable_publish.py::"
_READ = "tests/unit/test_archiver_reading.py::"
_POWER = "tests/simulation/test_power.py::"
_MOVES = "tests/simulation/test_durable_moves.py::"
_DURABLE_REMOTE = "tests/simulation/test_durable_remote.py::"
_DURABLE_FENCING = "tests/simulation/test_durable_fencing.py::"
_DURABLE_MOVES = "tests/simulation/test_durable_moves.py::"
_DAMAGE = "tests/unit/test_damage.py::"
_SWARM = "tests/simulation/test_swarm.py::"

MUTATIONS = (
    Mutation(
        "archiver-acks-behind-sync",
        _CYCLE,
        "        if topic.dirty_ns == 0:  # packets that only ended",
        "        if topic.syncing == 0:  # packets that only ended",
        (_POWER + "test_what_is_appended_while_a_sync_runs_is_acked_by_the_next",),
        "A sync acks what was appended while it ran.",
    ),
    Mutation(
        "archiver-clean-after-sync",
        "engine/tidecast/node/durable/archiver.py",
        "            if status < 0:\n",
        '            queues["dirty"][row] = 0\n            if status < 0:\n',
        (_POWER + "test_a_queue_that_is_appended_to_while_it_is_synced_is_synced_again",),
        "A queue counts as clean although records were appended while it was synced.",
    ),
    Mutation(
        "archiver-acks-before-sync",
        _CYCLE,
        "    clean = topic.dirty_ns == 0 and topic.syncing == 0",
        "    clean = topic.syncing == 0",
        (_PUBLISH + "test_ack_waits_for_the_sync_and_a_receipt_can_be_asked",),
        "Messages are acked when they are appended, before any sync.",
    ),
    Mutation(
        "archiver-acks-failed-sync",
        _CYCLE,
        "    if topic.sync_status < 0:",
        "    if topic.sync_status < -200:",
        (_PUBLISH + "test_a_sync_that_fails_acks_nothing_and_writes_again",),
        "A sync that failed acks what it covered.",
    ),
    Mutation(
        "archiver-no-back-off",
        _CYCLE,
        "(RETRY_NS << min(topic.sync_failures, SYNC_DOUBLINGS_MAX))",
        "RETRY_NS",
        (_POWER + "test_a_device_that_fails_for_long_is_asked_less_and_less_often",),
        "A device that fails is asked to store what was not synced twenty times a second.",
    ),
    Mutation(
        "archiver-lost-bytes-never-reopened",
        "engine/tidecast/log/queue_log.py",
        "                self.unreadable = isinstance(problem, NotReadError)\n",
        "",
        (_POWER + "test_bytes_that_the_kernel_dropped_come_back_from_the_rings",),
        "A topic whose unsynced bytes the kernel dropped refuses messages until the next start.",
    ),
    Mutation(
        "archiver-placed-forgets-suspect",
        "engine/tidecast/node/durable/placed.py",
        "            durable.tables.note_suspect(topic, run.queue, durable.ctx.clock_ns())\n",
        "",
        (_POWER + "test_a_seal_that_fails_leaves_no_hole_in_what_is_placed_next",),
        "A placed append whose segment cannot be sealed waits for a sync that nobody asks for.",
    ),
    Mutation(
        "archiver-appends-while-suspect",
        _CYCLE,
        "    if topic.suspect != 0 or topic.held == HELD_ROLL:",
        "    if topic.held == HELD_ROLL:",
        (
            _POWER
            + "test_nothing_is_appended_between_a_sync_that_failed_and_the_next_that_succeeds",
        ),
        "Records are appended to a file whose pages the kernel may have dropped.",
        equivalent="`append_run` appends nothing to such a log; the archiver only notices sooner.",
    ),
    Mutation(
        "archiver-moves-on-over-full-disk",
        _CYCLE,
        "        _report_state(A, topic, topic.errno)\n        return\n    if held == HELD_ROLL:",
        "        _report_state(A, topic, topic.errno)\n    if held == HELD_ROLL:",
        (_PUBLISH + "test_a_full_disk_is_told_holds_the_ring_and_passes",),
        "Messages that a full disk refused are acked.",
    ),
    Mutation(
        "archiver-ack-record-torn",
        _CYCLE,
        "    record = lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES",
        "    record = lay.ACK_RECORDS_AT + (version & 0) * lay.ACK_RECORD_BYTES",
        (_POWER + "test_an_ack_record_that_a_crash_tears_is_not_read",),
        "An ack is written over the one before, which a crash may tear.",
    ),
    Mutation(
        "archiver-duplicate-taken",
        _READING,
        "    if source.producer != 0 and seq <= load_i64(marks, number * 8):",
        "    if source.producer != 0 and seq < load_i64(marks, number * 8):",
        (_PUBLISH + "test_defect_5_a_late_duplicate_after_completion_is_dropped",),
        "The last message of a producer is stored twice when it comes twice.",
    ),
    Mutation(
        "archiver-key-ignored",
        _READING,
        "        number, row = _queue_for(topic, hashed)",
        "        number, row = _queue_for(topic, _hash_of_seq(seq))",
        (_PUBLISH + "test_keys_headers_and_times_are_kept_in_key_order",),
        "Messages of one key lie in several queues.",
    ),
    Mutation(
        "archiver-length-trusted",
        _READING,
        "        if _HEADER + 4 + size > source.slot_bytes or part < 0 or done + part > total:",
        "        if part < 0:",
        (_READ + "test_a_length_that_changes_after_it_was_checked_copies_nothing_of_a_neighbour",),
        "A length that a publisher changes meanwhile copies a neighbour's bytes.",
    ),
    Mutation(
        "archiver-field-beyond-message",
        _READING,
        "    return at - start if at <= end else -1",
        "    return at - start",
        (_READ + "test_a_field_that_ends_behind_its_message_is_malformed",),
        "A key or headers reach beyond their message.",
    ),
    Mutation(
        "dedup-gap-accepted",
        _DEDUP,
        "        if first_seq > due:",
        "        if first_seq > SEQ_MAX:",
        (_PUBLISH + "test_a_sequence_that_leaves_one_out_is_refused",),
        "A producer may leave sequences out.",
    ),
    Mutation(
        "dedup-epoch-reused",
        _DEDUP,
        "        found.epoch += 1\n",
        "        found.epoch += int(not known)\n",
        (
            _PUBLISH + "test_defect_7_an_engine_that_comes_back_knows_the_epochs",
            _DURABLE_REMOTE + "test_a_newer_session_fences_the_older_one_wherever_it_is",
        ),
        "A new session has the epoch of the one before and does not fence it.",
    ),
    Mutation(
        "dedup-mark-before-effect",
        _DEDUP,
        "min(int(p.marks[queue]), waiting.get(p.id, SEQ_MAX) - 1),",
        "int(p.marks[queue]),",
        (_POWER + "test_a_snapshot_of_producers_is_never_ahead_of_its_log",),
        "A snapshot marks messages as stored that are not in the log yet.",
    ),
    Mutation(
        "dedup-growth-forgets",
        _DEDUP,
        "            sent = 0 if each.placed else each.whole_seq",
        "            sent = 0",
        ("tests/simulation/test_durable_growth.py",),
        "After a growth a repeated message is stored again in a new queue.",
    ),
    Mutation(
        "dedup-growth-believes-hole",
        _DEDUP,
        "            sent = 0 if each.placed else each.whole_seq",
        "            sent = 0 if each.placed else each.last_seq",
        (_MOVES + "test_what_is_repeated_after_a_hole_was_given_up_and_the_topic_grew_is_stored",),
        "A new queue takes messages for duplicates that a crash left out of the log.",
    ),
    Mutation(
        "dedup-forgets-open-session",
        _DEDUP,
        "            if p.sessions == 0\n            and now_ns - p.seen_ns >",
        "            if now_ns - p.seen_ns >",
        (_PUBLISH + "test_a_producer_that_is_idle_in_a_session_is_not_forgotten",),
        "A producer with an open session is forgotten, and its duplicates are stored.",
    ),
    Mutation(
        "dedup-room-from-busy",
        _DEDUP,
        "            idle = [p for p in self.known.values() if p.sessions == 0]",
        "            idle = list(self.known.values())",
        (
            _DURABLE_FENCING
            + "test_a_topic_remembers_so_many_producers_and_the_oldest_idle_one_makes_room",
        ),
        "A full table forgets a producer that has an open session.",
    ),
    Mutation(
        "dedup-overtaken-unseen",
        _DEDUP,
        "found.epoch > after and found.line != line",
        "found.epoch > after + (1 << 60) and found.line != line",
        (_DURABLE_FENCING + "test_one_that_goes_on_learns_that_another_has_begun_under_its_name",),
        "A session that continues does not learn that another began under its name.",
    ),
    Mutation(
        "dedup-grant-forgotten",
        _DEDUP,
        "            if epoch >= found.epoch:\n                found.epoch, found.line,",
        "            if epoch >= found.epoch + 1000:\n                found.epoch, found.line,",
        (_DURABLE_MOVES + "test_a_grant_outlives_the_owner_and_fences_the_ring_that_was_before",),
        "A granted epoch is forgotten with the owner that granted it.",
    ),
    Mutation(
        "dedup-snapshot-unchecked",
        _DEDUP,
        "    return list(_ENTRY.iter_unpack(body)) if crc == checksum(body) else None",
        "    return list(_ENTRY.iter_unpack(body))",
        (_DAMAGE + "test_bits_that_turn_are_found_and_never_served",),
        "A damaged snapshot of producers is believed.",
    ),
    Mutation(
        "grant-by-a-dead-engine",
        "engine/tidecast/node/durable/session_order.py",
        "        return heard_s >= self._fenced_s.get((claim.topic, claim.producer), -1.0)",
        "        return heard_s >= 0.0",
        (_SWARM + "test_what_an_engine_asked_before_it_died_does_not_fence_its_publisher",),
        "A session that a dead engine asked for fences its publisher's next one.",
    ),
)
