"""Filling the agents' records: publications at the sender, images at the receiver; reading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.live import images as image_table
from tidecast.agents.live import publications as publication_table
from tidecast.agents.live.leave import leave_session
from tidecast.agents.live.receiving import STATUS_INTERVAL_NS_FIRST
from tidecast.agents.live.sender import CHECK_INTERVAL_NS
from tidecast.agents.live.sending import PROBE_NS_MAX
from tidecast.buffers.counters import CountersFile
from tidecast.buffers.ring_file import RingInfo, consumers, create_ring, describe
from tidecast.buffers.slots import control_at
from tidecast.config.internal import is_internal, served_topic
from tidecast.config.topology import TopicConfig
from tidecast.errors import Conflict, SharedMemoryError, StorageError
from tidecast.events import SubscriptionEnded
from tidecast.layout import counters as counters_layout
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.memory import address
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.context import NodeContext
from tidecast.node.live.setup import encode_setup, published_at
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import OWN, Image, Publication, Subscription
from tidecast.protocol.flow_control import NO_LIMIT, RECEIVERS_MAX
from tidecast.protocol.session_table import insert, remove

LEVEL_OF_TABLES = 2
"""The first level at which packets may be COMPACT."""
LEVEL_OF_TAILS = 2
"""The first level at which rings have a tail, with places for many subscriptions."""
JOIN_HOLD_NS = 50_000_000
LEAVE_REPEATS = 3
_STATE_SHIFT, _LENGTH = lay.STATE_SHIFT, lay.CONTROL_LENGTH_MASK


def spool_directory(data_dir: Path) -> Path:
    """Where rings lie that outlive the machine's memory."""
    return data_dir / "spool"


def set_live(ring: Bytes, rate_packets: int, rate_bytes: int, linger_us: int) -> None:
    """Set the fields that may change while a publication runs."""
    pack_into("<qqq", ring, lay.RATE_PACKETS_AT, rate_packets, rate_bytes, linger_us * 1000)


def local_start(ring: Bytes, about: RingInfo, start: str, at_head: bool) -> tuple[int, int]:
    """(packet, offset within it) where a local reader of a publication starts."""
    if not at_head:
        return about.first, 0
    if start == "earliest":
        held = about.head - about.slots + about.slots // 4
        return max(about.first, held), 0
    if about.head == about.first:
        return about.head, 0
    last = about.head - 1
    (word,) = unpack_from("<q", ring, lay.HEADER_BYTES + (last & (about.slots - 1)) * 8)
    if (word >> _STATE_SHIFT) & 0xFF == lay.OPEN:
        return last, word & _LENGTH
    return about.head, 0


def has_tails(ctx: NodeContext) -> bool:
    """Whether rings that are made now have a tail."""
    return ctx.topology.level >= LEVEL_OF_TAILS


def places(*, tail: bool) -> int:
    """How many subscriptions of this node may read a ring.

    The other entries are those of the archiver, and of subscriptions that come back
    (`continuation.hold`).
    """
    return (lay.CONSUMERS_MAX if tail else lay.HEADER_CONSUMERS) - lay.AGENT_CONSUMERS


def full(ctx: NodeContext, topic: str, most: int) -> str:
    """Why a further subscription cannot read the rings of a topic."""
    readers = "requesters" if is_internal(topic) else "subscriptions and responders"
    more = "" if has_tails(ctx) else f"; a cluster at level {LEVEL_OF_TAILS} has places for more"
    return (
        f"topic {served_topic(topic)}: this node has {most} {readers} of it, the most that read a "
        f"ring: share them within a process, or use an engine on another host{more}"
    )


def has_place(ctx: NodeContext, source: Publication | Image, subscription: Subscription) -> bool:
    """May a subscription read a ring? If not it ends, and its client gets the reason."""
    most = places(tail=source.about().tail)
    if len(source.readers) < most:
        return True
    ctx.notify(
        subscription.client,
        SubscriptionEnded(
            subscription_id=subscription.id,
            pattern=subscription.pattern,
            code=Conflict.code,
            reason=full(ctx, source.topic.name, most),
        ),
    )
    return False


# --- publications ---------------------------------------------------------------------------------


def create_publication_ring(
    ctx: NodeContext,
    publication_id: int,
    config: TopicConfig,
    session: int,
    slots: int,
    channel: int,
    first: int = 0,
    *,
    own: bool = False,
) -> MappedFile:
    """Create a publication's ring. Raises SharedMemoryError; StorageError: no room to spool.

    ``own``: the engine itself publishes; the ring's name shows it to the next engine.
    """
    transport = ctx.topology.transport(config.transport)
    end = OWN if own else ""
    path = ctx.directory / f"pub-{publication_id}{end}"
    spooled = config.mode == "durable" and config.spool
    if spooled:
        path = spool_directory(ctx.data_dir) / f"pub-{ctx.incarnation:x}-{publication_id}{end}"
    try:
        return create_ring(
            path,
            kind=lay.KIND_PUBLICATION,
            slots=slots,
            slot_bytes=transport.packet_bytes,
            session=session,
            topic=config.wire_id,
            node=ctx.id,
            channel=channel,
            flow=lay.FLOW_NAMES.index(config.flow),
            reliability=lay.RELIABILITY_NAMES.index(config.reliability),
            has_network=transport.name in ctx.runtimes,
            incarnation=ctx.incarnation,
            created_ns=ctx.stamp_ns(),
            first=first,
            node_name=ctx.name,
            topic_name=config.name,
            tail=has_tails(ctx),
        )
    except SharedMemoryError as problem:
        refused = problem.__cause__
        if not spooled or not isinstance(refused, OSError):
            raise
        raise StorageError(
            f"topic {config.name}: no room for a publisher's spool of "
            f"{slots * transport.packet_bytes} bytes in {path.parent}: free space there, or lower "
            "history_bytes",
            refused.errno or 0,
        ) from None


def update_setup(ctx: NodeContext, publication: Publication, owner: int = 0) -> None:
    """Send a new SETUP of a running publication, for instance when another node acks it now.

    ``owner``: epoch of the owner so far; only a newer one may ack.
    """
    runtime = publication.runtime
    assert runtime is not None
    S, p = runtime.tx_state, publication.slot
    if p < 0:
        return  # it is not sent yet
    setup = encode_setup(ctx, publication, int(S.pubs[p]["channel"]))

    def put() -> None:
        record = S.pubs[p]
        values = _remote_fields(publication, setup) | _table_fields(ctx, publication)
        for field, value in values.items():
            record[field] = value
        S.setups[p] = 0
        S.setups[p, : len(setup)] = np.frombuffer(setup, dtype=np.uint8)
        record["owner"] = max(int(record["owner"]), owner)
        record["setup_ns"] = ctx.clock_ns()

    runtime.on_sender(put)


def _remote_fields(publication: Publication, setup: bytes) -> dict[str, int]:
    """The sender's fields of a ring whose acks come over the network."""
    names = setup[wire.SETUP_NODE_LEN_AT] + setup[wire.SETUP_TOPIC_LEN_AT]
    return {
        "remote": int(publication.remote >= 0),
        "consumer": publication.remote,
        "block_at": wire.SETUP_NAMES_AT + names,
        "published_at": published_at(setup),
    }


def _table_fields(ctx: NodeContext, publication: Publication) -> dict[str, int]:
    """The sender's fields of a ring whose keys and headers may be sent by a table."""
    allowed = publication.table is not None and ctx.topology.level >= LEVEL_OF_TABLES
    return {"tables": int(allowed)} if allowed else {"tables": 0, "compacts": 0}


def _budgets(slots: int, sent: int, now_ns: int) -> dict[str, int]:
    """The most that receivers may ask for: places, and repairs for receivers without a place."""
    return {
        "joins": RECEIVERS_MAX,
        "joins_ns": now_ns,
        "credit": 2 * slots,
        "credit_sent": sent,
        "credit_ns": now_ns,
    }


def _record_of(
    ctx: NodeContext, publication: Publication, channel: int, resent: np.ndarray, sent: int
) -> dict[str, Any]:
    """Fields of a publication's record at its sender."""
    ring, now = publication.mapped.array, ctx.clock_ns()
    about = describe(ring)
    return {
        "ring_address": address(ring),
        "ring_bytes": ring.size,
        "resent_address": address(resent),
        "slots": about.slots,
        "slot_bytes": about.slot_bytes,
        "slots_at": lay.slots_at(about.slots),
        "session": publication.session,
        "topic": about.topic,
        "channel": channel,
        "flow": about.flow,
        "reliability": about.reliability,
        "row": publication.row,
        "sent": sent,
        "open_seq": -1,
        "limit": NO_LIMIT,
        "lowest": NO_LIMIT,
        "opened": NO_LIMIT,
        "tokens_ns": now,
        "created_ns": now if publication.continues is None else publication.began_ns,
        "hold_until_ns": now + JOIN_HOLD_NS,
        "setup_ns": now,
        "data_ns": now,
        "beat_ns": now,
        "beat_interval_ns": PROBE_NS_MAX,
        "check_ns": now + CHECK_INTERVAL_NS,
        **_budgets(about.slots, sent, now),
        "receiver_timeout_ns": int(publication.topic.receiver_timeout_s * 1e9),
        "heartbeat_ns": int(ctx.topology.node.heartbeat_ms * 1e6),
        "table_address": 0 if publication.table is None else address(publication.table),
        "close_linger_ns": int(publication.topic.close_linger_s * 1e9),
    }


def _sealed(ring: Bytes, about: RingInfo) -> int:
    """The first packet that the sender has to seal: the last one, while it is open.

    An open packet that counts as sent is never sent, and no NAK for it can be answered.
    """
    if about.head <= about.base:
        return about.head
    (word,) = unpack_from("<q", ring, control_at(about.head - 1, about.slots - 1))
    is_open = (word >> lay.STATE_SHIFT) & 0xFF == lay.OPEN
    return about.head - 1 if is_open else about.head


def add_publication(
    ctx: NodeContext, publication: Publication, channel: int, sent: int | None = None
) -> None:
    """Give a publication a place at its transport's sender; ``sent``: where it begins to send."""
    runtime = publication.runtime
    assert runtime is not None
    ring = publication.mapped.array
    about = describe(ring)
    if sent is None:
        sent = _sealed(ring, about) if publication.continues is None else publication.continues.sent
    pack_into("<q", ring, lay.SENDER_BELL_AT, runtime.sender_bell)
    resent = np.zeros(about.slots, dtype=np.int64)
    row = ctx.counters.allocate(
        counters_layout.ROW_PUBLICATION,
        publication.topic.name,
        wire.CHANNEL_NAMES[channel],
        session=publication.session,
        peer=ctx.id,
        channel=channel,
    )
    publication.place(row, -1, resent)
    if about.reliability != lay.UNRELIABLE and publication.topic.compression == "tables":
        publication.use_table(ctx.stamp_ns() >> 10 & 0x7FFFFFFF | 1)
    setup = encode_setup(ctx, publication, channel)
    fields = _record_of(ctx, publication, channel, resent, sent)

    def add() -> None:
        S = runtime.tx_state
        free = np.flatnonzero(S.pubs["active"] == 0)
        if free.size == 0:
            raise SharedMemoryError(f"a lane sends at most {S.pubs.size} publications")
        p = int(free[0])
        record = S.pubs[p]
        S.pubs[p] = np.zeros((), dtype=publication_table.PUBLICATION)
        values = fields | {"index": p} | _remote_fields(publication, setup)
        values |= _table_fields(ctx, publication)
        for field, value in values.items():
            record[field] = value
        S.receivers[p]["id"] = 0
        S.setups[p, : len(setup)] = np.frombuffer(setup, dtype=np.uint8)
        count = int(S.misc[publication_table.M_COUNT])
        S.index[count] = p
        record["place"] = count
        record["active"] = 1
        S.misc[publication_table.M_COUNT] = count + 1
        publication.place(row, p, resent)
        insert(S.sessions, publication.session, p)

    try:
        runtime.on_sender(add)
    except BaseException:
        ctx.counters.free(row)
        publication.displace()
        raise


def remove_publication(ctx: NodeContext, publication: Publication) -> None:
    """Take a publication away from its sender."""
    runtime = publication.runtime
    if runtime is None or publication.slot < 0:
        return

    def take_out() -> None:
        S = runtime.tx_state
        p = publication.slot
        place, count = int(S.pubs[p]["place"]), int(S.misc[publication_table.M_COUNT])
        busy = int(S.misc[publication_table.M_BUSY])
        if place < busy:  # first out of the busy front
            other = int(S.index[busy - 1])
            S.index[place], S.index[busy - 1] = other, p
            S.pubs[other]["place"], place = place, busy - 1
            S.misc[publication_table.M_BUSY] = busy - 1
        other = int(S.index[count - 1])
        S.index[place] = other
        S.pubs[other]["place"] = place
        S.misc[publication_table.M_COUNT] = count - 1
        S.pubs[p]["active"] = 0
        remove(S.sessions, publication.session)

    runtime.on_sender(take_out)
    ctx.counters.free(publication.row)
    publication.displace()


# --- images ---------------------------------------------------------------------------------------


def _slots_of_socket(runtime: TransportRuntime, channel: int, slot_bytes: int) -> int:
    """Packets that the socket's buffer holds; as many as any window where it has none."""
    n_bytes = runtime.receive_buffer_bytes(channel)
    return lay.SLOTS_MAX if n_bytes == 0 else max(n_bytes // slot_bytes, lay.SLOTS_MIN)


JOIN_FIELDS = ("highest", "contiguous", "reported", "contiguous_reported", "named")
"""Positions of an image that begin at its first packet."""


def add_image(
    ctx: NodeContext,
    image: Image,
    *,
    join: int,
    channel: int,
    reliability: int,
    address_words: tuple[int, int],
    further: dict[str, int],
) -> None:
    """Give an image a place at its transport's receiver, starting at packet ``join``."""
    runtime, ring = image.runtime, image.mapped.array
    about = describe(ring)
    topic = image.topic

    def add() -> None:
        S = runtime.rx_state
        free = np.flatnonzero(S.images["active"] == 0)
        if free.size == 0:
            raise SharedMemoryError(f"a lane receives at most {S.images.size} sessions")
        i = int(free[0])
        now = ctx.clock_ns()
        S.images[i] = np.zeros((), dtype=image_table.IMAGE)
        values: dict[str, Any] = {
            "index": i,
            "ring_address": address(ring),
            "ring_bytes": ring.size,
            "slots": about.slots,
            "slot_bytes": about.slot_bytes,
            "slots_at": lay.slots_at(about.slots),
            "session": image.session,
            "topic": about.topic,
            "channel": channel,
            "source": image.node_id,
            "incarnation": image.incarnation,
            "flow": about.flow,
            "reliability": reliability,
            "row": image.row,
            "receiver": ctx.random_id(62),
            **dict.fromkeys(JOIN_FIELDS, join),
            "window_end": join + about.slots,
            "nak_ns": image_table.NEVER,
            "status_ns": now,
            "status_interval_ns": STATUS_INTERVAL_NS_FIRST,
            "buffer_slots": _slots_of_socket(runtime, channel, about.slot_bytes),
            "heard_ns": now,
            "echo_at_ns": now,
            "end_seq": -1,
            "begins": -1,
            "address_a": address_words[0],
            "address_b": address_words[1],
            "next": -1,
            "nak_delay_ns": topic.nak_delay_us * 1000,
            "nak_retry_ns": topic.nak_retry_us * 1000,
            "table_address": address(image.table),
            "timeout_ns": int(ctx.topology.node.image_timeout_s * 1e9),
            **further,
        }
        for field, value in values.items():
            S.images[i][field] = value
        S.images[i]["active"] = 1
        count = int(S.misc[image_table.M_COUNT])
        S.index[count] = i
        S.misc[image_table.M_COUNT] = count + 1
        image.place(i)

    runtime.on_receiver(add)


def _take_image(runtime: TransportRuntime, slot: int) -> None:
    """Take an image off a receiver's index. In its thread."""
    S = runtime.rx_state
    count = int(S.misc[image_table.M_COUNT])
    place = int(np.flatnonzero(S.index[:count] == slot)[0])
    S.index[place] = S.index[count - 1]
    S.misc[image_table.M_COUNT] = count - 1
    S.images[slot]["active"] = 0
    S.misc[image_table.M_LAST_SESSION] = 0


def move_image(image: Image, runtime: TransportRuntime) -> None:
    """Give an image to the receiver of another lane, as it is. Raises SharedMemoryError.

    Only the conductor takes places in a receiver's table, so a free place stays free.
    """
    before, S = image.runtime, runtime.rx_state
    free = np.flatnonzero(S.images["active"] == 0)
    if free.size == 0:
        raise SharedMemoryError(f"a lane receives at most {S.images.size} sessions")
    i = int(free[0])

    def take_out() -> tuple[np.ndarray, np.ndarray]:
        state = before.rx_state
        record, gaps = state.images[image.slot].copy(), state.gaps[image.slot].copy()
        _take_image(before, image.slot)
        return record, gaps

    record, gaps = before.on_receiver(take_out)

    def add() -> None:
        S.images[i], S.gaps[i] = record, gaps
        S.images[i]["index"], S.images[i]["next"] = i, -1
        count = int(S.misc[image_table.M_COUNT])
        S.index[count] = i
        S.misc[image_table.M_COUNT] = count + 1
        image.move(runtime, i)

    runtime.on_receiver(add)


def count_foreign(ctx: NodeContext, image: Image) -> None:
    """A SETUP of an image's session came from a foreign address, to another lane."""

    def count() -> None:
        ctx.counters.values[image.row, counters_layout.Counter.FOREIGN_ADDRESS] += 1

    image.runtime.on_receiver(count)


def remove_image(ctx: NodeContext, image: Image, *, leave: bool = False) -> None:
    """Take an image away from its receiver; with ``leave`` send LEAVE in the same step.

    A duty cycle between the two could send a STATUS that makes us a receiver again, which never
    moves. The LEAVE may be lost like any packet, so it is sent more than once.
    """
    runtime = image.runtime

    def take_out() -> None:
        for _ in range(LEAVE_REPEATS if leave else 0):
            leave_session(runtime.inline_arguments[1], image.slot, ctx.clock_ns())
        _take_image(runtime, image.slot)

    if image.slot >= 0:
        ctx.source_gone(image)
        runtime.on_receiver(take_out)
        image.place(-1)
        ctx.counters.free(image.row)


# --- reading --------------------------------------------------------------------------------------


def stats(counters: CountersFile) -> dict[str, Any]:
    """Every counter row by kind: name, session, counters that are not 0."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in counters.rows():
        columns = counters_layout.COLUMNS_OF.get(row.kind, counters_layout.Counter)
        values = {c.name.lower(): int(row.values[c]) for c in columns if row.values[c]}
        found.setdefault(row.kind, []).append(
            {
                "name": row.name,
                "detail": row.detail,
                "session": row.session,
                "peer": row.peer,
                **values,
            }
        )
    return found


def _local_readers(ring: Bytes) -> list[dict[str, int]]:
    return [
        {
            "subscription_id": int(e[lay.CONSUMER_SUBSCRIPTION_AT // 8]),
            "position": int(e[lay.CONSUMER_POSITION_AT // 8]),
            "state": int(e[0]),
            "tethered": int(e[lay.CONSUMER_TETHERED_AT // 8]),
        }
        for _, e in consumers(ring)
        if e[lay.CONSUMER_SUBSCRIPTION_AT // 8] >= 0
    ]


def publication_row(publication: Publication) -> dict[str, Any]:
    """A publication as `tidecast top` and the dashboard show it."""
    about = publication.about()
    row: dict[str, Any] = {
        "publication_id": publication.id,
        "topic": publication.topic.name,
        "session": publication.session,
        "channel": wire.CHANNEL_NAMES[about.channel],
        "transport": publication.topic.transport,
        "slots": about.slots,
        "packet_bytes": about.slot_bytes,
        "head": about.head,
        "messages": unpack_from("<q", publication.mapped.array, lay.MESSAGES_AT)[0],
        "readers": _local_readers(publication.mapped.array),
        "closing": publication.closing,
    }
    if publication.slot >= 0 and publication.runtime is not None:
        record = publication.runtime.tx_state.pubs[publication.slot]
        row |= {
            "lane": publication.runtime.lane.number,
            "sent": int(record["sent"]),
            "receivers": int(record["receivers"]) << int(record["sampling"]),
            "slowest_consumed": min(int(record["lowest"]), int(record["sent"])),
            "rtt_ns": int(record["rtt_ns"]),
            "rate_held_ns": int(record["rate_held_ns"]),
            "flow_held_ns": int(record["flow_held_ns"]),
            "wire_bytes": int(record["wire_bytes"]),
            "compacts": bool(record["compacts"]),
        }
    return row


def image_row(image: Image) -> dict[str, Any]:
    """An image as `tidecast top` and the dashboard show it."""
    row: dict[str, Any] = {
        "image_id": image.id,
        "topic": image.topic.name,
        "session": image.session,
        "node": image.node_name,
        "transport": image.topic.transport,
        "mode": image.mode,
        "readers": _local_readers(image.mapped.array),
        "gone": image.gone,
    }
    if image.slot >= 0:
        record = image.runtime.rx_state.images[image.slot]
        row |= {
            "lane": image.runtime.lane.number,
            "slots": int(record["slots"]),
            "highest": int(record["highest"]),
            "contiguous": int(record["contiguous"]),
            "consumed": int(record["reported"]),
            "gaps": int(record["gaps"]),
            "lost": int(record["lost"]),
        }
    return row


def receiver_rows(names: dict[int, str], publication: Publication) -> list[dict[str, Any]]:
    """The receivers of a publication."""
    if publication.slot < 0 or publication.runtime is None:
        return []
    table = publication.runtime.tx_state.receivers[publication.slot]
    return [
        {
            "topic": publication.topic.name,
            "session": publication.session,
            "receiver": int(r["id"]),
            "node_id": int(r["node"]),
            "node": names.get(int(r["node"]), str(int(r["node"]))),
            "consumed": int(r["consumed"]),
            "contiguous": int(r["contiguous"]),
            "window": int(r["window"]),
            "lost": int(r["lost"]),
            "excluded": bool(r["excluded"]),
        }
        for r in table[table["id"] != 0]
    ]
