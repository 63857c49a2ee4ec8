"""One durable topic of a node: its queues' logs, its map of queues, its producers.

Are all of a producer's sequences in the log? All queues of a topic are written before a message of
a cycle is acked, so only records behind a producer's acked sequence can be there in part: the last
few batches of each queue (`Tails`).
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from tidecast.config.leases import SHARED
from tidecast.config.sources.storage import LOCAL, storage_name
from tidecast.config.topology import TopicConfig
from tidecast.disk import make_directory, write_atomically
from tidecast.errors import ConfigError, CorruptLog, Fenced, StorageError, TidecastError
from tidecast.layout import segment as seg
from tidecast.log.files import (
    MAP_NAME,
    checksum,
    open_json,
    queue_directory,
    queue_name,
    seal_json,
    segment_name,
    snapshot_name,
)
from tidecast.log.grants import GrantLog
from tidecast.log.queue_log import QueueLog, bytes_of
from tidecast.log.reading import scan
from tidecast.log.repair.damage import sound_rows
from tidecast.log.repair.recovery import Segment, Torn
from tidecast.log.state import L_END_SEGMENT, L_FIRST_SEGMENT, LOG_WORDS
from tidecast.log.takeover import Owners
from tidecast.native.packing import unpack_from
from tidecast.protocol.dedup import SEQ_MAX, Producer, ProducerTable, Session, is_placed
from tidecast.queues.mapper import QUEUES_MAX, QueueMap

LOOK_BACK_BYTES_MAX = 64 << 20
"""How much of the segments before the last one is searched for missing records."""
Position = Callable[[str, int], int | None]
"""(topic, queue) -> the oldest token that some subscription has not acked; None: there is none."""


Sequences = Callable[[int, np.ndarray], np.ndarray]
"""(queue, row of a scan) -> the sequences of that batch's records."""


class Tails:
    """Batches whose records were not all known to be acked when recovery saw them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], np.ndarray] = {}
        """By queue and first token: a segment may be looked at twice."""

    def see(self, queue: int, rows: np.ndarray, producers: ProducerTable) -> None:
        """Keep the unacked part of a queue's batches, which ``producers`` knows."""
        ids, at = np.unique(rows[:, scan.C_PRODUCER], return_inverse=True)
        acked = [
            producers.known[each].acked_seq if each and not is_placed(each) else SEQ_MAX
            for each in ids.tolist()
        ]
        kept = rows[rows[:, scan.C_LAST_SEQ] > np.array(acked, dtype=np.int64)[at]]
        if kept.shape[0]:
            self._seen[queue, int(rows[0, scan.C_BASE_TOKEN])] = kept.copy()

    def torn(self, producers: ProducerTable, sequences: Sequences) -> list[Producer]:
        """Producers with a missing sequence below their last sequence."""
        return [
            each
            for each in producers.known.values()
            if not each.placed  # their sequences are contiguous in each queue, never across
            and each.acked_seq < each.last_seq
            and self._count(each, sequences) < each.last_seq - each.acked_seq
        ]

    def _count(self, producer: Producer, sequences: Sequences) -> int:
        """Records of a producer that were seen behind its acked sequence."""
        found = 0
        for (queue, _), rows in self._seen.items():
            mine = rows[
                (rows[:, scan.C_PRODUCER] == producer.id)
                & (rows[:, scan.C_LAST_SEQ] > producer.acked_seq)
            ]
            behind = mine[:, scan.C_BASE_SEQ] > producer.acked_seq
            found += int(mine[behind, scan.C_COUNT].sum())
            for row in mine[~behind]:
                found += int((sequences(queue, row) > producer.acked_seq).sum())
        return found

    def unseen(self, producers: ProducerTable, torn: list[Producer]) -> list[int]:
        """Queues in whose segments before the last one some of it may lie."""
        return [
            queue
            for queue in range(producers.queues)
            if any(producers.before.get((queue, p.id), 0) > p.acked_seq for p in torn)
        ]


def seqs_of(batch: np.ndarray) -> np.ndarray:
    """Sequences of the records of a sound batch."""
    (count,) = unpack_from("<I", batch, seg.BATCH_COUNT_AT)
    (base,) = unpack_from("<q", batch, seg.BATCH_BASE_SEQ_AT)
    found, at = [], seg.BATCH_HEADER_BYTES
    for _ in range(count):
        length, delta = unpack_from("<II", batch, at)
        found.append(base + delta)
        at += length & seg.REC_LENGTH_MASK
    return np.array(found, dtype=np.int64)


class DurableTopic:
    """Logs and producers of one topic. Opened by `open`; the archiver's records are elsewhere."""

    def __init__(self, config: TopicConfig, data_dir: Path) -> None:
        self.config = config
        self.directory = queue_directory(data_dir, config.name, 0).parent
        """Of its queues; each owner has its own directory."""
        self.map = QueueMap(config.queues)
        self.words = np.zeros((QUEUES_MAX, LOG_WORDS), dtype=np.int64)
        """A row a queue: the state of its log, so that all are read at once."""
        self.logs: list[QueueLog] = []
        self.producers = ProducerTable(config.queues, ttl_ns=int(config.producer_ttl_s * 1e9))
        self.tails = Tails()
        self.grants = GrantLog(self.directory)
        self.damaged_files: list[tuple[int, Path, str]] = []
        """(queue or -1, file, defect) of files beside the logs that were not sound."""
        self.refused = False
        """It was reported that the disk refuses."""
        self.storage_waits = "it is not open yet" if self.is_stored else ""
        """Why the storage beside its logs takes nothing; empty: it does, or there is none."""
        self.opened_s = 0.0
        """On the node's clock."""
        self.owner = 0
        """Epoch of a lease on its queues; 0: they are this engine's alone."""
        self.since_ns = 0
        """When it was taken, since 1970."""
        self.owners = Owners(self.directory.parent, config.name)
        self.slot = -1
        """Row at the archiver."""

    @classmethod
    def open(
        cls, config: TopicConfig, data_dir: Path, now_ns: int, owner: int = 0, name: str = ""
    ) -> DurableTopic:
        """Open or make the topic's logs. ``owner``: epoch of the lease on its queues, 0: none.

        With a lease they are taken over from their last owner; ``name``: of this node. Queues that
        were shared are taken over by one without a lease, too.

        Raises CorruptLog, StorageError, ConfigError; Fenced when a newer owner has appended.
        """
        topic = cls(config, data_dir)
        if not owner and topic.owners.exist:
            owner = topic.owners.newest() + 1
        elif not owner and topic.directory.is_symlink():
            topic.directory.unlink()  # to queues that this engine shared with others elsewhere
        if owner:
            topic._claim(owner, name, now_ns)
        try:
            topic._load_map()
            if topic.is_stored and config.queues != topic.map.queues:
                raise ConfigError(
                    f"topic {config.name}: queues: {config.queues}: the topic was made with "
                    f"{topic.map.queues}, and its storage is {storage_name(config.storage)}: "
                    f"allowed {topic.map.queues}"
                )
            topic.configure(config)
            topic._load_grants()
            for queue in range(topic.map.queues):
                topic.logs.append(topic._open_log(queue, now_ns))
            topic._cut_to_ends()
            if not topic._find_torn() and config.queues > topic.map.queues:
                with contextlib.suppress(StorageError):  # the node tries again
                    topic.grow(config.queues, now_ns)  # in the file, while no engine ran
            if config.owner != SHARED and owner:
                topic.owners.sweep(owner)  # else each start would leave one
        except BaseException:
            topic.close()
            if owner:
                topic.owners.discard(owner)
            raise
        return topic

    def configure(self, config: TopicConfig) -> None:
        """The topic's settings, or its queues, have changed."""
        self.config = config
        self.producers.configure(self.map.queues, int(config.producer_ttl_s * 1e9))

    def note_opened(self, now_s: float) -> None:
        """It is served from now on, by the node's clock."""
        self.opened_s = now_s

    def set_refused(self, refused: bool) -> bool:
        """The disk refuses, or not; was it the other way round before?"""
        changed, self.refused = self.refused != refused, refused
        return changed

    def set_storage_waits(self, detail: str) -> None:
        """Why the storage beside its logs takes nothing; empty: it does again."""
        self.storage_waits = detail

    def _claim(self, owner: int, name: str, now_ns: int) -> None:
        try:
            self.directory = self.owners.claim(owner, name, now_ns)
        except OSError as problem:
            raise self._refused(problem) from None
        self.owner, self.since_ns = owner, now_ns

    def _load_map(self) -> None:
        path = self.directory / MAP_NAME
        try:
            self.map = msgspec.json.decode(open_json(path.read_bytes()), type=QueueMap)
        except FileNotFoundError:
            try:
                make_directory(self.directory)
                self._save_map(self.map)
            except OSError as refused:
                raise self._refused(refused) from None
        except (ConfigError, ValueError, msgspec.DecodeError) as problem:
            raise CorruptLog(f"{path}: {problem}") from None

    def _refused(self, problem: OSError) -> StorageError:
        return StorageError(f"{self.directory}: {problem.strerror}", problem.errno or 0)

    def _cut_to_ends(self) -> None:
        """Lost records, of ``fsync: none`` or of a damaged tail, hold no newer queue back."""
        growths = tuple(
            msgspec.structs.replace(
                growth,
                cuts=tuple(
                    min(cut, log.next_token)
                    for cut, log in zip(growth.cuts, self.logs, strict=False)
                ),
            )
            for growth in self.map.growths
        )
        if growths != self.map.growths:
            try:
                self._save_map(QueueMap(self.map.first, growths))
            except OSError as problem:
                raise self._refused(problem) from None

    def _save_map(self, fresh: QueueMap) -> None:
        write_atomically(self.directory / MAP_NAME, seal_json(msgspec.json.encode(fresh)))
        self.map = fresh

    def grant(
        self, producer: int, first_seq: int | None, now_ns: int, line: int = 0, born_ns: int = 0
    ) -> Session:
        """Open a session of a producer at another node. Its epoch is on disk when this returns.

        Else a crash before its first batch would let an older ring of the producer append again,
        under sequences that the new session was given. Raises as `ProducerTable.open`, and Fenced,
        StorageError.
        """
        session = self.producers.open(producer, first_seq, now_ns, line, born_ns)
        try:
            self._note(session)
            if self.owned:
                return session
            problem: TidecastError = Fenced(f"{self.directory}: another engine owns it now")
        except OSError as refused:
            problem = self._refused(refused)
        self.producers.close(session.producer, now_ns)
        raise problem

    def note_grant(self, session: Session) -> None:
        """Remember whose an epoch is that was reported already, if the disk takes it."""
        with contextlib.suppress(OSError):
            self._note(session)

    def _note(self, session: Session) -> None:
        self.grants.append(self.producers.grant(session))
        if self.grants.is_long:
            self.grants.rewrite(self.producers.grants())

    def _load_grants(self) -> None:
        self.grants = GrantLog(self.directory)
        self.producers.load_grants(self.grants.load())
        if self.grants.torn_bytes:
            detail = f"{self.grants.torn_bytes} bytes at its end are no grant: they are cut off"
            self.damaged_files.append((-1, self.grants.path, detail))
        try:
            self.grants.rewrite(self.producers.grants())
        except OSError as refused:
            if self.owner:  # it may be a link to another owner's
                raise StorageError(
                    f"{self.grants.path}: {refused.strerror}", refused.errno or 0
                ) from None

    def _open_log(self, queue: int, now_ns: int) -> QueueLog:
        config = self.config
        self.words[queue] = 0
        log = QueueLog.open(
            self.directory / queue_name(queue),
            topic=config.name,
            queue=queue,
            segment_bytes=config.segment_bytes,
            fsync=config.fsync,
            owner=self.owner,
            now_ns=now_ns,
            on_rows=lambda rows: self._learn(queue, rows),
            words=self.words[queue],
        )
        if self.is_stored:
            log.expect_storage(alone=self.storage_alone)
        base = log.segments[-1].base_token
        raw = log.snapshot(base)
        known = self.producers.load(queue, raw, checksum)
        grown = queue >= self.map.first  # its snapshots alone have its first marks
        if not known and (grown or base > log.earliest_token):
            known = base > log.earliest_token and self._learn_from_segments(log, queue)
            known = known or (log.earliest_token == 0 and not grown)
            detail = "an older one and the segments since say the same"
            if not known:
                detail = "what producers published before may be stored again: none is sound"
            if raw or not known:
                self.damaged_files.append((queue, log.directory / snapshot_name(base), detail))
        for path in log.recovered.indexes_rebuilt:
            self.damaged_files.append((queue, path, "it was rebuilt from its segment"))
        return log

    def _learn(self, queue: int, rows: np.ndarray) -> None:
        newest = int(rows[:, scan.C_OWNER].max())
        if newest > self.owner:
            raise Fenced(
                f"topic {self.config.name}: queue {queue} belongs to owner {newest} now, this "
                f"engine's lease has epoch {self.owner}"
            )
        columns = (
            scan.C_PRODUCER,
            scan.C_EPOCH,
            scan.C_LAST_SEQ,
            scan.C_ACKED_SEQ,
            scan.C_APPEND_TIME,
        )
        self.producers.learn(queue, *(rows[:, column] for column in columns))
        self.tails.see(queue, rows, self.producers)

    def _find_torn(self) -> bool:
        """Find out which producers have holes below their last sequence. True: some have."""
        torn = self.tails.torn(self.producers, self._seqs)
        for queue in self.tails.unseen(self.producers, torn):
            looked = 0
            for one in reversed(self.logs[queue].segments[:-1]):
                self._learn_from(self.logs[queue], queue, [one])
                looked += one.bytes
                if looked > LOOK_BACK_BYTES_MAX:
                    break
        for each in self.tails.torn(self.producers, self._seqs) if torn else []:
            each.note_torn()
        self.tails = Tails()
        self.producers.before.clear()
        return any(each.torn_seq for each in torn)

    def _seqs(self, queue: int, row: np.ndarray) -> np.ndarray:
        """Sequences of a batch's records."""
        reader = self.logs[queue].reader()
        raw = np.zeros(int(row[scan.C_LENGTH]), dtype=np.uint8)
        reader.read_block(int(row[scan.C_BASE_TOKEN]), raw)
        reader.close()
        return seqs_of(raw)

    def _learn_from_segments(self, log: QueueLog, queue: int) -> bool:
        """The snapshot is missing: take the newest that is sound, and read the segments since.

        False: none is sound.
        """
        sealed = log.segments[:-1]
        first, known = len(sealed) - 1, False
        while first >= 0:
            raw = log.snapshot(sealed[first].base_token)
            known = self.producers.load(queue, raw, checksum)
            if known or first == 0:
                break
            first -= 1
        self._learn_from(log, queue, sealed[first:])
        return known

    def _learn_from(self, log: QueueLog, queue: int, segments: list[Segment]) -> None:
        for one in segments:
            with (log.directory / segment_name(one.base_token)).open("rb") as file:
                scanner = scan.Scanner(file.fileno(), one.bytes)
                for rows in sound_rows(scanner):
                    self._learn(queue, rows)

    @property
    def torn(self) -> list[tuple[int, Torn]]:
        """(queue, tail) that recovery set aside."""
        return [(log.queue, torn) for log in self.logs for torn in log.recovered.torn]

    def roll(self, queue: int, now_ns: int, waiting: Mapping[int, int]) -> None:
        """Begin a new segment, with the state of the producers. Raises StorageError.

        ``waiting``: first sequence of each producer among the records to append next.
        """
        try:
            if self.owned:
                self.logs[queue].roll(now_ns, self.producers.snapshot(queue, checksum, waiting))
                return
        except StorageError:
            if self.owned:
                raise
        raise StorageError(f"{self.directory}: another engine owns it now", errno.ESTALE)

    @property
    def is_stored(self) -> bool:
        """Its records are acked when a storage beside its logs has them, too."""
        return self.config.storage != LOCAL

    @property
    def storage_alone(self) -> bool:
        """The next owner may have only its storage."""
        return self.is_stored and self.config.owner == SHARED

    @property
    def owned(self) -> bool:
        """No other engine has taken the queues over."""
        return not self.owner or self.owners.owned(self.owner)

    def grow(self, queues: int, now_ns: int) -> None:
        """More queues, or all as it was. To be called between two cycles, nothing half appended.

        The records that the cuts and marks speak of are on the device before these are: else a loss
        of power would turn records that a publisher sends again into duplicates. Raises
        StorageError, Fenced.
        """
        if not self.owned:
            raise Fenced(f"{self.directory}: another engine owns it now")
        for log in self.logs:
            log.sync()
        cuts = [log.next_token for log in self.logs]
        fresh = self.map.grown(queues, cuts)
        marks = {each.id: each.marks for each in self.producers.known.values()}
        made: list[QueueLog] = []
        self.producers.grow(queues)
        try:
            for queue in range(self.map.queues, queues):
                made.append(self._open_log(queue, now_ns))
                made[-1].write_snapshot(0, self.producers.snapshot(queue, checksum))
            self._save_map(fresh)
        except BaseException as problem:
            for log in made:
                log.close()
            self.producers.shrink(self.map.queues, marks)
            if isinstance(problem, OSError):
                raise self._refused(problem) from None
            raise
        self.logs += made

    def retain(self, position: Position, now_ns: int) -> list[tuple[int, int]]:
        """Delete segments beyond the limits of retention: (queue, segments deleted)."""
        config = self.config
        if (not config.retention_bytes and not config.retention_s) or not self.owned:
            return []
        words = self.words[: len(self.logs)]
        due = words[:, L_END_SEGMENT] - words[:, L_FIRST_SEGMENT] > 1
        if not config.retention_s:
            due &= bytes_of(words) > config.retention_bytes
        found = []
        for log in [self.logs[queue] for queue in np.flatnonzero(due).tolist()]:
            hold = None if config.retention_past_unacked else position(config.name, log.queue)
            gone = log.retain(
                bytes_max=config.retention_bytes,
                age_max_ns=int(config.retention_s * 1e9),
                now_ns=now_ns,
                hold_token=hold,
            )
            if gone:
                found.append((log.queue, len(gone)))
        return found

    def close(self) -> None:
        """Close all logs."""
        for log in self.logs:
            log.close()
        self.logs = []

    def delete(self) -> None:
        """Close, and remove all that it has on disk."""
        self.close()
        if not self.owner:
            shutil.rmtree(self.directory, ignore_errors=True)
        elif self.owned:
            self.owners.remove()
