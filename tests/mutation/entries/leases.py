"""The ownership of a topic's queues: leases, epochs, taking over."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_STORE = "engine/tidecast/queues/leases/store.py"
_KEEPER = "engine/tidecast/queues/leases/keeper.py"
_TAKEOVER = "engine/tidecast/log/takeover.py"
_CONTROL = "backend/tidecast_control/leases/service.py"
_LEASES = "tests/simulation/test_leases.py::"
_OWNERS = "tests/simulation/test_durable_owners.py::"
_KEEPERS = "tests/simulation/test_durable_leases.py::"
_QUEUE_POWER = "tests/unit/test_queue_power.py::"
_SERVICE = "tests/control/test_leases.py::"

MUTATIONS = (
    Mutation(
        "lease-trusted-beyond-end",
        _KEEPER,
        "        owned = entry.at in _OWNED and now_ns < entry.until_ns",
        "        owned = entry.at in _OWNED",
        (
            _LEASES + "test_a_partitioned_owner_stops_before_its_lease_ends",
            _LEASES + "test_chaos_never_has_two_owners_and_heals",
        ),
        "An owner appends after its lease has ended.",
    ),
    Mutation(
        "lease-given-up-before-it-asks",
        _KEEPER,
        "            if entry.at is State.HELD and now_ns >= entry.until_ns:\n                head",
        "            if False:\n                head",
        (_KEEPERS + "test_an_owner_that_sleeps_while_the_store_is_away_goes_on",),
        "A topic has no owner until the store is back.",
    ),
    Mutation(
        "lease-counted-from-answer",
        _KEEPER,
        "            entry.until_ns = sent_ns + self.terms.own_ns",
        "            entry.until_ns = entry.asked_ns + self.terms.lease_ns * 2",
        (
            _LEASES + "test_a_partitioned_owner_stops_before_its_lease_ends",
            _LEASES + "test_chaos_never_has_two_owners_and_heals",
        ),
        "An owner counts its lease longer than the store does.",
    ),
    Mutation(
        "lease-taken-while-held",
        _STORE,
        "                if not (free or mine) or max(lease.epoch, request.above) >= EPOCH_MAX:",
        "                if max(lease.epoch, request.above) >= EPOCH_MAX:",
        (
            _LEASES + "test_chaos_never_has_two_owners_and_heals",
            _KEEPERS + "test_leases_in_a_file_are_those_of_the_table_and_end_with_the_host",
        ),
        "A lease that another engine holds is granted.",
    ),
    Mutation(
        "lease-epoch-not-raised",
        _STORE,
        "                lease.epoch = max(lease.epoch, request.above) + 1",
        "                lease.epoch = max(lease.epoch, request.above, 1)",
        (_LEASES + "test_every_grant_raises_the_epoch_and_a_lost_store_goes_above_the_log",),
        "Two owners have the same epoch.",
    ),
    Mutation(
        "lease-late-answer-taken",
        _KEEPER,
        "        if entry.asked != request:\n            return",
        "        if entry.asked is None:\n            return",
        (_LEASES + "test_a_late_answer_to_an_older_request_counts_for_nothing",),
        "The answer to an older request counts for a newer one.",
    ),
    Mutation(
        "lease-ended-is-renewed",
        _STORE,
        "                if free or not mine or lease.epoch != request.epoch:",
        "                if not mine or lease.epoch != request.epoch:",
        (_LEASES + "test_an_ended_lease_is_not_renewed",),
        "A lease that ended is renewed although somebody else may have seen it free.",
    ),
    Mutation(
        "lease-released-before-flush",
        _KEEPER,
        "    (State.FLUSHING, Event.FLUSHED): (State.RELEASING, LeaseKeeper.ask),",
        "    (State.HELD, Event.FLUSHED): (State.RELEASING, LeaseKeeper.ask),",
        (
            _LEASES + "test_a_join_hands_over_the_least_and_flushes_first",
            _LEASES + "test_shutdown_flushes_and_releases_everything",
        ),
        "A lease that is handed over is never released.",
    ),
    Mutation(
        "takeover-stale-owner-unseen",
        _TAKEOVER,
        "        return max(self._epochs(), default=-1) == epoch",
        "        return epoch in self._epochs()",
        (
            _OWNERS + "test_one_that_slept_writes_no_position_over_that_of_the_next_owner",
            _OWNERS + "test_whoever_claims_late_changes_nothing",
        ),
        "An owner that slept does not notice that another took over.",
    ),
    Mutation(
        "takeover-equal-epoch-first-look",
        _TAKEOVER,
        "        if self.newest() >= epoch:",
        "        if self.newest() > epoch:",
        (_OWNERS + "test_whoever_claims_late_changes_nothing",),
        "A claim with the owner's own epoch passes the first look.",
        equivalent="`mkdir` of the epoch's directory, a few lines below, refuses it as well: "
        "the first look only saves that.",
    ),
    Mutation(
        "takeover-newest-linked",
        _TAKEOVER,
        "        elif head == newest:\n            _copy(path, mine)",
        "        elif head == newest:\n            _link(path, mine)",
        (
            _OWNERS + "test_what_is_handed_over_is_linked_and_not_copied",
            _OWNERS + "test_a_roll_of_one_that_slept_harms_nothing_of_the_next_owner",
        ),
        "Two owners append to the same file.",
    ),
    Mutation(
        "takeover-half-is-complete",
        _TAKEOVER,
        "            complete = epoch == 0 or (self.directory_of(epoch) / OWNER_NAME).exists()",
        "            complete = True",
        (_OWNERS + "test_whoever_claims_late_changes_nothing",),
        "The next owner inherits from a take-over that was not completed.",
    ),
    Mutation(
        "takeover-copy-unsynced",
        _TAKEOVER,
        "        made.flush()\n        os.fsync(made.fileno())",
        "        made.flush()",
        (_QUEUE_POWER + "test_what_the_next_owner_takes_over_outlives_the_power",),
        "A loss of power after a take-over loses acked records.",
    ),
    Mutation(
        "control-lease-never-ends",
        _CONTROL,
        "    free = not row.owner or now >= row.ends_at",
        "    free = not row.owner",
        (_SERVICE + "test_the_same_answers_as_the_table_in_memory",),
        "A lease of an engine that died is never free.",
    ),
    Mutation(
        "control-lease-unlocked",
        _CONTROL,
        "session.execute(query.with_for_update()).scalars()",
        "session.execute(query).scalars()",
        (_SERVICE + "test_a_free_lease_goes_to_one_of_two",),
        "Two engines that ask at once both get the lease.",
    ),
    Mutation(
        "control-lease-for-another",
        _CONTROL,
        "        if each.owner != node:",
        "        if not node:",
        (_SERVICE + "test_over_the_link",),
        "An engine asks for leases in the name of another.",
    ),
)
