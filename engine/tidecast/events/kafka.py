"""Events of the Kafka endpoint."""

from __future__ import annotations

from tidecast.events.base import Event


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


KafkaEvent = KafkaClientRefused | KafkaGroupExpired | KafkaOffsetsNotStored | KafkaThrottled
