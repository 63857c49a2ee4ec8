"""Rings that dead engines left: their sessions, and the rest that they hold.

Called with the node's lock held.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tidecast import events
from tidecast.buffers.ring_file import describe
from tidecast.errors import SequenceGap, TidecastError
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.session_order import Grants, claim_of_ring
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live import agent_tables
from tidecast.node.state import OWN, is_own
from tidecast.protocol.dedup import Session

WHY_DROPPED = {lay.ACK_FENCED: "fenced", lay.ACK_REFUSED: "refused"}


class Recovery:
    """See module."""

    def __init__(self, registry: SourceRegistry, grants: Grants) -> None:
        self._registry, self._grants = registry, grants
        self.orphans: list[MappedFile] = []
        """Rings of dead engines, until it is known whose they are."""

    def adopt(self, directories: list[Path], into: Path) -> None:
        """Map the rings that dead engines left, and take them ``into`` our own directory.

        Else a crash before they are drained would lose them. The spool's stay where they are. The
        oldest is the first: of a producer it must begin before the others.
        """
        ctx = self._registry.ctx
        spool, found = agent_tables.spool_directory(ctx.data_dir), list[tuple[int, MappedFile]]()
        for path in [path for each in (*directories, spool) for path in _rings_in(each)]:
            try:
                mapped = MappedFile.open(path)
                describe(mapped.array)
            except TidecastError:
                continue
            if not archiver_tables.ring_session(mapped.array)[0]:
                mapped.close()
                continue
            (created_ns,) = unpack_from("<q", mapped.array, lay.CREATED_AT)
            ctx.note_stamp(created_ns)
            found.append((created_ns, mapped))
        for _, mapped in sorted(found, key=lambda each: each[0]):
            if mapped.path.parent != spool:
                try:
                    own = OWN if is_own(mapped) else ""
                    mapped.rename(into / f"pub-left-{len(self.orphans)}{own}")
                except FileNotFoundError:  # settled, and removed by an engine that starts beside us
                    mapped.close()
                    continue
            self.orphans.append(mapped)

    def take_orphans(self) -> list[MappedFile]:
        """Rings that `adopt` found, once."""
        taken, self.orphans = self.orphans, []
        return taken

    def may_begin(self, topic: DurableTopic, ring: Bytes, waited_s: float, *, left: bool) -> bool:
        """A ring has its session, or may have it now, or never: see `session_of`."""
        if archiver_tables.ring_session(ring)[1]:
            return True
        claim, grants = claim_of_ring(ring, left=left), self._grants
        return grants.overtaken(topic, claim) or grants.ready(topic, claim, waited_s)

    def session_of(self, topic: DurableTopic, ring: Bytes, *, left: bool = False) -> Session | None:
        """The session in which our archiver reads a ring on; None: a fence or refusal, reported."""
        registry = self._registry
        producer, epoch, first_seq = archiver_tables.ring_session(ring)
        known = topic.producers.known.get(producer)
        claim = claim_of_ring(ring, left=left)
        if epoch == 0 and self._grants.overtaken(topic, claim):
            self._grants.report_fenced(topic, producer, claim.session, 0)
            registry.set_ack_state(ring, lay.ACK_FENCED)
            return None
        if epoch == 0:
            self._grants.fence(topic, producer, "")
            try:
                session = topic.producers.open(
                    producer,
                    first_seq or None,
                    registry.ctx.wall_ns(),
                    claim.of_line,
                    claim.born_ns,
                )
            except SequenceGap as gap:
                pack_into("<q", ring, lay.FIRST_SEQ_AT, gap.expected)
                registry.set_ack_state(ring, lay.ACK_REFUSED)
                return None
            pack_into("<q", ring, lay.FIRST_SEQ_AT, session.first_seq)
            pack_into("<q", ring, lay.EPOCH_AT, session.epoch)
            topic.note_grant(session)
            self._grants.note_left(claim, session.epoch)
        elif known is not None and known.epoch > epoch:
            registry.set_ack_state(ring, lay.ACK_FENCED)
            return None
        else:
            session = topic.producers.resume(
                producer, epoch, first_seq, registry.ctx.wall_ns(), claim.of_line, claim.born_ns
            )
        registry.set_ack_state(ring, lay.ACK_OK)
        return session

    def read_on(self, topic: DurableTopic, mapped: MappedFile) -> None:
        """Read an orphaned ring on from where it was durable, in its own session."""
        session = self.session_of(topic, mapped.array, left=True)
        if session is None:
            self.report_dropped(mapped)
            mapped.unlink()  # no engine will ever take it
            return
        slot = self._registry.add(topic, mapped, session, 0)
        self._registry.sources[slot].orphan()

    def report_dropped(self, mapped: MappedFile) -> int:
        """The rest of a ring will never be stored: its session is over. How many packets."""
        (state,) = unpack_from("<q", mapped.array, lay.ACK_STATE_AT)
        return self._report_rest(mapped, WHY_DROPPED[state]) if state in WHY_DROPPED else 0

    def report_deleted(self, mapped: MappedFile) -> int:
        """The same, because the topic of a ring is deleted."""
        return self._report_rest(mapped, "deleted")

    def drop_deleted(self, mapped: MappedFile) -> None:
        """Remove a ring whose topic is deleted, and report its messages."""
        self.report_deleted(mapped)
        mapped.unlink()
        mapped.close()

    def _report_rest(self, mapped: MappedFile, reason: str) -> int:
        ring, about = mapped.array, describe(mapped.array)
        if not archiver_tables.holds_more(ring, about.slots):
            return 0
        producer, _, first_seq = archiver_tables.ring_session(ring)
        seq, _, count = archiver_tables.ack_record(ring, about)
        first, packets = first_seq + count, about.head - seq
        self._registry.ctx.note(
            rec.ALERT, rec.Code.RING_DROPPED, about.session, producer, first, packets
        )
        self._registry.notify(
            events.RingDropped(
                topic=about.topic_name,
                producer=f"{producer:x}",
                session=about.session,
                first=first,
                packets=packets,
                reason=reason,
            )
        )
        return packets

    def report_stranded(self, mapped: MappedFile) -> bool:
        """This node does not have the topic of a ring. False: the ring holds nothing, and goes."""
        left = archiver_tables.describe_unacked(mapped)
        if left is None:
            mapped.unlink()
            mapped.close()
            return False
        self._registry.ctx.note(
            rec.ALERT,
            rec.Code.RING_STRANDED,
            left.session,
            int(left.producer, 16),
            left.messages,
            left.bytes,
        )
        self._registry.stand(left.topic, left.file, events.RingStranded(**asdict(left)))
        return True

    def reap(self) -> None:
        """Remove orphaned rings that are durable to their end."""
        registry = self._registry
        for slot, source in list(registry.sources.items()):
            record = registry.runtime.state.sources[slot]
            if source.publication or source.image or registry.unread(source):
                continue
            if record["d_seq"] != record["seq"] or record["d_at"] != record["at"]:
                continue
            messages = int(record["count"]) - source.first_count
            registry.ctx.note(rec.LOW, rec.Code.RING_DRAINED, source.session, messages)
            registry.notify(
                events.RingDrained(topic=source.topic, session=source.session, messages=messages)
            )
            registry.remove(slot, registry.topics[source.topic], lay.ACK_ENDED)
            source.mapped.unlink()
            source.mapped.close()


def _rings_in(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith("pub-"))
    except FileNotFoundError:  # no spool, or settled and removed by an engine that starts beside us
        return []
