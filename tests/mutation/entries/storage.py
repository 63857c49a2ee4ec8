"""Files of queues: writes, syncs, recovery, retention, grants."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_POWER = "tests/unit/test_queue_power.py::"
_LOG = "tests/unit/test_queue_log.py::"
_DURABLE_PUBLISH = "tests/simulation/test_durable_publish.py::"
_DAMAGE = "tests/unit/test_damage.py::"

MUTATIONS = (
    Mutation(
        "storage-sync-never",
        "engine/tidecast/native/files.py",
        "    if _call_sync(disk[F_SYNC], types.int32(fd)) < 0:",
        "    if disk[F_SYNC] == 0:",
        (_POWER + "test_what_was_synced_outlives_the_power",),
        "A sync of a segment succeeds without the system call.",
    ),
    Mutation(
        "storage-short-write",
        "engine/tidecast/native/files.py",
        "        if done >= n:\n            return 0",
        "        if done > 0:\n            return 0",
        (_LOG + "test_a_full_disk_corrupts_nothing_and_appending_goes_on",),
        "A write of which the disk took a part counts as whole.",
    ),
    Mutation(
        "storage-durable-beyond-sync",
        "engine/tidecast/log/append.py",
        "    store_release(words_of(L), L_DURABLE_TOKEN * 8, token)",
        "    store_release(words_of(L), L_DURABLE_TOKEN * 8, L.w[L_NEXT_TOKEN])",
        (_POWER + "test_a_sync_covers_what_was_there_when_it_began",),
        "Records that were appended while a sync ran count as durable.",
    ),
    Mutation(
        "storage-append-after-failure",
        "engine/tidecast/log/append.py",
        "        status = _index_run(L, buffer, at, end)\n    if status < 0:",
        "        status = _index_run(L, buffer, at, end)\n    if status < -200:",
        (_LOG + "test_a_full_disk_corrupts_nothing_and_appending_goes_on",),
        "The log moves on over a write that failed.",
    ),
    Mutation(
        "storage-directory-unsynced",
        "engine/tidecast/disk.py",
        "    try:\n        os.fsync(fd)\n    finally:",
        "    try:\n        os.fstat(fd)\n    finally:",
        (
            _POWER + "test_a_new_log_outlives_the_power_from_its_first_sync_on",
            _POWER + "test_a_file_that_is_replaced_and_a_directory_outlive_the_power",
        ),
        "Names made, replaced or removed in a directory are never synced.",
    ),
    Mutation(
        "storage-atomic-write-unsynced",
        "engine/tidecast/disk.py",
        "            os.fsync(file.fileno())",
        "            os.fstat(file.fileno())",
        (_POWER + "test_a_file_that_is_replaced_and_a_directory_outlive_the_power",),
        "A file that replaces another one has a name on the device, but no content.",
    ),
    Mutation(
        "storage-torn-tail-kept",
        "engine/tidecast/log/recovery.py",
        "        os.truncate(path, scanner.position)\n",
        "",
        (_POWER + "test_a_tail_is_cut_off_and_what_lay_in_it_never_comes_back",),
        "A torn tail is copied aside, but stays behind the end of the log.",
    ),
    Mutation(
        "storage-unacked-damage-passed",
        "engine/tidecast/log/recovery.py",
        "                    if not acked.covers(at, token):",
        "                    if acked is None:",
        (_LOG + "test_what_no_ack_covers_is_cut_off_from_the_first_damage_on",),
        "Recovery keeps batches behind damage that no ack covers.",
    ),
    Mutation(
        "storage-acked-damage-cut",
        "engine/tidecast/log/recovery.py",
        "                    if not acked.covers(at, token):",
        "                    if acked is not None:",
        (_LOG + "test_rot_amid_what_was_acked_cuts_nothing_off",),
        "One rotten batch cuts off acked batches behind it.",
    ),
    Mutation(
        "storage-index-size-unchecked",
        "engine/tidecast/log/recovery.py",
        "last_entry[0, :2].tolist() == [following, size]:",
        "last_entry[0, 0] <= following:",
        (_LOG + "test_an_index_is_made_anew_from_its_log",),
        "Recovery trusts the index of a sealed segment that was not completed.",
    ),
    Mutation(
        "storage-retention-deletes-held",
        "engine/tidecast/log/queue_log.py",
        "            if hold_token is not None and following.base_token > hold_token:",
        "            if hold_token is not None and one.base_token > hold_token:",
        (
            _LOG + "test_retention_by_age_and_never_past_what_is_held",
            _DURABLE_PUBLISH + "test_retention_deletes_and_never_what_a_subscription_needs",
        ),
        "Retention deletes a segment that a subscription still needs.",
    ),
    Mutation(
        "storage-retention-unsynced",
        "engine/tidecast/log/queue_log.py",
        '            if self.fsync != "none":  # before the next',
        '            if self.fsync == "never":  # before the next',
        (_POWER + "test_retention_leaves_no_hole_between_segments",),
        "After a loss of power a segment in the middle may be gone while an older one is back.",
    ),
    Mutation(
        "storage-failed-sync-repeated",
        "engine/tidecast/log/queue_log.py",
        "                if self._suspect and self._w[log_state.L_FD] >= 0:",
        "                if self._suspect and self._w[log_state.L_FD] < 0:",
        (_POWER + "test_after_a_sync_that_failed_all_is_stored_again",),
        "After a sync that failed the same file is synced again, which stores nothing.",
    ),
    Mutation(
        "storage-roll-unsynced",
        "engine/tidecast/log/queue_log.py",
        "                    self._sync_segment()\n",
        "",
        (
            _POWER + "test_a_roll_whose_sync_fails_seals_nothing_that_is_not_stored",
            _POWER + "test_what_was_synced_outlives_the_power",
        ),
        "A full segment is sealed without a sync.",
    ),
    Mutation(
        "storage-start-unsynced",
        "engine/tidecast/log/queue_log.py",
        "        try:  # what was found there may not have reached the device\n"
        "            os.fdatasync(int(w[log_state.L_FD]))\n",
        "        try:\n            pass\n",
        (
            _POWER + "test_a_start_whose_sync_fails_stores_all_again",
            _POWER + "test_the_next_engine_stores_what_the_one_before_could_not",
        ),
        "An engine that starts takes what it finds for durable without a sync.",
    ),
    Mutation(
        "storage-doubt-forgotten",
        "engine/tidecast/log/recovery.py",
        "        if suspect.exists():",
        "        if suspect.exists() and bases:",
        (_POWER + "test_the_next_engine_stores_what_the_one_before_could_not",),
        "The next engine trusts a segment of which a sync failed.",
    ),
    Mutation(
        "storage-time-exclusive",
        "engine/tidecast/log/queue_log.py",
        "            if one.time_max >= time_ns:",
        "            if one.time_max > time_ns:",
        (_LOG + "test_a_time_is_found",),
        "A start at a time skips the segment whose latest record has just that time.",
    ),
    Mutation(
        "storage-crc-ignored",
        "engine/tidecast/log/files.py",
        "        if crc != checksum(entry):\n            break",
        "        if crc == 0:\n            break",
        (_LOG + "test_entries_behind_a_damaged_one_are_not_used",),
        "Damaged index entries are believed.",
    ),
    Mutation(
        "storage-json-unchecked",
        "engine/tidecast/log/files.py",
        "    if checksum(content) != int(sealed[2]):",
        "    if not content:",
        (_DAMAGE + "test_a_sealed_object_is_opened_and_a_turned_bit_is_found",),
        "A turned bit in a subscription's file goes unnoticed.",
    ),
    Mutation(
        "storage-grant-unsynced",
        "engine/tidecast/log/grants.py",
        "            os.fsync(fd)\n            self._suspect = False",
        "            self._suspect = False",
        (_POWER + "test_a_grant_outlives_the_power",),
        "An epoch is granted before it is on the device.",
    ),
    Mutation(
        "storage-grant-torn-believed",
        "engine/tidecast/log/grants.py",
        "    return len(record) == _RECORD_BYTES and _CRC.unpack(crc)[0] == checksum(grant)",
        "    return len(record) == _RECORD_BYTES",
        ("tests/unit/test_grants.py",),
        "A damaged grant is believed.",
    ),
    Mutation(
        "storage-unacked-producer-zero",
        "engine/tidecast/log/damage.py",
        "        if position < self.end:",
        "        if position <= 0:",
        (_LOG + "test_rot_amid_what_was_acked_cuts_nothing_off",),
        "Damage before an acked batch counts as never acked.",
    ),
)
