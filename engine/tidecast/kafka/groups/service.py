"""Consumer groups over the wire: requests to the coordinator, and offsets on disk.

A group's offsets lie in one file, with a checksum, rewritten at a commit and before its answer.
Commits that come while a file is written share the next write.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tidecast.access import printable
from tidecast.api.operations import EVERY_TOPIC
from tidecast.config.kafka import GROUPS_MAX, KafkaConfig
from tidecast.disk import sync_directory, write_atomically
from tidecast.errors import ConfigError
from tidecast.events import KafkaGroupExpired, KafkaOffsetsNotStored
from tidecast.kafka.codes import Code
from tidecast.kafka.fetch import Fetching
from tidecast.kafka.groups.coordinator import Coordinator, Group
from tidecast.kafka.serving import Endpoint, Request
from tidecast.kafka.wire import Struct
from tidecast.layout.counters import KafkaCounter
from tidecast.log.files import open_json, seal_json
from tidecast.node.access.rights import to_administer

OFFSETS_MAX = 10_000
"""Offsets of one group."""
METADATA_BYTES_MAX = 4096
ALL_BYTES_MAX, OFFSET_BYTES = 128 << 20, 256
"""Of all offsets of all groups in memory, texts included; and of an offset without its text."""
TICK_S, SWEEP_S = 0.05, 60.0
SEEN_S = 600.0
"""The file of a group with members reports them at least so often."""
NOT_STORED_S = 1.0
"""The same event is reported again only after this time."""
Place = tuple[str, int]
"""Topic and partition."""
GROUP_TYPE = "classic"
"""Groups of Kafka's protocol before KIP-848."""
_log = logging.getLogger("tidecast.kafka")


class Offset(msgspec.Struct, frozen=True, array_like=True):
    """A committed offset."""

    offset: Annotated[int, Meta(ge=0)]
    epoch: int = -1
    metadata: str = ""


class Stored(msgspec.Struct, kw_only=True):
    """The contents of a group's file.

    ``at``: seconds since 1970 of the last commit; ``seen``: when the group had members, at least.
    """

    group: str
    at: float
    seen: float = 0.0
    offsets: dict[str, dict[int, Offset]]


class Offsets:
    """Offsets of all groups. The loop's thread reads them, another thread writes them."""

    def __init__(
        self,
        directory: Path,
        groups_max: int = GROUPS_MAX,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._groups_max, self._wall_s = directory, groups_max, wall_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kafka-offsets")
        self.groups: dict[str, Stored] = {}
        self._bytes: dict[str, int] = {}
        """Of the offsets of each group."""
        self._staged: dict[str, dict[Place, Offset | None]] = {}
        """The offsets to be written; None: the offset is deleted. No offsets: `Stored.seen`."""
        self._flying: dict[str, dict[Place, Offset | None]] = {}
        """Those of the write under way."""
        self._seen: dict[str, float] = {}
        """When groups had members, at least; their files can be older."""
        self._written: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read all files; a damaged file is quarantined and logged. Raises ConfigError."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as problem:
            raise ConfigError(f"kafka: {self._directory}: {problem.strerror}") from problem
        for path in sorted(self._directory.glob("*.json")):
            try:
                found = msgspec.json.decode(open_json(path.read_bytes()), type=Stored)
            except (OSError, ValueError, ConfigError, msgspec.DecodeError) as problem:
                _log.error("kafka: %s: %s: it is set aside; its group starts empty", path, problem)
                with contextlib.suppress(OSError):
                    path.replace(path.with_suffix(".bad"))
                continue
            self.groups[found.group] = found
            self._bytes[found.group] = _bytes_of(found)
            self._seen[found.group] = found.seen

    def stop(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=True)

    def get(self, group: str, topic: str, partition: int) -> Offset | None:
        """A committed offset."""
        found = self.groups.get(group)
        return None if found is None else found.offsets.get(topic, {}).get(partition)

    def room(self, group: str, rows: dict[Place, Offset]) -> bool:
        """Whether a group may commit these offsets. Offsets committed before need no room."""
        found = self.groups.get(group)
        coming = (self._staged.keys() | self._flying.keys()) - self.groups.keys()
        if found is None and len(self.groups) + len(coming) >= self._groups_max:
            return False
        kept = {} if found is None else found.offsets
        fresh = n_bytes = 0
        for (topic, partition), offset in rows.items():
            before = kept.get(topic, {}).get(partition)
            fresh += before is None
            n_bytes += _weight(offset) - (0 if before is None else _weight(before))
        if n_bytes > 0 and sum(self._bytes.values()) + n_bytes > ALL_BYTES_MAX:
            return False
        return not fresh or sum(len(each) for each in kept.values()) + fresh <= OFFSETS_MAX

    async def commit(self, group: str, rows: dict[Place, Offset]) -> None:
        """Store offsets; they are on disk when this returns. Raises OSError."""
        self._staged.setdefault(group, {}).update(rows)
        await self._flushed()

    async def forget(self, group: str, places: Iterable[Place] | None = None) -> None:
        """Delete offsets of a group, all with None; on disk when this returns. Raises OSError."""
        places = self._places(group) if places is None else places
        self._staged.setdefault(group, {}).update(dict.fromkeys(places))
        await self._flushed()

    async def forget_topic(self, topic: str) -> None:
        """Delete the offsets of a topic in all groups, as `forget` does."""
        for group in self.groups.keys() | self._staged.keys() | self._flying.keys():
            places = [each for each in self._places(group) if each[0] == topic]
            if places:
                self._staged.setdefault(group, {}).update(dict.fromkeys(places))
        await self._flushed()

    def _places(self, group: str) -> list[Place]:
        """Places of which a group has offsets, or will have once they are written."""
        found = self.groups.get(group)
        rows = {} if found is None else found.offsets
        stored = [(topic, partition) for topic, each in rows.items() for partition in each]
        return [*stored, *self._flying.get(group, ()), *self._staged.get(group, ())]

    async def _flushed(self) -> None:
        """Wait until all staged offsets are on disk."""
        await asyncio.shield(self._begin_to_write())

    def _begin_to_write(self) -> asyncio.Future[None]:
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return self._written

    async def _write(self) -> None:
        while self._written is not None:
            self._flying, self._staged = self._staged, {}
            written, self._written = self._written, None
            fresh = [self._merged(group, rows) for group, rows in self._flying.items()]
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._pool, self._store, fresh)
            except Exception as problem:  # noqa: BLE001 - the waiting calls get it
                written.set_exception(problem)
                written.exception()  # perhaps no call waits any more
                continue
            finally:
                self._flying = {}
            for each in fresh:
                self.groups[each.group], self._bytes[each.group] = each, _bytes_of(each)
                if not each.offsets:
                    self._drop(each.group)
            written.set_result(None)

    def _merged(self, group: str, rows: dict[Place, Offset | None]) -> Stored:
        before = self.groups.get(group)
        at = self._wall_s() if before is None or rows else before.at
        offsets = {} if before is None else {t: dict(p) for t, p in before.offsets.items()}
        for (topic, partition), offset in rows.items():
            found = offsets.setdefault(topic, {})
            if offset is None:
                found.pop(partition, None)
            else:
                found[partition] = offset
            if not found:
                del offsets[topic]
        return Stored(group=group, at=at, seen=self._seen.get(group, 0.0), offsets=offsets)

    def _path(self, group: str) -> Path:
        digest = hashlib.blake2b(group.encode(), digest_size=16).hexdigest()
        return self._directory / f"{digest}.json"

    def _store(self, fresh: list[Stored]) -> None:
        for each in fresh:
            if each.offsets:
                write_atomically(self._path(each.group), seal_json(msgspec.json.encode(each)))
            else:
                self._path(each.group).unlink(missing_ok=True)
                sync_directory(self._directory)

    def sweep(self, alive: set[str], retention_s: float) -> dict[str, int]:
        """Delete groups without members and commits for long. Returns their numbers of offsets.

        In the loop. A group that is being written stays.
        """
        now_s = self._wall_s()
        self._note_seen(alive & self.groups.keys(), now_s, min(SEEN_S, retention_s / 2))
        kept = alive | self._staged.keys() | self._flying.keys()
        gone = {
            each.group: sum(len(rows) for rows in each.offsets.values())
            for each in self.groups.values()
            if each.group not in kept
            and now_s - max(each.at, self._seen.get(each.group, 0.0)) > retention_s
        }
        for group in gone:
            self._drop(group)
            with contextlib.suppress(OSError):
                self._path(group).unlink(missing_ok=True)
        return gone

    def _note_seen(self, alive: set[str], now_s: float, every_s: float) -> None:
        """These groups have members: their offsets are kept, also after a crash."""
        for group in alive:
            self._seen[group], stored = now_s, self.groups[group]
            if now_s - max(stored.at, stored.seen) >= every_s:
                self._staged.setdefault(group, {})
                self._begin_to_write()

    def _drop(self, group: str) -> None:
        del self.groups[group], self._bytes[group]
        self._seen.pop(group, None)


def _weight(offset: Offset) -> int:
    return OFFSET_BYTES + len(offset.metadata)


def _bytes_of(stored: Stored) -> int:
    return sum(_weight(each) for rows in stored.offsets.values() for each in rows.values())


class GroupService:
    """Answers the APIs of groups."""

    def __init__(
        self, endpoint: Endpoint, fetching: Fetching, directory: Path, config: KafkaConfig
    ) -> None:
        self._endpoint, self._fetching = endpoint, fetching
        self._retention_s = config.offsets_retention_s
        self.offsets = Offsets(directory, config.groups_max)
        self.coordinator = Coordinator(_new_id, endpoint.counters.count, config.groups_max)
        self._swept_s = 0.0
        self._busy = asyncio.Event()
        """Some group has members, or may have."""

    async def tick_for_ever(self) -> None:
        """Remove silent members, continue rebalances."""
        while True:
            if self.coordinator.groups:
                await asyncio.sleep(TICK_S)
            else:
                self._busy.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):
                        await self._busy.wait()
            try:
                self._tick(time.monotonic())
            except Exception:  # noqa: BLE001 - time-outs must not end with one defect
                self._endpoint.counters.count("faults")
                _log.exception("kafka: groups could not be looked after")

    def _tick(self, now_s: float) -> None:
        self.coordinator.tick(now_s)
        groups = self.coordinator.groups.values()
        self._endpoint.counters.gauge(KafkaCounter.GROUPS, len(groups))
        members = sum(len(each.members) for each in groups)
        self._endpoint.counters.gauge(KafkaCounter.MEMBERS, members)
        if now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            alive = set(self.coordinator.groups)
            for group, n in self.offsets.sweep(alive, self._retention_s).items():
                self._endpoint.counters.count("groups_expired")
                self._endpoint.node.notify_all(KafkaGroupExpired(group=printable(group), offsets=n))
                _log.warning("kafka: the %d offsets of group %r expired", n, group)

    # --- membership -------------------------------------------------------------------------------

    async def join(self, asked: Request) -> Struct:
        """JoinGroup: answered when all members have joined."""
        connection, answer = asked.connection, _future()
        self.coordinator.join(
            asked.body,
            version=asked.version,
            client=connection.client_id,
            host=connection.peer,
            now_s=time.monotonic(),
            answer=_setter(answer),
        )
        self._busy.set()
        asked.body.clear()  # the coordinator has copies; the answer can take an hour
        return await answer

    async def sync(self, asked: Request) -> Struct:
        """SyncGroup: answered when the leader has sent the assignments."""
        answer = _future()
        self.coordinator.sync(asked.body, time.monotonic(), _setter(answer))
        asked.body.clear()
        return await answer

    async def heartbeat(self, asked: Request) -> Struct:
        """Heartbeat."""
        return {"error_code": self.coordinator.heartbeat(asked.body, time.monotonic())}

    async def leave(self, asked: Request) -> Struct:
        """LeaveGroup: one member, or from version 3 on several."""
        body, now_s = asked.body, time.monotonic()
        if "members" not in body:
            code = self.coordinator.leave(body["group_id"], body["member_id"], None, now_s)
            return {"error_code": code}
        rows = [
            each
            | {
                "error_code": self.coordinator.leave(
                    body["group_id"], each["member_id"], each["group_instance_id"], now_s
                )
            }
            for each in body["members"]
        ]
        return {"error_code": Code.NONE, "members": rows}

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(self, asked: Request) -> Struct:
        """OffsetCommit: answered when the offsets are on disk."""
        body = asked.body
        group_code = self.coordinator.may_commit(body, time.monotonic())
        rows: dict[Place, Offset] = {}
        topics = []
        for topic in body["topics"]:
            partitions = []
            for each in topic["partitions"]:
                code = group_code or self._commit_problem(asked, topic["name"], each)
                if code is Code.NONE:
                    rows[topic["name"], each["partition_index"]] = Offset(
                        each["committed_offset"],
                        each.get("committed_leader_epoch", -1),
                        each["committed_metadata"] or "",
                    )
                partitions.append({"partition_index": each["partition_index"], "error_code": code})
            topics.append({"name": topic["name"], "partitions": partitions})
        if rows:
            failed = await self._store(body["group_id"], rows)
            for row in [row for topic in topics for row in topic["partitions"]]:
                row["error_code"] = row["error_code"] or failed
        return {"topics": topics}

    def _commit_problem(self, asked: Request, topic: str, row: Struct) -> Code:
        code, _, _ = self._fetching.log_of(asked.connection, topic, row["partition_index"])
        if code is Code.NOT_LEADER_OR_FOLLOWER:  # it is elsewhere now; its offsets are kept here
            code = Code.NONE
        if code is Code.NONE and len((row["committed_metadata"] or "").encode()) > (
            METADATA_BYTES_MAX
        ):
            return Code.OFFSET_METADATA_TOO_LARGE
        if code is Code.NONE and row["committed_offset"] < 0:
            return Code.OFFSET_OUT_OF_RANGE
        return code

    async def _store(self, group: str, rows: dict[Place, Offset]) -> Code:
        if not self.offsets.room(group, rows):
            return Code.GROUP_MAX_SIZE_REACHED
        try:
            await self.offsets.commit(group, rows)
        except OSError as problem:
            self._not_stored(group, problem)
            return Code.COORDINATOR_NOT_AVAILABLE
        self._endpoint.counters.count("offsets_committed", len(rows))
        return Code.NONE

    async def fetch_offsets(self, asked: Request) -> Struct:
        """OffsetFetch: -1 where nothing was committed."""
        body, group = asked.body, asked.body["group_id"]
        wanted: dict[str, dict[int, None]] = {}
        if body["topics"] is None:
            stored = self.offsets.groups.get(group)
            for name, partitions in ({} if stored is None else stored.offsets).items():
                wanted[name] = dict.fromkeys(sorted(partitions))
        for each in body["topics"] or ():  # each place once, however often it is named
            wanted.setdefault(each["name"], {}).update(dict.fromkeys(each["partition_indexes"]))
        topics = [
            {"name": name, "partitions": [self._offset_row(asked, group, name, n) for n in places]}
            for name, places in wanted.items()
        ]
        return {"topics": topics, "error_code": Code.NONE}

    def _offset_row(self, asked: Request, group: str, topic: str, partition: int) -> Struct:
        allowed = asked.connection.access.may("subscribe", topic)
        found = self.offsets.get(group, topic, partition) if allowed else None
        row: Struct = {
            "partition_index": partition,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": Code.NONE if allowed else Code.TOPIC_AUTHORIZATION_FAILED,
        }
        if found is not None:
            row |= {
                "committed_offset": found.offset,
                "committed_leader_epoch": found.epoch,
                "metadata": found.metadata,
            }
        return row

    # --- looking at groups ------------------------------------------------------------------------

    async def list_groups(self, asked: Request) -> Struct:
        """ListGroups: groups with members, and groups with offsets."""
        if not self._may_look(asked):
            return {"error_code": Code.GROUP_AUTHORIZATION_FAILED}
        states, types = (
            {each.lower() for each in asked.body.get(f"{what}_filter", ())}
            for what in ("states", "types")
        )
        names = sorted({*self.offsets.groups, *self.coordinator.groups})
        found = [self._description(name) for name in names]
        rows = [
            {
                "group_id": each["group_id"],
                "protocol_type": each["protocol_type"],
                "group_state": each["group_state"],
                "group_type": GROUP_TYPE,
            }
            for each in found
            if (not states or each["group_state"].lower() in states)
            and (not types or GROUP_TYPE in types)
        ]
        return {"error_code": Code.NONE, "groups": rows}

    @staticmethod
    def _may_look(asked: Request) -> bool:
        return all(asked.connection.may(*each) for each in to_administer("list_groups", {}))

    async def describe(self, asked: Request) -> Struct:
        """DescribeGroups."""
        if not self._may_look(asked):
            code = Code.GROUP_AUTHORIZATION_FAILED
            return {"groups": [{"error_code": code, "group_id": n} for n in asked.body["groups"]]}
        return {"groups": [self._description(name) for name in dict.fromkeys(asked.body["groups"])]}

    def _description(self, name: str) -> Struct:
        group = self.coordinator.groups.get(name)
        stored = name in self.offsets.groups
        found = group or Group(name, kind="consumer" if stored else "")
        state = found.state.value if group is not None or stored else "Dead"
        members = [
            {
                "member_id": each.id,
                "group_instance_id": each.instance,
                "client_id": each.client,
                "client_host": f"/{each.host}",
                "member_metadata": each.protocols.get(found.protocol, b""),
                "member_assignment": each.assignment,
            }
            for each in found.members.values()
        ]
        return {
            "error_code": Code.NONE,
            "group_id": name,
            "group_state": state,
            "protocol_type": found.kind,
            "protocol_data": found.protocol,
            "members": members,
            "authorized_operations": -(1 << 31),
        }

    # --- deleting groups and offsets --------------------------------------------------------------

    async def delete(self, asked: Request) -> Struct:
        """DeleteGroups: groups without members, with all their offsets."""
        rows = [
            {"group_id": name, "error_code": await self._delete(asked, name)}
            for name in dict.fromkeys(asked.body["groups_names"])
        ]
        return {"results": rows}

    async def _delete(self, asked: Request, name: str) -> Code:
        stored, group = self.offsets.groups.get(name), self.coordinator.groups.get(name)
        topics = [] if stored is None else list(stored.offsets)
        if not all(_may_manage(asked, each) for each in topics or [EVERY_TOPIC]):
            return Code.GROUP_AUTHORIZATION_FAILED
        if group is not None and (group.members or group.pending):
            return Code.NON_EMPTY_GROUP
        if stored is None:
            return Code.GROUP_ID_NOT_FOUND
        return await self._forget(name, None)

    async def delete_offsets(self, asked: Request) -> Struct:
        """OffsetDelete: offsets of topics that no member of the group subscribes to."""
        body, name = asked.body, asked.body["group_id"]
        if name not in self.offsets.groups and name not in self.coordinator.groups:
            return {"error_code": Code.GROUP_ID_NOT_FOUND}
        group = self.coordinator.groups.get(name)
        used = None if group is None else group.subscribed()
        topics, places = [], []
        for topic in body["topics"]:
            code = Code.NONE
            if not _may_manage(asked, topic["name"]):
                code = Code.TOPIC_AUTHORIZATION_FAILED
            elif group is not None and group.members and (used is None or topic["name"] in used):
                code = Code.GROUP_SUBSCRIBED_TO_TOPIC
            rows = [
                {"partition_index": each["partition_index"], "error_code": code}
                for each in topic["partitions"]
            ]
            if code is Code.NONE:
                places += [(topic["name"], each["partition_index"]) for each in rows]
            topics.append({"name": topic["name"], "partitions": rows})
        failed = await self._forget(name, places) if places else Code.NONE
        return {"error_code": failed, "topics": topics}

    async def _forget(self, group: str, places: list[Place] | None) -> Code:
        """Forget offsets of a group, or with None all. The file is written first."""
        try:
            await self.offsets.forget(group, places)
        except OSError as problem:
            self._not_stored(group, problem)
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE

    async def forget_topic(self, topic: str) -> None:
        """Delete all offsets of a topic that was deleted: another of its name begins at 0."""
        try:
            await self.offsets.forget_topic(topic)
        except OSError as problem:
            self._not_stored(f"(all that read {topic})", problem)

    def _not_stored(self, group: str, problem: OSError) -> None:
        self._endpoint.counters.count("commits_failed")
        event = KafkaOffsetsNotStored(group=printable(group), reason=problem.strerror or "")
        if self._endpoint.counters.report(event, NOT_STORED_S):
            _log.error("kafka: offsets of group %s are not stored: %s", event.group, problem)


def _may_manage(asked: Request, topic: str) -> bool:
    """Whether the client may delete the subscriptions of the topic."""
    needed = to_administer("delete", {"pattern": topic})
    return all(asked.connection.may(right, pattern) for right, pattern in needed)


def _new_id(client: str) -> str:
    return f"{client or 'client'}-{secrets.token_hex(16)}"


def _future() -> asyncio.Future[Struct]:
    return asyncio.get_running_loop().create_future()


def _setter(future: asyncio.Future[Struct]) -> Callable[[Struct], None]:
    def answer(found: Struct) -> None:
        if not future.done():
            future.set_result(found)

    return answer
