"""Typed events: all that happens besides messages. Nothing is lost, dropped or evicted without one.

`Connection.events()` yields them; each also is a counter and a flight-recorder record.
"""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all events. ``at_ns``: wall clock, ns since 1970."""

    at_ns: int = 0


class ImageAvailable(Event, frozen=True):
    """A subscription can read a publication: map ``ring_path`` and poll consumer ``consumer``."""

    subscription_id: int
    image_id: int
    ring_path: str
    consumer: int
    topic: str
    node: str
    session: int


class ImageGone(Event, frozen=True):
    """A publication that a subscription reads ended. Reason: closed, timeout, restarted."""

    subscription_id: int
    image_id: int
    topic: str
    node: str
    session: int
    reason: str


class Gap(Event, frozen=True):
    """Packets [first, end) of a session are lost for good for this subscription.

    ``reason``: ``lost`` (nobody holds them any more), ``lapped`` (the subscription was too slow and
    holds nobody back), ``malformed`` (the content cannot be parsed), ``ended`` (the session ended,
    or fell silent, before they came), ``reconnect`` (missed while the engine was away). Each lost
    packet is in exactly one gap of a subscription.
    """

    topic: str
    node: str
    session: int
    first: int
    end: int
    reason: str = "lost"


class PeerJoined(Event, frozen=True):
    """A node was seen for the first time, or in a new incarnation."""

    node: str
    node_id: int
    incarnation: int


class PeerTimeout(Event, frozen=True):
    """Nothing was heard from a node's session for the image time-out."""

    node: str
    topic: str
    session: int


class ReceiverJoined(Event, frozen=True):
    """A receiver of one of our publications was seen for the first time."""

    topic: str
    session: int
    receiver: int
    node_id: int
    node: str = ""


class ReceiverTimeout(Event, frozen=True):
    """A receiver was dropped.

    ``reason``: ``stuck`` (it held the publication back too long), ``silent``, or ``removed`` (its
    node is quarantined, is no peer of this transport any more, or has moved).
    """

    topic: str
    session: int
    receiver: int
    node_id: int
    reason: str
    node: str = ""


class SubscriberEvicted(Event, frozen=True):
    """A local subscriber held a ring back too long, or fell a whole ring behind; it rejoins."""

    topic: str
    session: int
    subscription_id: int
    behind_packets: int


class PeerSilent(Event, frozen=True):
    """A discovered peer of a unicast transport is not heard: it is down, or cut off.

    Its engine sends a beacon each second, also when it publishes nothing. ``silence_s``: since it
    was heard, or since it is a peer if it was never heard. ``address``: where this engine sends.
    """

    transport: str
    node: str
    node_id: int
    address: str
    silence_s: float


class PeerHeard(Event, frozen=True):
    """A discovered peer that was silent is heard again."""

    transport: str
    node: str
    node_id: int
    address: str


class PathNarrow(Event, frozen=True):
    """IP packets of ``wire_bytes`` to a target are longer than ``mtu``: they become fragments."""

    transport: str
    address: str
    wire_bytes: int
    mtu: int
    packet_bytes_max: int


class SendsRefused(Event, frozen=True):
    """The kernel refused sends of a transport, the last one to ``address``. At most one in 10 s."""

    transport: str
    address: str
    error: str
    sends: int
    wire_bytes: int
    mtu: int


class StaleIncarnation(Event, frozen=True):
    """Packets of an incarnation that was replaced were refused."""

    node_id: int
    incarnation: int


class NodeConflict(Event, frozen=True):
    """Two living nodes use the same node id, or a node claims to start in the future."""

    node_id: int
    names: tuple[str, str]


class ForeignPackets(Event, frozen=True):
    """Packets that claim to be of a session came from another address, and were refused.

    At most one a second of each agent; the counter FOREIGN_ADDRESS has all. A host that changed its
    address is heard again once its old address has been silent for the time-out.
    """

    transport: str
    session: int
    node_id: int
    address: str


class WireKeyActive(Event, frozen=True):
    """This node seals the packets of a transport under an epoch from now on."""

    transport: str
    epoch: int


class WireKeyMissing(Event, frozen=True):
    """A key of a sealed transport is missing; at most one each ten seconds of each node.

    ``node_id`` 0: this node's own keys: it sends nothing (`required`), or plain packets until its
    first epoch is active (`optional`). Else packets of that node, from ``address``, are refused.
    """

    transport: str
    node_id: int
    epoch: int
    address: str
    reason: str


class WireForgery(Event, frozen=True):
    """A packet at a sealed transport is not authentic, and was refused.

    At most one a second of each agent; the counters TAG_FAILED and PLAIN_REFUSED have all.
    ``node_id``: the node that it claims to be from. ``reason``: ``tag`` (forged, damaged, or sealed
    with another secret), ``plain`` (not sealed, where `secure: required` is set).
    """

    transport: str
    node_id: int
    address: str
    reason: str


class ForeignPlatform(Event, frozen=True):
    """A node of another platform sends to this platform's group and port: its packets are refused.

    Once for each such node; the counter FOREIGN_PLATFORM has all. Give one of the platforms another
    `group` or `port`; or, to make one platform of them, the same `platform` (see docs/TUNING.md).
    """

    transport: str
    node: str
    platform: str
    address: str


class SetupNotUnderstood(Event, frozen=True):
    """A publisher on another node uses a field of a level that this engine does not read.

    Its session is refused: nothing of it is delivered here. Install the version of that node here.
    """

    topic: str
    node: str
    session: int
    field: int


class TopicConflict(Event, frozen=True):
    """A peer uses this topic id for another topic, or another packet size or reliability."""

    topic: str
    node: str
    detail: str


class MessagesDropped(Event, frozen=True):
    """A publisher with ``on_full="drop"`` dropped messages since the event before."""

    topic: str
    session: int
    messages: int


class RepliesDropped(Event, frozen=True):
    """Replies that no request of this client waits for, since the event before.

    ``reason``: ``late`` (its request has timed out or was given up), ``foreign`` (it answers none
    of this client's requests), ``lapped`` (they were overwritten before this client read them;
    ``replies`` counts packets then).
    """

    topic: str
    replies: int
    reason: str


class RequestRefused(Event, frozen=True):
    """A responder's handler raised: the requester got the error as its reply."""

    topic: str
    kind: str
    detail: str


class PayloadInvalid(Event, frozen=True):
    """A message of a typed topic could not be decoded to its type, see `tidecast.Topic`.

    ``fate``: ``term`` (given up: a dead letter), ``nak`` (delivered again), ``skip`` (live topics),
    or ``raise`` (the program gets the error).
    """

    topic: str
    subscription: str
    fate: str
    detail: str


class MessagesUnsent(Event, frozen=True):
    """A live publication is gone with messages in its ring that were not sent to other nodes.

    Its topic was deleted or recreated and its writer did not stop; or it was closed and a rate
    limit or a receiver held it back for half a minute, or until the engine stopped; or it lost its
    engine, and was closed before the next one came, or the next one could not continue it.

    A publisher behind a gateway that can never open it again reports the most that may be unsent.
    """

    topic: str
    session: int
    messages: int
    bytes: int


class PublisherUnheard(Event, frozen=True):
    """A publisher's transport sends to no other node: ``mend`` says what to do about it."""

    topic: str
    session: int
    transport: str
    mend: str


class DiskRefused(Event, frozen=True):
    """The disk takes no more records of a durable topic; its publishers' rings fill up."""

    topic: str
    queue: int
    errno: int
    detail: str


class PublisherRefused(Event, frozen=True):
    """No memory here for the ring of a publisher on another node; it is tried again.

    What is durable waits for it. Of other topics a gap tells what history did not keep till then.
    """

    topic: str
    node: str
    session: int
    bytes: int
    detail: str


class PublisherWaits(Event, frozen=True):
    """Another node keeps the queues, and a publisher's transport does not reach it."""

    topic: str
    session: int
    owner: str
    detail: str


class DiskBack(Event, frozen=True):
    """The disk takes a durable topic's records again. Nothing was lost."""

    topic: str


class StorageWaits(Event, frozen=True):
    """The storage of a durable topic takes no records: publishers get no acks.

    Records wait in the log and in publishers' rings; it is tried again, at most each 2 s. Reported
    when the wait begins, then each minute; also to clients that connect meanwhile. ``final``: it is
    not tried again, because another engine writes the topic now.
    """

    topic: str
    detail: str
    final: bool


class StorageBack(Event, frozen=True):
    """The storage of a durable topic takes records again. Nothing was lost."""

    topic: str


class TornTail(Event, frozen=True):
    """Recovery found bytes behind a queue's last sound batch, and set them aside."""

    topic: str
    queue: int
    file: str
    position: int
    bytes: int
    aside: str


class ProducerFenced(Event, frozen=True):
    """A newer session of the same producer has begun; the one before can publish no more."""

    topic: str
    producer: str
    session: int
    epoch: int


class ProducerHole(Event, frozen=True):
    """Some of a producer's sequences ``first`` to ``end``, none acked, will never come.

    A crash left a part of them in the log, and the ring that holds the rest was silent too long.
    """

    topic: str
    producer: str
    first: int
    end: int


class ProducersExpired(Event, frozen=True):
    """Producers of a durable topic were forgotten: what they send again is stored again."""

    topic: str
    producers: int


class RingDrained(Event, frozen=True):
    """An engine that starts found the ring of a publisher and put what it held into the log."""

    topic: str
    session: int
    messages: int


class RingDropped(Event, frozen=True):
    """The rest of a ring whose publisher is gone will not be stored. Nothing of it was acked.

    A newer session of its producer has begun, its sequences leave some out, or its topic is
    deleted. Those from ``first`` on are gone, in ``packets`` packets of the ring. ``reason``:
    fenced, refused, deleted.
    """

    topic: str
    producer: str
    session: int
    first: int
    packets: int
    reason: str


class RingStranded(Event, frozen=True):
    """A dead engine left unacked messages of a durable topic that this engine does not have.

    The ring stays in ``file``. Once the topic is created, or an engine starts with it, its messages
    are appended; ``tidecast queue orphans`` lists and removes such rings. ``bytes``: of messages.
    """

    topic: str
    producer: str
    session: int
    messages: int
    bytes: int
    file: str


class QueuesTaken(Event, frozen=True):
    """This engine has the lease on a durable topic's queues now."""

    topic: str
    queues: int
    epoch: int


class ConsumerStandsBy(Event, frozen=True):
    """A consumer was opened at an engine that does not have the queues now.

    It gets records once this engine has taken them, from where the subscription is then.
    ``owner``: the node that has them, "": nobody.
    """

    topic: str
    subscription: str
    owner: str


class QueuesReleased(Event, frozen=True):
    """This engine has flushed a durable topic's queues and given their lease back."""

    topic: str
    epoch: int


class QueuesLost(Event, frozen=True):
    """This engine was fenced off a durable topic's queues: its lease ended, or is another's.

    What was not durable is in the publishers' rings, and goes to the next owner.
    """

    topic: str
    epoch: int
    newest: int
    reason: str


class SegmentsDeleted(Event, frozen=True):
    """Retention deleted the oldest segments of a queue."""

    topic: str
    queue: int
    segments: int
    earliest_token: int


class EngineFault(Event, frozen=True):
    """A part of an engine has an error that is a fault of Tidecast. The engine continues.

    ``agent``: the conductor, or the thread that it came from (``sender-multicast``). What it was to
    do is not done; the traceback is in the engine's log. ``faults``: how many there were since the
    engine began; a fault that repeats is reported each ten seconds.
    """

    node: str
    problem: str
    faults: int
    agent: str = "conductor"


class EngineLost(Event, frozen=True):
    """The engine went away; the client reconnects on its own."""

    reason: str


class EngineBack(Event, frozen=True):
    """The client is connected to an engine again; publications and subscriptions are restored."""

    incarnation: int


class RecordsGone(Event, frozen=True):
    """Retention deleted records [first, end) of a queue before a subscription came to them."""

    topic: str
    queue: int
    first: int
    end: int
    subscription: str


class QueueUnreadable(Event, frozen=True):
    """A queue cannot be read at a token; it is tried again every second."""

    topic: str
    queue: int
    token: int
    detail: str


class MessageDropped(Event, frozen=True):
    """A record was delivered too often, or refused, and its subscription has no dead letters."""

    topic: str
    queue: int
    token: int
    subscription: str
    attempts: int
    reason: str


class MessageDead(Event, frozen=True):
    """A record was delivered too often, or refused: it lies in the dead-letter topic."""

    topic: str
    queue: int
    token: int
    subscription: str
    attempts: int
    reason: str
    dead_letter: str


class ConsumerExpelled(Event, frozen=True):
    """A consumer gets nothing more: its subscription is deleted, or it damaged its ring."""

    topic: str
    subscription: str
    consumer_id: int
    reason: str


class ConsumerLeft(Event, frozen=True):
    """The client of a consumer died, or left without closing it: others get what it had.

    ``members``: how many the subscription has now.
    """

    topic: str
    subscription: str
    consumer_id: int
    members: int


class SubscriptionDamaged(Event, frozen=True):
    """The file of a subscription is not sound: it was set aside, and its positions are not known.

    The subscription is not served, and retention holds what it may need, until the file is restored
    or the subscription deleted. Clients that connect later get the event, too. ``topic``: pattern.
    """

    file: str
    topic: str = ""
    subscription: str = ""


class FileDamaged(Event, frozen=True):
    """A file beside a queue's log is not sound: what it said is not used. ``queue`` -1: of all."""

    topic: str
    queue: int
    file: str
    detail: str = ""


class DeliveryPaused(Event, frozen=True):
    """Delivery was paused, is resumed, or is paused still where an engine takes the queues up.

    Of a topic (or pattern), of one queue (-1: all), for one subscription ("": all).
    """

    topic: str
    queue: int
    subscription: str
    paused: bool


class SubscriptionMoved(Event, frozen=True):
    """Somebody moved a subscription by `seek`; ``forgotten`` were outstanding: they may come again.

    ``records``: passed over; below 0: they come again.
    """

    topic: str
    subscription: str
    records: int
    forgotten: int


class RecordsCancelled(Event, frozen=True):
    """Records of a queue were cancelled before their delivery time: they are never delivered."""

    topic: str
    queue: int
    subscription: str
    records: int


class DeadLetterNotStored(Event, frozen=True):
    """A record that is given up cannot be stored in the dead-letter topic; that is tried again."""

    topic: str
    queue: int
    token: int
    subscription: str
    dead_letter: str
    detail: str


class PositionsNotSaved(Event, frozen=True):
    """How far a subscription is could not be saved: after a crash more comes again."""

    pattern: str
    name: str
    detail: str


class GatewayLost(Event, frozen=True):
    """The connection to a gateway broke; it is made again, and what was published waits."""

    reason: str


class GatewayBack(Event, frozen=True):
    """The gateway is reached again. Not ``resumed``: it had forgotten the session.

    Then batches that were under way are published again and may arrive twice.
    """

    resumed: bool


class PublicationEnded(Event, frozen=True):
    """A publisher cannot continue: why, as the error that its next call raises."""

    topic: str
    session: int
    code: str
    reason: str


class SubscriptionEnded(Event, frozen=True, kw_only=True):
    """A live subscription cannot continue: why, as the error that its iterator raises.

    Its topic was deleted, say. What had arrived before is still read.
    """

    subscription_id: int
    pattern: str
    code: str
    reason: str


class AccessDenied(Event, frozen=True):
    """A client lacks the right to do what it asked for, or showed no valid token (``key`` "").

    Of clients without a token one event a second is reported; ``unreported``: how many others there
    were since the event before. The counter has all.
    """

    key: str
    client: str
    right: str
    topic: str
    unreported: int = 0


class ConsumerRejoined(Event, frozen=True):
    """A remote consumer joined its subscription again: its gateway had given its place up.

    What it was delivered and had not settled comes again.
    """

    topic: str
    subscription: str
    consumer_id: int


class AdapterWaits(Event, frozen=True):
    """The system of an adapter cannot be reached: the engine tries again, at most each 2 s.

    Reported when the wait begins, then each minute with the newest failure; also to clients that
    connect meanwhile. Subscriptions to the topic get its records when the adapter is open.
    """

    topic: str
    adapter: str
    detail: str


class AdapterOpened(Event, frozen=True):
    """An adapter that waited for its system is open, or its topic has more queues than before."""

    topic: str
    adapter: str
    queues: int
    added: int


class KafkaClientRefused(Event, frozen=True):
    """The Kafka endpoint refused a client, or ended its connection.

    ``reason``: ``connections`` (too many, in all or of the host), ``protocol`` (bytes that are no
    request, an API or version that is not served), ``silent`` (no request, half a request, or an
    answer that is not read), ``mechanism`` (a login other than PLAIN), ``transactions``. At most
    one a second; ``unreported``: refusals since the event before.
    """

    client: str
    reason: str
    detail: str
    unreported: int = 0


class KafkaGroupExpired(Event, frozen=True):
    """A Kafka consumer group had no members for too long: its offsets were deleted."""

    group: str
    offsets: int


class KafkaOffsetsNotStored(Event, frozen=True):
    """The disk refused offsets of a Kafka consumer group; its clients commit again."""

    group: str
    reason: str


class KafkaThrottled(Event, frozen=True):
    """Kafka's clients wait for room. At most one a minute; the counter `THROTTLED` has all.

    ``reason``: ``answers`` (clients read their answers too slowly), ``archiver`` (producers are
    faster than the disk), ``requests`` (all together have sent more than may wait), ``items``
    (their requests name more topics, partitions and others than may be under way).
    """

    reason: str


def field_of(event: Event, name: str) -> str:
    """A field that some events have, as ``topic``, ``pattern``, ``reason``; "": not this event."""
    return str(getattr(event, name, ""))


AnyEvent = (
    ImageAvailable | ImageGone | Gap | PeerJoined | PeerTimeout | ReceiverJoined | ReceiverTimeout
    | PeerSilent | PeerHeard | PathNarrow | SendsRefused | SubscriberEvicted | StaleIncarnation
    | NodeConflict | ForeignPackets | ForeignPlatform | SetupNotUnderstood | TopicConflict
    | WireKeyActive | WireKeyMissing | WireForgery | MessagesDropped | RepliesDropped
    | RequestRefused | PayloadInvalid | MessagesUnsent | PublisherUnheard | DiskRefused | DiskBack
    | TornTail | ProducerFenced | ProducersExpired | RingDrained | RingDropped | RingStranded
    | SegmentsDeleted | QueuesTaken | QueuesReleased | QueuesLost | ConsumerStandsBy
    | PublisherRefused | PublisherWaits | ProducerHole | RecordsGone | QueueUnreadable
    | MessageDropped | MessageDead | ConsumerExpelled | SubscriptionDamaged | FileDamaged
    | DeadLetterNotStored | PositionsNotSaved | DeliveryPaused | SubscriptionMoved
    | RecordsCancelled | EngineFault | EngineLost | EngineBack | GatewayLost | GatewayBack
    | ConsumerRejoined | AccessDenied | PublicationEnded | ConsumerLeft | SubscriptionEnded
    | AdapterWaits | AdapterOpened | StorageWaits | StorageBack | KafkaClientRefused
    | KafkaGroupExpired | KafkaOffsetsNotStored | KafkaThrottled
)  # fmt: skip
