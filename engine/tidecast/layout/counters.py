"""Counters in shared memory: one file a node, one row an entity, one documented column a counter.

A row has one writer (an agent), so counting is a plain add. Readers (`tidecast top`, metrics) map
the file and read whenever they like. The file: header page, `ROWS_MAX` descriptions of
`ROW_INFO_BYTES`, then `ROWS_MAX` x `COLUMNS` int64.
"""

from __future__ import annotations

from enum import IntEnum, unique

from tidecast.layout.fields import Field, Layout

MAGIC = 0x32544E5543434454  # "TDCCUNT2"
ROWS_MAX, COLUMNS, ROW_INFO_BYTES = 8192, 80, 320
HEADER_BYTES = 4096
INFO_AT = HEADER_BYTES
VALUES_AT = INFO_AT + ROWS_MAX * ROW_INFO_BYTES
FILE_BYTES = VALUES_AT + ROWS_MAX * COLUMNS * 8

(
    ROW_FREE,
    ROW_NODE,
    ROW_SENDER,
    ROW_RECEIVER,
    ROW_TRANSPORT,
    ROW_PUBLICATION,
    ROW_IMAGE,
    ROW_QUEUE,
    ROW_SUBSCRIPTION,
    ROW_GATEWAY,
    ROW_KAFKA,
    ROW_KAFKA_API,
    ROW_ADAPTER,
    ROW_KEY,
) = range(14)
ROW_KIND_NAMES = (
    "free", "node", "sender", "receiver", "transport", "publication", "image", "queue",
    "subscription", "gateway", "kafka", "kafka_api", "adapter", "key",
)  # fmt: skip
"""Rows of queues have the columns of `QueueCounter`, the gateway's those of `GatewayCounter`, the
node's those of `NodeCounter`, transports' those of `TransportCounter`, the Kafka endpoint's those
of `KafkaCounter`, its APIs' those of `KafkaApiCounter`, adapters' those of `AdapterCounter`, keys'
those of `KeyCounter`, rows of subscriptions columns of their own."""

ROW_INFO = Layout(
    "counter row description",
    ROW_INFO_BYTES,
    (
        Field(
            "kind",
            0,
            4,
            "free 0, node 1, sender 2, receiver 3, transport 4, publication 5, "
            "image 6, queue 7, subscription 8, gateway 9, kafka 10, kafka_api 11, "
            "adapter 12, key 13",
        ),
        Field("session", 4, 4, "session id"),
        Field("peer", 8, 4, "node id of the publisher (image)"),
        Field("channel", 12, 4, "control 0, ordinary 1, large 2"),
        Field("created_ns", 16, 8, "ns since 1970"),
        Field("name_len", 24, 4, "bytes of the name"),
        Field("detail_len", 28, 4, "bytes of the detail"),
        Field("name", 32, 200, "topic or transport, UTF-8"),
        Field("detail", 232, 88, "node name, address, UTF-8"),
    ),
)


@unique
class Counter(IntEnum):
    """Every counter and gauge. Gauges are marked; all others only grow."""

    PACKETS_SENT = 0
    """DATA packets sent for the first time."""
    BYTES_SENT = 1
    """Bytes of those packets, headers included."""
    PACKETS_RESENT = 2
    """DATA packets sent again because of a NAK."""
    BYTES_RESENT = 3
    """Bytes of those packets."""
    NAKS_RECEIVED = 4
    """NAK packets that reached the publication."""
    NAK_PACKETS_ASKED = 5
    """Packets those NAKs named."""
    NAKS_SUPPRESSED = 6
    """Named packets not sent again because they were resent a moment ago."""
    NAKS_TOO_LATE = 7
    """Named packets that history no longer holds; answered with LOST."""
    STATUS_RECEIVED = 8
    """STATUS packets that reached the publication."""
    HEARTBEATS_SENT = 9
    """HEARTBEAT packets, tail-loss probes included."""
    SETUPS_SENT = 10
    """SETUP packets."""
    SYSTEM_CALLS_SENT = 11
    """System calls that sent data."""
    SHORT_SENDS = 12
    """Sends that the kernel refused for the moment (socket buffer full)."""
    SEND_ERRORS = 13
    """Sends that failed otherwise."""
    RATE_LIMITED = 14
    """Times the rate limit held packets back."""
    FLOW_LIMITED = 15
    """Times flow control (a receiver's window) held packets back."""
    RECEIVERS = 16
    """Gauge: receivers of the publication; beyond 128 an estimate from a sample."""
    RECEIVERS_REFUSED = 17
    """STATUS of receivers beyond the table's size, that join too fast, or need not report."""
    RECEIVER_TIMEOUTS = 18
    """Receivers dropped: silent or stuck."""
    HEAD = 19
    """Gauge: next packet the publisher opens."""
    SENT = 20
    """Gauge: next packet to send."""
    SLOWEST_CONSUMED = 21
    """Gauge: next packet that the slowest receiver consumes."""
    SLOTS = 22
    """Gauge: packets the ring holds."""
    PACKETS_RECEIVED = 23
    """DATA packets accepted into an image."""
    BYTES_RECEIVED = 24
    """Bytes of those packets."""
    DUPLICATES = 25
    """DATA packets that were there already."""
    LATE = 26
    """DATA packets before the window or given up on."""
    OVERRUNS = 27
    """DATA packets beyond the receive window."""
    LOSSES = 28
    """Packets found missing."""
    RECOVERED = 29
    """Missing packets that came after all."""
    LOST_FOR_GOOD = 30
    """Missing packets that were given up: a typed Gap."""
    GAP_TABLE_FULL = 31
    """DATA packets refused because too many gaps were open."""
    NAKS_SENT = 32
    """NAK packets sent."""
    NAK_RANGES_SENT = 33
    """Ranges in them."""
    STATUS_SENT = 34
    """STATUS packets sent."""
    HEARTBEATS_RECEIVED = 35
    """HEARTBEAT packets."""
    SETUPS_RECEIVED = 36
    """SETUP packets."""
    HIGHEST = 37
    """Gauge: behind the newest packet seen."""
    CONTIGUOUS = 38
    """Gauge: first packet not yet received."""
    CONSUMED = 39
    """Gauge: first packet the slowest local subscriber still needs."""
    EVICTIONS = 40
    """Local subscribers evicted."""
    DATAGRAMS_RECEIVED = 41
    """Datagrams (GRO bundles count once) read from sockets."""
    INVALID_SHORT = 42
    """Packets shorter than their header says, or than any packet."""
    INVALID_VERSION = 43
    """Packets of another version, or not ours at all."""
    INVALID_TYPE = 44
    """Packets of an unknown type, or of a type that does not belong to this socket."""
    INVALID_FIELD = 45
    """Packets with a field outside its range."""
    FILTERED = 46
    """Packets of topics or sessions without a subscription here."""
    UNKNOWN_SESSION = 47
    """Packets of a wanted topic before their SETUP."""
    STALE_SESSION = 48
    """Packets of sessions that ended or of replaced incarnations."""
    QUARANTINED = 49
    """Packets of quarantined nodes."""
    FAULTS_DROPPED = 50
    """Packets dropped by fault injection."""
    FAULTS_DROPPED_BYTES = 51
    """Bytes of DATA packets dropped or spoiled by fault injection."""
    FAULTS_DUPLICATED = 52
    """Packets duplicated by fault injection."""
    FAULTS_DELAYED = 53
    """Packets delayed or reordered by fault injection."""
    FAULTS_CORRUPTED = 54
    """Packets corrupted by fault injection."""
    DUTY_CYCLES = 55
    """Duty cycles of the agent."""
    DUTY_CYCLE_NS_MAX = 56
    """Gauge: longest duty cycle, ns."""
    PARKS = 57
    """Times the agent slept."""
    EVENTS_LOST = 58
    """Events that did not fit the agent's event buffer (counted elsewhere all the same)."""
    RTT_NS = 59
    """Gauge: smoothed round-trip time, ns."""
    REPAIRS_UNNEEDED = 60
    """Retransmissions of packets that were there already."""
    INVALID_CHECKSUM = 61
    """Packets whose checksum does not match."""
    GSO_REFUSED = 62
    """Times the kernel refused segmentation offload to a target, which gets none for a while."""
    ACKS = 63
    """ACK packets of durable topics: sent (image) or taken (publication)."""
    FOREIGN_ADDRESS = 64
    """Packets of a session, a receiver or an owner that came from another address than its own."""
    NAKS_REFUSED = 65
    """Named packets not sent again: their receiver has them, or asks for too many."""
    ENDS_CORRECTED = 66
    """Ends of sessions taken back: by a lower one, or by DATA from behind the end."""
    SEALED = 67
    """Packets sealed: encrypted and authenticated."""
    OPENED = 68
    """Sealed packets that were authentic and new."""
    TAG_FAILED = 69
    """Sealed packets that are forged or damaged."""
    REPLAYED = 70
    """Sealed packets that came before, or that are older than the replay window."""
    UNKNOWN_KEY = 71
    """Sealed packets of a sender or an epoch that is not known (yet)."""
    PLAIN_REFUSED = 72
    """Plain packets at a transport that requires sealed ones."""
    KEYLESS = 73
    """Packets held back: no key to seal them was ready."""
    INVALID_AREA = 74
    """SETUP packets whose area of further fields is malformed, or has an unknown critical field."""
    BEACONS_SENT = 75
    """HEARTBEAT packets of no publication, one a second to the discovered peers of a transport."""
    BEACONS_RECEIVED = 76
    """HEARTBEAT packets of no publication from other nodes."""
    COMPACTED = 77
    """COMPACT packets: sent instead of DATA (publication), or expanded (image)."""
    BYTES_SAVED = 78
    """Bytes saved by COMPACT packets; of a publication, minus the bytes of its TABLE packets."""
    TABLE_MISSING = 79
    """COMPACT packets whose table is not here: asked for again, and repaired as DATA."""


GAUGES = frozenset(
    {
        Counter.RECEIVERS,
        Counter.HEAD,
        Counter.SENT,
        Counter.SLOWEST_CONSUMED,
        Counter.SLOTS,
        Counter.HIGHEST,
        Counter.CONTIGUOUS,
        Counter.CONSUMED,
        Counter.DUTY_CYCLE_NS_MAX,
        Counter.RTT_NS,
    }
)


@unique
class QueueCounter(IntEnum):
    """Columns of a queue's row, written by the archiver. All but the gauges only grow."""

    RECORDS = 0
    """Records appended."""
    BYTES = 1
    """Bytes appended, headers of batches and records included."""
    BATCHES = 2
    """Batches appended."""
    WRITES = 3
    """Writes that appended them."""
    SYNCS = 4
    """Syncs of the active segment."""
    DUPLICATES = 5
    """Records dropped because their sequence was in the queue already."""
    FENCED = 6
    """Records dropped because a newer epoch of their producer had appended."""
    APPEND_FAILURES = 7
    """Appends that the disk refused; tried again."""
    SYNC_FAILURES = 8
    """Syncs that the disk refused; tried again."""
    MALFORMED = 9
    """Messages that could not be parsed and were dropped."""
    SEGMENTS_ROLLED = 10
    """Segments begun after the first."""
    SEGMENTS_DELETED = 11
    """Segments deleted by retention."""
    PRODUCERS = 12
    """Gauge: producers in the table."""
    PRODUCERS_EXPIRED = 13
    """Producers forgotten: silent for too long, or pushed out by newer ones."""
    NEXT_TOKEN = 14
    """Gauge: token that the next record gets."""
    DURABLE_TOKEN = 15
    """Gauge: all tokens below are durable."""
    EARLIEST_TOKEN = 16
    """Gauge: oldest token kept."""
    LOG_BYTES = 17
    """Gauge: bytes of all segments."""
    SEGMENTS = 18
    """Gauge: segments."""
    TORN_BYTES = 19
    """Bytes set aside by recovery."""
    ERRNO = 20
    """Gauge: errno of the disk while it refuses appends, else 0."""
    OWNER_EPOCH = 21
    """Gauge: epoch of this engine's lease on the queue, 0 while it has none."""
    TAKEN = 22
    """Times this engine took the queue over."""
    HANDED_OVER = 23
    """Times it flushed the queue and gave it back."""
    OWNER_FENCED = 24
    """Times it lost the queue to a newer owner."""
    RINGS_REFUSED = 25
    """Publishers on other nodes that had to wait for memory for their ring."""
    PRODUCER_HOLES = 26
    """Holes in sequences of producers that stay; those of a topic count at its first queue."""
    SESSIONS_FENCED = 27
    """Sessions of producers that a newer one ended, or had replaced; at a topic's first queue."""
    STORED_RECORDS = 28
    """Records that the topic's storage beside the log has acked: Kafka, or JetStream."""
    STORED_BYTES = 29
    """Bytes of them, as they were sent."""
    STORE_FAILURES = 30
    """Failures to store records there; tried again."""
    STORED_TOKEN = 31
    """Gauge: all tokens below are in that storage; 0 without one."""
    STORAGE_WAITS = 32
    """Gauge: 1 while that storage takes nothing, and the topic's publishers wait for it."""


QUEUE_GAUGES = frozenset(
    {
        QueueCounter.PRODUCERS,
        QueueCounter.NEXT_TOKEN,
        QueueCounter.DURABLE_TOKEN,
        QueueCounter.EARLIEST_TOKEN,
        QueueCounter.LOG_BYTES,
        QueueCounter.SEGMENTS,
        QueueCounter.ERRNO,
        QueueCounter.OWNER_EPOCH,
        QueueCounter.STORED_TOKEN,
        QueueCounter.STORAGE_WAITS,
    }
)


@unique
class GatewayCounter(IntEnum):
    """Columns of the gateway's row. All but the gauges only grow."""

    CONNECTIONS = 0
    """Connections that showed a valid token."""
    SESSIONS = 1
    """Gauge: sessions of remote clients, with sessions that wait to be resumed."""
    RESUMED = 2
    """Connections that resumed their session."""
    EXPIRED = 3
    """Sessions that ended because their client did not come back in time."""
    REFUSED = 4
    """Connections refused: no valid token."""
    DENIED = 5
    """Requests refused: the key lacks the right."""
    BAD_FRAMES = 6
    """Connections ended because of a frame that breaks the protocol."""
    MESSAGES_IN = 7
    """Messages that came from clients, repetitions included."""
    BYTES_IN = 8
    """Bytes of batches and acks that came from clients."""
    MESSAGES_OUT = 9
    """Messages of live topics sent to clients."""
    BYTES_OUT = 10
    """Bytes of batches and deliveries sent to clients."""
    GAPS = 11
    """Gaps reported to clients."""
    CREDIT_WAITS = 12
    """Times a subscription waited for its client's credit."""
    CONSUMERS_GIVEN_UP = 13
    """Members of durable subscriptions whose client did not come back in time."""
    KEYS_ENDED = 14
    """Sessions ended because their key was revoked, changed or has expired."""
    OVER_QUOTA = 15
    """Requests refused: the clients of the key have reached its quota."""
    FAULTS = 16
    """Sessions and connections ended by a defect of the gateway; the log says which."""
    BAD_PLACES = 17
    """Places named by clients that subscribe again, at which no message ends."""


GATEWAY_GAUGES = frozenset({GatewayCounter.SESSIONS})


@unique
class KeyCounter(IntEnum):
    """Columns of the row of a key, at gateway, unix socket and Kafka endpoint. All only grow."""

    DENIED = 0
    """Requests of clients with the key that were refused: it lacks the right."""
    OVER_QUOTA = 1
    """Requests that were refused: the clients of the key have reached its quota."""


@unique
class NodeCounter(IntEnum):
    """Columns of the node's own row, written by the conductor. All only grow."""

    ENGINE_FAULTS = 0
    """Jobs and cycles of agents that ended with an unexpected exception."""
    PUBLICATIONS_CUT = 1
    """Publications that ended with unsent messages: see `MessagesUnsent`."""
    PACKETS_CUT = 2
    """Unsent packets of those publications."""
    MESSAGES_CUT = 3
    """Messages in them."""
    BYTES_CUT = 4
    """Bytes of those messages, keys and headers included."""
    EVENTS_LOST = 5
    """Events that a client did not take before newer ones had no room."""
    SETUPS_REFUSED = 6
    """SETUPs of nodes with another address, of replaced nodes, or with a start in the future."""
    PEERS_FORGOTTEN = 7
    """Other nodes that were forgotten because too many were heard of."""
    PEER_EVENTS_DROPPED = 8
    """Events about other nodes that were left out because they came too fast."""
    IMAGES_REFUSED = 9
    """Publishers on other nodes that had to wait for memory for their ring."""
    FOREIGN_PLATFORM = 10
    """SETUPs of nodes of another platform on this group and port: see `ForeignPlatform`."""
    PEERS_REFUSED = 11
    """Lists of peers from the control service that were refused: an address, or too many."""
    PEERS_SILENT = 12
    """Times that a discovered peer was not heard any more: see `PeerSilent`."""


@unique
class TransportCounter(IntEnum):
    """Columns of a UDP transport's row, written by the conductor. All but the gauges only grow."""

    PATH_MTU = 0
    """Gauge: bytes of the largest IP packet that reaches all targets in one piece; 0: not known."""
    PACKET_BYTES = 1
    """Gauge: bytes of the largest IP packet that the transport sends."""
    TARGETS_CUT = 2
    """Gauge: targets whose path is narrower than that, so that packets become IP fragments."""
    SENDS_TOO_LONG = 3
    """Sends that the kernel refused because they were longer than the path carries (EMSGSIZE)."""
    SENDS_REFUSED = 4
    """Sends that the kernel refused for another reason: no route, a firewall; no full buffer."""


TRANSPORT_GAUGES = frozenset(
    {TransportCounter.PATH_MTU, TransportCounter.PACKET_BYTES, TransportCounter.TARGETS_CUT}
)


@unique
class KafkaCounter(IntEnum):
    """Columns of the Kafka endpoint's row. All but the gauges only grow."""

    CONNECTIONS = 0
    """Connections that were accepted."""
    OPEN = 1
    """Gauge: connections that are open."""
    CONNECTIONS_REFUSED = 2
    """Connections refused: there were too many, in all or of one host."""
    CONNECTIONS_SILENT = 3
    """Connections ended: the client sent nothing or half a request, or read no answer."""
    LOGINS_REFUSED = 4
    """Logins refused: no valid key, or another mechanism than PLAIN."""
    DENIED = 5
    """Requests, or parts of them, refused: the key lacks the right."""
    BAD_REQUESTS = 6
    """Connections ended because of bytes that are no request."""
    VERSIONS_REFUSED = 7
    """Requests in a version that is not served."""
    THROTTLED = 8
    """Times a request waited for room: of answers or requests under way, or of the archiver's."""
    RECORDS_IN = 9
    """Records that were appended."""
    BYTES_IN = 10
    """Bytes of requests."""
    BYTES_OUT = 11
    """Bytes of answers."""
    BYTES_FETCHED = 12
    """Bytes of record batches in those answers."""
    BATCHES_REFUSED = 13
    """Record batches that were refused."""
    BATCHES_DUPLICATE = 14
    """Record batches that a producer sent again, and that were stored already."""
    READS_FAILED = 15
    """Reads of a queue that the disk refused, or whose bytes were damaged."""
    OFFSETS_COMMITTED = 16
    """Offsets that groups committed."""
    COMMITS_FAILED = 17
    """Commits, and deletions of offsets, that the disk refused."""
    GROUPS = 18
    """Gauge: groups with members."""
    MEMBERS = 19
    """Gauge: members of those groups."""
    REBALANCES = 20
    """Rebalances of groups."""
    MEMBERS_EXPIRED = 21
    """Members that were silent for their session's time."""
    GROUPS_EXPIRED = 22
    """Groups without members whose offsets were deleted."""
    KEYS_ENDED = 23
    """Connections ended because their key was revoked, changed or has expired."""
    FAULTS = 24
    """Connections ended by a defect of the endpoint; the log says which."""
    BYTES_CACHED = 25
    """Bytes of record batches in answers that were in memory."""
    BLOCKS_READ = 26
    """Blocks of a queue that were read from its log, and made into record batches."""
    CACHE_BYTES = 27
    """Gauge: bytes of the blocks of record batches that are kept in memory."""
    FETCHES_PACED = 28
    """Answers to Fetch that waited for room in the queue of their client."""
    FETCHES_CUT_SHORT = 29
    """Waits of a Fetch cut short: it left out a partition in which there is more."""


KAFKA_GAUGES = frozenset(
    {KafkaCounter.OPEN, KafkaCounter.GROUPS, KafkaCounter.MEMBERS, KafkaCounter.CACHE_BYTES}
)


@unique
class KafkaApiCounter(IntEnum):
    """Columns of one API of the Kafka endpoint, from its first request on. All only grow."""

    REQUESTS = 0
    """Requests that were read."""
    ERRORS = 1
    """Error codes in answers, except codes that ask members to join again."""
    BYTES_IN = 2
    """Bytes of the requests."""
    BYTES_OUT = 3
    """Bytes of the answers."""


@unique
class AdapterCounter(IntEnum):
    """Columns of an adapter's row, by the topic that it is. All but the gauges only grow.

    FETCHES to LAG stay 0 for an adapter that does not count.
    """

    QUEUES = 0
    """Gauge: queues that the engine reads."""
    WAITING = 1
    """Gauge: 1 while its system cannot be reached and the adapter is not open, else 0."""
    FETCHES = 2
    """Answers of its system that brought records."""
    RECORDS = 3
    """Records in them."""
    BYTES = 4
    """Bytes of those answers' record batches, as they were sent."""
    ERRORS = 5
    """Requests for records that failed; they are tried again."""
    RECONNECTS = 6
    """Connections that replaced a lost one."""
    LAG = 7
    """Gauge: offsets from the last record read to the newest known end, over all queues."""
    LEFT_OUT = 8
    """Records that were passed because they are too large, or otherwise not to be held."""


ADAPTER_GAUGES = frozenset({AdapterCounter.QUEUES, AdapterCounter.WAITING, AdapterCounter.LAG})


COLUMNS_OF: dict[str, type[IntEnum]] = {
    "node": NodeCounter,
    "transport": TransportCounter,
    "queue": QueueCounter,
    "gateway": GatewayCounter,
    "kafka": KafkaCounter,
    "kafka_api": KafkaApiCounter,
    "adapter": AdapterCounter,
    "key": KeyCounter,
}
"""Columns of kinds of rows that have columns of their own."""
