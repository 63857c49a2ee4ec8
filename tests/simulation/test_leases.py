"""Leases in a simulated cluster: clocks of different speeds, pauses, partitions, lost and late
requests. Never do two owners append, and a hand-over loses nothing that was flushed."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from tests.support.state_tables import names_of, transitions_of

from tidecast.queues.leases.keeper import (
    GIVE_MAX,
    TRANSITIONS,
    Fence,
    Flush,
    LeaseKeeper,
    Start,
    Terms,
)
from tidecast.queues.leases.store import (
    EPOCH_MAX,
    Acquire,
    Granted,
    LeaseTable,
    Listing,
    ListLeases,
    Refused,
    Release,
    Released,
    Renew,
)

S = 1_000_000_000
TERMS = Terms()
EAGER = Terms(acquire_ns=S)
"""The others try to take a queue every second: one that ends late is caught."""
STEP_NS = S // 2


@dataclass
class Log:
    """A queue's log as far as leases need it: its owner, and the records with their writers."""

    epoch: int = 0
    owners: dict[int, str] = field(default_factory=dict)
    accepted: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0
    unflushed: int = 0

    def start(self, epoch: int, owner: str) -> bool:
        if epoch <= self.epoch:
            return False
        assert epoch not in self.owners, "one epoch, two owners"
        self.epoch, self.owners[epoch], self.unflushed = epoch, owner, 0
        return True

    def append(self, epoch: int, owner: str) -> bool:
        if epoch < self.epoch:
            self.refused += 1
            return False
        assert self.owners[epoch] == owner
        self.accepted.append((epoch, owner))
        self.unflushed += 1
        return True


@dataclass
class Member:
    keeper: LeaseKeeper
    speed: float
    paused_until: int = 0
    cut: bool = False
    flushing: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    looked: list[tuple[str, int]] = field(default_factory=list)

    def clock(self, now: int) -> int:
        return int(now * self.speed)


class Cluster:
    """Members, one store, logs on storage they share, and a network with faults."""

    def __init__(self, seed: int, members: int, queues: int, terms: Terms = TERMS) -> None:
        self.terms = terms
        self.chance = Random(seed)
        self.now = 1_000 * S
        self.store = LeaseTable()
        self.queues = [f"orders/{q}" for q in range(queues)]
        self.logs = {q: Log() for q in self.queues}
        self.members: dict[str, Member] = {}
        self.wire: list[tuple[int, int, Any]] = []
        self.sent = self.fences = self.starts = self.late_starts = 0
        self.loss = 0.0
        self.undrained: set[str] | None = None
        for i in range(members):
            self.join(f"n{i}")

    def join(self, name: str) -> None:
        speed = 1 + self.chance.uniform(-0.02, 0.02)
        keeper = LeaseKeeper(
            name, self.queues, self.terms, Random(self.chance.random()), int(self.now * speed)
        )
        self.members[name] = Member(keeper, speed)
        self.meet()

    def kill(self, name: str) -> None:
        del self.members[name]
        self.meet()

    def meet(self, without: str = "") -> None:
        """Tell all who is there. One that is not heard of does not hear either."""
        there = [name for name in self.members if name != without]
        shown = [name for name in there if self.undrained is None or name in self.undrained]
        for name in there:
            member = self.members[name]
            member.keeper.nodes(shown, member.clock(self.now))

    def send(self, name: str, what: Any) -> None:
        self.sent += 1
        for _ in range(2 if self.chance.random() < self.loss / 4 else 1):
            if self.chance.random() >= self.loss:
                late = self.chance.random() ** 4 * (20 * S if self.loss else S // 50)
                heapq.heappush(self.wire, (self.now + int(late), self.sent, (name, what)))

    def step(self) -> None:
        self.now += STEP_NS
        while self.wire and self.wire[0][0] <= self.now:
            _, _, (name, what) = heapq.heappop(self.wire)
            member = self.members.get(name)
            if isinstance(what, tuple):
                if member and not member.cut:
                    request, reply = what
                    member.keeper.reply(request, reply, member.clock(self.now))
            elif not (member and member.cut):
                self.send(name, (what, self.store.handle(what, self.now)))
        for name, member in list(self.members.items()):
            if self.now >= member.paused_until:
                self.act(name, member)

    def act(self, name: str, member: Member) -> None:
        # What it looked up before a pause is appended now, whatever has happened since.
        for queue, epoch in member.looked:
            self.logs[queue].append(epoch, name)
        member.looked = []
        requests, orders = member.keeper.poll(member.clock(self.now))
        for order in orders:
            self.obey(name, member, order)
        for request in requests:
            if not member.cut:
                self.send(name, request)
        for queue in [q for q, at in member.flushing.items() if self.now >= at]:
            del member.flushing[queue]
            member.running.pop(queue)
            self.logs[queue].unflushed = 0
            member.keeper.flushed(queue)
        for queue in list(member.running):
            epoch = member.keeper.epoch_to_append(queue, member.clock(self.now))
            if epoch and queue not in member.flushing:
                member.looked.append((queue, epoch))

    def obey(self, name: str, member: Member, order: Any) -> None:
        match order:
            case Start(queue, epoch):
                self.starts += 1
                # A grant is acted on late after a pause: then the log refuses it.
                if self.logs[queue].start(epoch, name):
                    member.running[queue] = epoch
                else:
                    self.late_starts += 1
                    member.keeper.fenced(queue, self.logs[queue].epoch)
            case Flush(queue, _):
                member.flushing[queue] = self.now + self.chance.randrange(10 * S)
            case Fence(queue, _, _):
                self.fences += 1
                member.running.pop(queue, None)
                member.flushing.pop(queue, None)

    def check(self) -> None:
        for queue in self.queues:
            sure = [
                name
                for name, m in self.members.items()
                if m.keeper.epoch_to_append(queue, m.clock(self.now))
            ]
            assert len(sure) <= 1, f"{queue}: {sure} may append at once"
            epochs = [epoch for epoch, _ in self.logs[queue].accepted]
            assert epochs == sorted(epochs)

    def run(self, seconds: int) -> None:
        for _ in range(seconds * S // STEP_NS):
            self.step()
            self.check_owners()
        self.check()

    def check_owners(self) -> None:
        held: set[str] = set()
        for member in self.members.values():
            clock = member.clock(self.now)
            mine = {q for q in self.queues if member.keeper.epoch_to_append(q, clock)}
            assert not held & mine, "two may append"
            held |= mine

    def counts(self) -> list[int]:
        return sorted(len(m.running) for m in self.members.values())


def drained(cluster: Cluster, *names: str) -> None:
    """These nodes are drained, as their listings show: others take all that they have."""
    for name, member in cluster.members.items():
        rest = set(cluster.members) - set(names)
        movable = cluster.queues if rest else []
        member.keeper.drain(movable if name in names else None, member.clock(cluster.now))
    cluster.undrained = set(cluster.members) - set(names) if names else None
    cluster.meet()


def even(cluster: Cluster) -> list[int]:
    share, extra = divmod(len(cluster.queues), len(cluster.members))
    return sorted([share + 1] * extra + [share] * (len(cluster.members) - extra))


def test_calm_start_is_even_and_stays() -> None:
    cluster = Cluster(1, members=3, queues=8)
    cluster.run(130)
    assert cluster.counts() == even(cluster)
    before = cluster.starts
    cluster.run(300)
    assert (cluster.starts, cluster.fences) == (before, 0), "nothing moves without a reason"


def test_a_join_hands_over_the_least_and_flushes_first() -> None:
    cluster = Cluster(2, members=2, queues=8)
    cluster.run(130)
    before = cluster.starts
    cluster.join("n9")
    cluster.run(130)
    assert cluster.counts() == even(cluster) == [2, 3, 3]
    assert cluster.starts - before == 2
    assert cluster.fences == 0, "flush -> release -> acquire; nobody was cut off"
    assert all(log.refused == 0 for log in cluster.logs.values())


def test_queues_of_a_killed_node_are_served_within_a_lease_and_a_look() -> None:
    cluster = Cluster(3, members=3, queues=9)
    cluster.run(130)
    cluster.kill("n1")
    cluster.run((TERMS.lease_ns + TERMS.acquire_ns) // S + 10)
    assert cluster.counts() == [4, 5]


def test_a_restarted_node_takes_its_queues_back_at_once() -> None:
    cluster = Cluster(4, members=1, queues=4)
    cluster.run(60)
    cluster.kill("n0")
    cluster.join("n0")
    cluster.run(3)
    assert cluster.counts() == [4]
    assert {log.epoch for log in cluster.logs.values()} == {2}


def test_a_pause_between_look_and_append_is_caught_by_the_log() -> None:
    cluster = Cluster(5, members=2, queues=4)
    cluster.run(130)
    slept = cluster.members["n0"]
    assert slept.looked
    slept.paused_until = cluster.now + 200 * S
    cluster.meet(without="n0")
    cluster.run(220)
    assert sum(log.refused for log in cluster.logs.values()) == 2, "the appends it had begun"
    assert cluster.fences == 2
    cluster.meet()
    cluster.run(130)
    assert cluster.counts() == [2, 2]


def test_a_partitioned_owner_stops_before_its_lease_ends() -> None:
    cluster = Cluster(6, members=2, queues=4, terms=EAGER)
    cluster.members["n0"].speed = 0.98  # its minute is longer than the store's
    cluster.run(130)
    lost = cluster.members["n0"]
    lost.cut = True
    cut_at = cluster.now
    cluster.meet(without="n0")
    while any(lost.keeper.epoch_to_append(q, lost.clock(cluster.now)) for q in cluster.queues):
        cluster.step()
        cluster.check_owners()
    assert cluster.now - cut_at < TERMS.lease_ns * 0.95
    cluster.run(130)
    assert cluster.counts() == [0, 4]
    lost.cut = False
    cluster.meet()
    cluster.run(200)
    assert cluster.counts() == [2, 2]


def test_shutdown_flushes_and_releases_everything() -> None:
    cluster = Cluster(7, members=2, queues=6)
    cluster.run(130)
    leaving = cluster.members["n0"]
    leaving.keeper.shutdown()
    cluster.run(30)
    assert leaving.keeper.idle
    assert cluster.fences == 0
    cluster.kill("n0")
    cluster.run(40)
    assert cluster.counts() == [6]


def test_a_drained_node_hands_over_in_waves_and_takes_nothing() -> None:
    cluster = Cluster(9, members=3, queues=120, terms=EAGER)
    cluster.run(130)
    assert cluster.counts() == [40, 40, 40]
    drained(cluster, "n0")
    most = 0
    for _ in range(240):
        cluster.step()
        cluster.check_owners()
        most = max(most, len(cluster.members["n0"].flushing))
    assert 0 < most <= GIVE_MAX, "the others are served meanwhile"
    assert cluster.counts() == [0, 60, 60]
    assert cluster.fences == 0
    assert all(log.refused == 0 for log in cluster.logs.values())
    drained(cluster)
    cluster.run(200)
    assert cluster.counts() == [40, 40, 40]


def test_a_node_that_no_other_follows_keeps_its_queues() -> None:
    cluster = Cluster(10, members=2, queues=6, terms=EAGER)
    cluster.run(130)
    drained(cluster, "n0", "n1")
    before = cluster.starts
    cluster.run(130)
    assert (cluster.counts(), cluster.starts) == ([3, 3], before)


@pytest.mark.parametrize("seed", range(20, 28))
def test_drains_under_kills_and_pauses_never_have_two_owners(seed: int) -> None:
    cluster = Cluster(seed, members=4, queues=40, terms=EAGER)
    cluster.run(130)
    cluster.loss = 0.2
    for i in range(8):
        drained(cluster, cluster.chance.choice(sorted(cluster.members)))
        hit = cluster.members[cluster.chance.choice(sorted(cluster.members))]
        hit.paused_until = cluster.now + cluster.chance.randrange(100 * S)
        if i % 3 == 1 and len(cluster.members) > 2:
            cluster.kill(cluster.chance.choice(sorted(cluster.members)))
        if i % 3 == 2:
            cluster.join(f"late{i}")
        cluster.run(30)
    cluster.loss = 0.0
    for member in cluster.members.values():
        member.paused_until = 0
    drained(cluster)
    cluster.run(400)
    assert cluster.counts() == even(cluster)


def test_one_lost_lease_of_a_batch_fences_its_queue_alone() -> None:
    keeper = LeaseKeeper("a", ["p", "q"], TERMS, Random(1), 0)
    ([listing], _) = keeper.poll(0)
    keeper.reply(listing, Listing({}), 0)
    for request in keeper.poll(0)[0]:
        keeper.reply(request, Granted(1), 0)
    keeper.poll(0)
    later = TERMS.renew_ns
    renewals = [each for each in keeper.poll(later)[0] if isinstance(each, Renew)]
    assert [each.queue for each in renewals] == ["p", "q"]
    keeper.reply(renewals[0], Refused("b", 2), later)
    keeper.reply(renewals[1], Granted(1), later)
    _, orders = keeper.poll(later)
    assert orders == [Fence("p", 1, "the store has another owner")]
    end = TERMS.own_ns
    assert keeper.epoch_to_append("p", later) == 0
    assert keeper.epoch_to_append("q", end) == 1, "its term counts from the renewal"
    assert keeper.epoch_to_append("q", later + end) == 0, "not renewed in time: not held"


def test_leases_that_were_granted_apart_are_renewed_together() -> None:
    keeper = LeaseKeeper("a", ["p"], TERMS, Random(1), 0)
    for queue, at in (("p", 0), ("q", TERMS.renew_ns // 2)):
        keeper.add(queue, at)
        for _ in range(2):
            for request in keeper.poll(at)[0]:
                granted = Listing({}) if isinstance(request, ListLeases) else Granted(1)
                keeper.reply(request, granted, at)
    asked = [r for r in keeper.poll(TERMS.renew_ns)[0] if isinstance(r, Renew)]
    assert [each.queue for each in asked] == ["p", "q"]


def test_growth_shares_the_new_queues() -> None:
    cluster = Cluster(8, members=2, queues=2)
    cluster.run(130)
    cluster.queues.append("orders/2")
    cluster.logs["orders/2"] = Log()
    for member in cluster.members.values():
        member.keeper.add("orders/2", member.clock(cluster.now))
    cluster.run(10)
    assert cluster.counts() == [1, 2]


@pytest.mark.parametrize("seed", range(12))
def test_chaos_never_has_two_owners_and_heals(seed: int) -> None:
    chaos(seed, rounds=12)


def test_chaos_makes_every_transition() -> None:
    with transitions_of(TRANSITIONS) as reached:
        for seed in range(12):
            chaos(seed, rounds=12)
            if reached == names_of(TRANSITIONS):
                break
    assert reached == names_of(TRANSITIONS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_long_chaos(seed: int) -> None:
    chaos(seed, rounds=60)


def chaos(seed: int, rounds: int) -> None:
    cluster = Cluster(seed, members=4, queues=10, terms=EAGER)
    cluster.loss = 0.3
    chance = cluster.chance
    for i in range(rounds):
        for name in list(cluster.members):
            member = cluster.members[name]
            member.cut = chance.random() < 0.2
            if chance.random() < 0.2:
                member.paused_until = cluster.now + chance.randrange(150 * S)
            if chance.random() < 0.1 and len(cluster.members) > 2:
                cluster.kill(name)
        if chance.random() < 0.3:
            cluster.join(f"late{i}")
        cluster.meet(without=chance.choice(["", *(n for n, m in cluster.members.items() if m.cut)]))
        cluster.run(20)
    cluster.meet()
    cluster.loss = 0.0
    for member in cluster.members.values():
        member.cut, member.paused_until = False, 0
    cluster.run(400)
    assert cluster.counts() == even(cluster), "it heals"
    before = cluster.starts
    cluster.run(120)
    assert cluster.starts == before, "and is at rest"


def test_a_late_answer_to_an_older_request_counts_for_nothing() -> None:
    """Its term began when that was sent, not when the newer one was."""
    keeper = LeaseKeeper("a", ["q"], TERMS, Random(1), 0)
    ([listing], _) = keeper.poll(0)
    keeper.reply(listing, Listing({}), 0)
    ([first], _) = keeper.poll(0)
    later = TERMS.request_ns
    second = next(one for one in keeper.poll(later)[0] if isinstance(one, Acquire))
    keeper.reply(first, Granted(1), later)
    assert keeper.epoch_to_append("q", later) == 0
    keeper.reply(second, Granted(2), later)
    assert keeper.epoch_to_append("q", later) == 2


# --- the store --------------------------------------------------------------------------------
def test_every_grant_raises_the_epoch_and_a_lost_store_goes_above_the_log() -> None:
    store = LeaseTable()
    assert store.handle(Acquire(1, "q", "a", 10), 0) == Granted(1)
    assert store.handle(Acquire(2, "q", "b", 10), 9) == Refused("a", 1)
    assert store.handle(Acquire(3, "q", "b", 10), 10) == Granted(2)
    assert store.handle(Acquire(4, "q", "b", 10), 11) == Granted(3), "even to the same"
    assert store.handle(Release(5, "q", "b", 2), 11) == Released(), "of an old epoch: no effect"
    assert store.handle(Renew(6, "q", "b", 10, 3), 12) == Granted(3)
    assert store.handle(Release(7, "q", "b", 3), 13) == Released()
    assert store.handle(Renew(8, "q", "b", 10, 3), 13) == Refused("", 3)
    assert LeaseTable().handle(Acquire(1, "q", "a", 10, above=77), 0) == Granted(78)


def test_an_ended_lease_is_not_renewed() -> None:
    store = LeaseTable()
    store.handle(Acquire(1, "q", "a", 10), 0)
    assert store.handle(Renew(2, "q", "a", 10, 1), 10) == Refused("", 1)


def test_epochs_end_where_the_log_cannot_keep_them() -> None:
    assert LeaseTable().handle(Acquire(1, "q", "a", 10, above=EPOCH_MAX), 0) == Refused("", 0)
