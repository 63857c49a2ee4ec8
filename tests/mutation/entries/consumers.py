"""Consuming from queues: cursors, windows, acks, credit, order of a key, dead letters."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_CYCLE = "engine/tidecast/agents/puller/cycle.py"
_DELIVERY = "engine/tidecast/agents/puller/delivery.py"
_ENTRIES = "engine/tidecast/agents/puller/entries.py"
_WINDOW = "engine/tidecast/queues/cache/window.py"
_CURSOR = "engine/tidecast/queues/cache/cursors.py"
_TESTS = "tests/unit/test_puller.py::"
_ORDER = "tests/unit/test_puller_order.py::"
_CONSUMING = "tests/unit/test_acceptance_consuming.py::"
_POSITIONS = "tests/simulation/test_durable_positions.py::"
_SCHEDULED = "tests/unit/test_scheduled.py::"
_LEASES = "tests/simulation/test_durable_leases.py::"
_ELSEWHERE = "tests/simulation/test_letters_elsewhere.py::"
_KILLED = "tests/system/test_engine_killed.py::"
_CANCELLING = "engine/tidecast/agents/puller/cancelling.py"
_CANCEL = "tests/unit/test_cancelling.py::"

MUTATIONS = (
    Mutation(
        "consume-ack-settles-one-more",
        _CYCLE,
        "        if load_i64(win, e + window.W_TOKEN) >= end:\n            break\n"
        "        state = window.state_of(win, e)",
        "        if load_i64(win, e + window.W_TOKEN) > end:\n            break\n"
        "        state = window.state_of(win, e)",
        (_TESTS + "test_an_ack_settles_what_it_names_and_no_more",),
        "An ack completes one record more than it names.",
    ),
    Mutation(
        "consume-refuses-anothers",
        _CYCLE,
        "        if window.state_of(win, e) != window.OUT or load_u16(win, e + window.W_MEMBER) "
        "!= member:\n            m.late += 1",
        "        if window.state_of(win, e) != window.OUT:\n            m.late += 1",
        (_TESTS + "test_a_member_refuses_no_record_of_another",),
        "A member refuses records that lie with another one.",
    ),
    Mutation(
        "consume-stale-ack-applied",
        _CYCLE,
        "S.cursors[cursor].generation == word >> 32 and S.cursors[cursor].sub == m.sub",
        "S.cursors[cursor].sub == m.sub",
        (_TESTS + "test_seek_back_and_forth_and_stale_acks_are_ignored",),
        "An ack from before a seek completes records behind it.",
    ),
    Mutation(
        "consume-untaken-is-attempt",
        _CYCLE,
        "            store_u8(win, e + window.W_ATTEMPTS, "
        "max(0, load_u8(win, e + window.W_ATTEMPTS) - 1))\n",
        "",
        (_TESTS + "test_a_stuck_member_that_takes_nothing_times_out_without_spending_attempts",),
        "A record that its member never took costs an attempt when it times out.",
    ),
    Mutation(
        "consume-key-order-ignored",
        _DELIVERY,
        "    if keyed and (C.again_n > C.scheduled or C.counting > 0) and "
        "window.key_is_held(C, key_hash):",
        "    if keyed and C.again_n < 0 and window.key_is_held(C, key_hash):",
        (_TESTS + "test_a_naked_key_holds_back_its_later_records_and_no_others",),
        "New records of a key overtake those that are to be delivered again.",
    ),
    Mutation(
        "consume-recall-ignored",
        _DELIVERY,
        "        if keyed and (window.key_is_recalled(C, key_hash) or _met(S, key_hash)):",
        "        if keyed and _met(S, key_hash):",
        (_ORDER + "test_a_newer_record_waits_for_all_that_comes_back",),
        "A record is delivered again while its member still holds earlier ones of its key.",
    ),
    Mutation(
        "consume-key-count-stays",
        _WINDOW,
        "    if field == _OUT and count + change == RECALLED:",
        "    if field == _OUT and count + change == RECALLED + 1:",
        ("tests/unit/test_puller_order.py",),
        "A recalled key is never released, or too early.",
    ),
    Mutation(
        "consume-one-delivery-more",
        _DELIVERY,
        "    if C.deliveries_max > 0 and attempts >= C.deliveries_max:",
        "    if C.deliveries_max > 0 and attempts > C.deliveries_max:",
        (
            _TESTS + "test_the_last_delivery_is_the_one_that_was_promised",
            _TESTS + "test_too_many_attempts_end_in_the_dead_letter_topic_one_poison_of_100",
        ),
        "A record becomes a dead letter one delivery later than configured.",
    ),
    Mutation(
        "consume-credit-unlimited",
        _DELIVERY,
        "    left = m.in_flight_max - m.in_flight\n",
        "    left = m.in_flight_max\n",
        (_TESTS + "test_in_flight_stays_below_its_limits_with_hysteresis",),
        "A member gets more records than its credit.",
    ),
    Mutation(
        "consume-byte-credit-ignored",
        _DELIVERY,
        "        if p - start + size > allowed and (n > 0 or m.in_flight > 0):",
        "        if p - start + size > allowed and m.in_flight < 0:",
        (_TESTS + "test_bytes_in_flight_are_bounded_but_one_record_always_passes",),
        "A member gets more bytes than its credit.",
    ),
    Mutation(
        "consume-position-ahead",
        _WINDOW,
        "    if C.w_first < C.w_next:\n        return load_i64(",
        "    if C.w_first + 1 < C.w_next:\n        return load_i64(",
        (_TESTS + "test_an_ack_settles_what_it_names_and_no_more",),
        "The saved position is past a record that is not acknowledged.",
    ),
    Mutation(
        "consume-restored-forgotten",
        _DELIVERY,
        "            return load_i64(rows, at + 16) if load_i64(rows, at) <= token else 0",
        "            return 0",
        (_TESTS + "test_a_saved_position_is_taken_up_settled_ranges_and_attempts_included",),
        "Acknowledged ranges and attempts of a saved position are forgotten.",
    ),
    Mutation(
        "consume-pause-ignored",
        _CYCLE,
        "    if C.paused != 0:\n        C.reason = cursors.PAUSED",
        "    if C.paused > 9:\n        C.reason = cursors.PAUSED",
        (_TESTS + "test_pause_keeps_what_was_fetched",),
        "A paused subscription gets records.",
    ),
    Mutation(
        "consume-gap-in-silence",
        _ENTRIES,
        "        if token <= C.next and C.next < first:\n            out[n, 0]",
        "        if token < C.next and C.next < first:\n            out[n, 0]",
        (_TESTS + "test_what_retention_took_is_a_gap_and_said",),
        "A cursor at the first deleted record does not move on.",
    ),
    Mutation(
        "consume-share-moves-early",
        _ENTRIES,
        "        if old != new and alive:",
        "        if old != new and not alive and alive:",
        (_TESTS + "test_members_share_a_queue_by_key_and_a_share_moves_when_it_is_settled",),
        "Keys move to another member while records of them are outstanding.",
    ),
    Mutation(
        "consume-dead-settled-by-anyone",
        _ENTRIES,
        "    if load_i64(win, e + window.W_TOKEN) != token or window.state_of(win, e) != "
        "window.DEAD:",
        "    if load_i64(win, e + window.W_TOKEN) < token:",
        (_TESTS + "test_term_is_dead_at_once_with_its_reason_and_is_announced_until_settled",),
        "Any record of the window is completed as if it lay in the dead-letter topic.",
    ),
    Mutation(
        "consume-leaver-spends-attempts",
        _ENTRIES,
        "            if untaken:\n                attempts",
        "            if untaken and n < 0:\n                attempts",
        (_TESTS + "test_a_member_that_dies_leaves_its_records_to_others_in_key_order",),
        "A member that leaves costs attempts of records that it never took.",
    ),
    Mutation(
        "consume-seek-leaves-ring",
        _ENTRIES,
        "        take_back(bytes_at(m.ring_address, m.ring_bytes), m, S.bells, cursor)\n",
        "",
        (_TESTS + "test_a_seek_takes_back_what_lies_in_the_rings_of_all_members",),
        "After a seek a member still gets records from before it.",
    ),
    Mutation(
        "consume-never-woken",
        _CURSOR,
        "    return wake_chain(S, FOR_QUEUE, DATA_CHAINS + q)",
        "    return 0",
        (
            _TESTS + "test_a3_an_empty_queue_is_no_error_and_asks_for_nothing_more",
            _CONSUMING + "test_a7_an_idle_cursor_gets_the_new_record_after_its_blocks_are_gone",
        ),
        "A subscription that has caught up does not notice new records.",
    ),
    Mutation(
        "consume-fetch-twice",
        "engine/tidecast/agents/puller/fetch.py",
        "    S.queues[q].fetching = 1\n",
        "",
        (_CONSUMING + "test_f1_one_fetch_at_a_time_and_none_for_what_is_buffered",),
        "A queue is fetched again while a fetch of it runs.",
    ),
    Mutation(
        "consume-wanted-while-fetched",
        _CURSOR,
        "    if Q.fetching == 0:\n        S.wanting",
        "    if Q.fetching >= 0:\n        S.wanting",
        (_CONSUMING + "test_f1_one_fetch_at_a_time_and_none_for_what_is_buffered",),
        "A queue is marked as wanted while a fetch of it runs.",
        equivalent="`_fetches` of the cycle looks at `fetching` as well: the mark costs one look.",
    ),
    Mutation(
        "consume-damage-read-again",
        "engine/tidecast/agents/puller/runtime.py",
        "        if self.damage is None or self.damage.may_be_gone():",
        "        if self.damage is None or self.due_ns > 0:",
        ("tests/unit/test_puller.py::test_what_cannot_be_read_holds_up_nobody_who_is_elsewhere",),
        "A damaged batch is read once a second although its file is as it was.",
    ),
    Mutation(
        "consume-letter-stored-twice",
        "engine/tidecast/node/consumers/dead_letters.py",
        "                    if not self._is_stored(*one):\n                        self._store(",
        "                    if one:\n                        self._store(",
        (
            _POSITIONS
            + "test_a_crash_between_a_letter_and_the_saved_position_stores_no_second_letter",
        ),
        "A crash between a dead letter and the saved position stores the letter twice.",
    ),
    Mutation(
        "consume-letter-of-before-a-seek",
        "engine/tidecast/node/consumers/dead_letters.py",
        "        self._before(subscription).clear()",
        "        self._before(subscription)",
        (_POSITIONS + "test_a_record_that_is_given_up_again_after_a_seek_has_another_letter",),
        "A record that is given up again after a seek has no letter.",
    ),
    Mutation(
        "consume-time-ignored",
        _DELIVERY,
        "    return 0 if left <= 0 else now + min(left, SCHEDULE_LOOK_NS)",
        "    return 0 if left <= 10**18 else now + min(left, SCHEDULE_LOOK_NS)",
        (
            _SCHEDULED + "test_a_record_is_delivered_at_its_time_and_not_before",
            _LEASES + "test_the_next_keeper_delivers_scheduled_records_at_their_time",
            _KILLED + "test_a_record_waits_for_its_time_although_its_engine_was_killed",
            "tests/system/test_shell.py::test_messages_are_delivered_at_a_time",
        ),
        "A record with a delivery time is delivered at once.",
    ),
    Mutation(
        "consume-time-holds-its-key",
        _WINDOW,
        "    later = KEY_LATER if keyed else 0\n    push(",
        "    later = KEYED if keyed else 0\n    push(",
        (_SCHEDULED + "test_a_key_waits_for_a_record_that_is_due_and_has_to_be_read_first",),
        "A record that is due breaks the order of its key.",
    ),
    Mutation(
        "consume-clock-is-not-looked-at",
        _DELIVERY,
        "now + min(left, SCHEDULE_LOOK_NS)",
        "now + left",
        (_SCHEDULED + "test_a_clock_that_is_set_back_delays_it_and_one_set_ahead_hastens_it",),
        "A clock that is set does not move deliveries.",
    ),
    Mutation(
        "consume-window-is-not-packed",
        _DELIVERY,
        "    if settled >= enough and window.pack(",
        "    if settled > size and window.pack(",
        (
            _SCHEDULED + "test_many_records_pass_one_that_waits",
            _SCHEDULED + "test_others_pass_a_window_that_is_nearly_full_of_records_that_wait",
        ),
        "A record that waits stops its queue once a window of others has passed it.",
    ),
    Mutation(
        "consume-looks-at-all-each-time",
        _CYCLE,
        "            S.misc[P_TIMER_NS] += (C.w_next - C.w_first) * TIMER_ENTRY_NS\n",
        "            S.misc[P_TIMER_NS] += (C.w_next - C.w_first) // TIMER_ENTRY_NS\n",
        (_SCHEDULED + "test_many_times_cost_few_looks_and_are_met_within_milliseconds",),
        "A puller with many waiting records does nothing but look at them.",
    ),
    Mutation(
        "consume-gone-before-its-time-unreported",
        _ENTRIES,
        "            out[n, 0], out[n, 1], out[n, 2] = cursor, lost, lost + 1\n            n += 1",
        "            out[n, 0], out[n, 1], out[n, 2] = cursor, lost, lost + 1",
        (_SCHEDULED + "test_records_that_are_gone_before_their_time_are_reported",),
        "Records that retention deletes before their time are completed without an event.",
    ),
    Mutation(
        "consume-passed-are-forgotten",
        "engine/tidecast/node/consumers/checks.py",
        "    here = _between(state.mark, held, state.next_token)",
        "    here = _between(state.mark, held, state.mark)",
        (
            _POSITIONS
            + "test_what_was_acked_before_an_earlier_crash_does_not_come_after_a_later_one",
        ),
        "Records acked behind one that waits come again after a crash.",
    ),
    Mutation(
        "consume-time-stays-a-header",
        "engine/tidecast/client/columns/received.py",
        "        if n_bytes := int(kernels.locate_times(self.headers, self.due)):",
        "        if (n_bytes := int(kernels.locate_times(self.headers, self.due))) < 0:",
        (_SCHEDULED + "test_record_batches_carry_delivery_times_in_a_column",),
        "A record batch with delivery times cannot be published again.",
    ),
    Mutation(
        "consume-letter-keeps-its-time",
        "engine/tidecast/node/consumers/dead_letters.py",
        "OURS = (FOR_HEADER, REDRIVEN_HEADER, DELIVER_AT)",
        "OURS = (FOR_HEADER, REDRIVEN_HEADER)",
        (_SCHEDULED + "test_a_dead_letter_keeps_no_delivery_time",),
        "A dead letter with a delivery time cannot be sent to a topic again.",
    ),
    Mutation(
        "gateway-any-delivery-time",
        "engine/tidecast/gateway/requests.py",
        "        if DELIVER_AT in names:",
        "        if DELIVER_AT in names and i < 0:",
        (_SCHEDULED + "test_a_gateway_refuses_times_that_no_client_writes",),
        "A remote client schedules records for any time.",
    ),
    Mutation(
        "consume-deleted-comes-with-queues",
        "engine/tidecast/node/consumers/storage.py",
        "        if state.deleted.is_over(saved):\n            here.store.remove",
        "        if saved.generation < 0:\n            here.store.remove",
        (
            _LEASES
            + "test_a_subscription_does_not_come_back_with_queues_of_an_engine_that_was_down",
        ),
        "A subscription that was deleted comes back with queues that an engine left.",
    ),
    Mutation(
        "consume-deleted-elsewhere-stays",
        "engine/tidecast/node/consumers/service.py",
        "                if self.state.deleted.is_over(subscription.saved):\n"
        "                    self._forget(subscription)",
        "                if subscription.saved.generation < 0:\n"
        "                    self._forget(subscription)",
        (_LEASES + "test_a_subscription_to_a_pattern_is_deleted_at_all_engines",),
        "An engine serves a subscription that another engine has deleted.",
    ),
    Mutation(
        "consume-new-one-is-deleted",
        "engine/tidecast/node/consumers/storage.py",
        "        generation=state.deleted.generation(pattern, name),",
        "        generation=0,",
        (
            _LEASES
            + "test_a_subscription_does_not_come_back_with_queues_of_an_engine_that_was_down",
        ),
        "A subscription that has the name of a deleted one ends like that one.",
    ),
    Mutation(
        "consume-letters-of-others-unmarked",
        "engine/tidecast/node/live/setup.py",
        "        wire.AREA_ENGINE in fields,",
        "        False,",
        (_ELSEWHERE + "test_the_keeper_marks_the_letters_of_another_engine",),
        "The owner of a topic ignores that an engine itself publishes.",
    ),
    Mutation(
        "consume-letters-not-numbered-first",
        "engine/tidecast/node/consumers/letters/numbered.py",
        "            if numbers.next_seq != before:\n",
        "            if numbers.next_seq < before:\n",
        (
            _ELSEWHERE + "test_a_crash_before_the_positions_are_saved_stores_no_letter_twice",
            _ELSEWHERE + "test_crashes_at_any_time_lose_and_double_no_letter",
        ),
        "A letter is published before its number is saved.",
    ),
    Mutation(
        "consume-letters-begin-behind",
        "engine/tidecast/node/consumers/letters/numbered.py",
        "            return self._open(one, one.numbers.durable_seq + 1, 0)",
        "            return self._open(one, one.numbers.next_seq, 0)",
        (
            _ELSEWHERE + "test_crashes_at_any_time_lose_and_double_no_letter",
            _ELSEWHERE + "test_letters_are_stored_once_and_forgotten",
        ),
        "Letters that were not durable when an engine crashed are not sent again.",
    ),
    Mutation(
        "consume-failed-save-forgotten",
        "engine/tidecast/node/consumers/service.py",
        "                note_unsaved(self.puller, subscription.cursors.values())",
        "                note_unsaved(self.puller, ())",
        (_POSITIONS + "test_a_position_whose_save_failed_is_saved_though_nothing_changes",),
        "A position that the disk refused is saved only when the cursor changes again.",
    ),
    Mutation(
        "consume-failed-save-reported-each-time",
        "engine/tidecast/node/consumers/service.py",
        "            if self._unsaved.get(key) != detail:",
        "            if detail:",
        (_POSITIONS + "test_a_position_whose_save_failed_is_saved_though_nothing_changes",),
        "A disk that stays full is reported ten times a second for each subscription.",
    ),
    Mutation(
        "cancel-too-late-is-cancelled",
        _CANCELLING,
        "    if not scheduled or load_i64(win, e + window.W_DEADLINE) <= wall_ns:",
        "    if not scheduled or load_i64(win, e + window.W_DEADLINE) < 0:",
        (_CANCEL + "test_what_is_due_or_delivered_is_too_late",),
        "A record is cancelled whose delivery time has come.",
    ),
    Mutation(
        "cancel-delivered-is-cancelled",
        _CANCELLING,
        "    if not scheduled or load_i64(win, e + window.W_DEADLINE) <= wall_ns:",
        "    if scheduled and load_i64(win, e + window.W_DEADLINE) <= wall_ns:",
        (_CANCEL + "test_what_is_due_or_delivered_is_too_late",),
        "A record is cancelled that a member has.",
    ),
    Mutation(
        "cancel-ahead-too-late-is-cancelled",
        _CANCELLING,
        "    return CANCELLED if due_ns > wall_ns else TOO_LATE",
        "    return CANCELLED if due_ns > 0 else TOO_LATE",
        (_CANCEL + "test_records_that_the_cursor_has_yet_to_come_to",),
        "A record that its cursor has yet to come to is cancelled although it is due.",
    ),
    Mutation(
        "cancel-answers-before-the-save",
        "engine/tidecast/node/scheduling/scheduled.py",
        "            subs.save_now(subscription)",
        "            pass",
        (
            _CANCEL + "test_positions_that_cannot_be_saved_are_an_error",
            _KILLED + "test_a_cancelled_record_is_never_delivered_although_its_engine_was_killed",
        ),
        "An engine that is killed behind the answer delivers what it has cancelled.",
    ),
    Mutation(
        "cancel-merge-loses-saved-rows",
        _CANCELLING,
        "    every = np.concatenate([rows, fresh])",
        "    every = np.concatenate([rows[:0], fresh])",
        (_CANCEL + "test_records_that_the_cursor_has_yet_to_come_to",),
        "A second call delivers what the first had cancelled.",
    ),
    Mutation(
        "cancel-merge-unsorted",
        _CANCELLING,
        'every[np.argsort(every[:, 0], kind="stable")].tolist()',
        "every.tolist()",
        (_CANCEL + "test_a_record_that_was_tried_before_is_not_merged_into_what_is_cancelled",),
        "Rows of a saved position are out of order, and the cursor overlooks some.",
    ),
    Mutation(
        "cancel-merge-spends-attempts",
        _CANCELLING,
        "found[-1][2] == attempts == -1:",
        "found[-1][2] == -1:",
        (_CANCEL + "test_a_record_that_was_tried_before_is_not_merged_into_what_is_cancelled",),
        "A record that was tried before is cancelled with its neighbour.",
    ),
    Mutation(
        "cancel-merge-keeps-neighbours-apart",
        _CANCELLING,
        "        if found and found[-1][1] == first and",
        "        if found and found[-1][1] < 0 and",
        (_CANCEL + "test_records_that_the_cursor_has_yet_to_come_to",),
        "Each cancelled record keeps a row of its own, and the rows run out.",
    ),
)
