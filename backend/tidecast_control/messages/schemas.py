"""Messages: browse, publish. Payloads need the right `read_payloads` on the topic."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tidecast.client.core.metadata import DELAY_S_MAX
from tidecast.queues.filters.where import TEXT_CHARS_MAX
from tidecast_control.kit.schemas import Count, Instant, Int64, Model, Short, View

PAYLOAD_BYTES_MAX = 1 << 20
SHOWN_BYTES_MAX = 64 * 1024


class Payload(View):
    """A payload as far as it is shown. ``decoders`` says why each decoder did not fit."""

    size: Count
    encoding: Literal["text", "json", "msgpack", "hex", "withheld"]
    text: str | None = Field(None, description="At most 64 KiB of it, as text or hex")
    value: Any = Field(None, description="Decoded, for json and msgpack")
    truncated: bool = False
    decoders: dict[str, str] = {}


class MessageView(View):
    """One message."""

    topic: str
    node: str
    session: Int64
    queue: Count | None = None
    token: Int64 | None = None
    position: Int64 | None = None
    at: datetime | None = None
    at_ns: Int64 | None = None
    key: str | None = None
    headers: dict[str, Any] = {}
    payload: Payload


class NotSearched(View):
    """A queue or node that a browse could not search."""

    node: str = Field("", description="The engine; empty: no connected engine has the queues")
    queues: list[Count] = Field([], description="Empty: whatever that engine has")
    reason: str


class BrowsePage(View):
    """Messages found, in the order of time. ``withheld``: this caller may not read payloads."""

    topic: str
    messages: list[MessageView]
    scanned: Count
    complete: bool = Field(description="No message follows in this direction")
    next_cursor: str | None = Field(None, description="`cursor` of newer messages")
    previous_cursor: str | None = Field(None, description="`cursor` of older messages; null: none")
    next_token: str | None = Field(None, description="Of one queue: the token to continue at")
    missing: list[NotSearched] = Field([], description="Queues and nodes not searched, and why")
    withheld: bool = False


class ScheduledMessage(MessageView):
    """A message that waits for its delivery time."""

    deliver_at: datetime
    deliver_at_ns: Int64
    subscriptions: list[str] = Field(description="Subscriptions that wait for it")


class ScheduledPage(View):
    """Messages that wait for their delivery time, soonest first; pages by queue and offset."""

    topic: str
    messages: list[ScheduledMessage]
    complete: bool = Field(description="No page follows")
    next_cursor: str | None = Field(None, description="`cursor` of the next page; null: none")
    missing: list[NotSearched] = Field([], description="Queues and nodes not searched, and why")
    withheld: bool = False


class PlaceOfMessage(Model):
    """Where a durable message is."""

    queue: int = Field(ge=0, le=1023)
    token: Annotated[str, Field(pattern=r"^\d{1,18}$")]


class CancelRequest(Model):
    """Which scheduled messages: some by place, or by key and filter, or everything."""

    messages: list[PlaceOfMessage] | None = Field(None, min_length=1, max_length=1000)
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    where: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)] | None = Field(
        None, description='A filter: `headers["kind"] == "reminder" and size < 1000`'
    )
    everything: bool = False
    subscription: Short = Field("", description='For this subscription alone; "" = for all')

    @model_validator(mode="after")
    def _some(self) -> CancelRequest:
        chosen = self.key is not None or self.where is not None
        if (self.messages is not None) + chosen + self.everything != 1:
            raise ValueError("give `messages`, or `key` and `where`, or `everything`")
        return self


class PublishInput(Model):
    """One message to publish, its payload as text, JSON, or hex."""

    text: str | None = Field(None, max_length=PAYLOAD_BYTES_MAX)
    value: Any = None
    hex: str | None = Field(None, max_length=2 * PAYLOAD_BYTES_MAX, pattern=r"^([0-9a-fA-F]{2})*$")
    key: Short | None = None
    headers: dict[str, str] = Field({}, max_length=64)
    node: Short = Field("", description='By which engine; "" = any')
    ack: Literal["none", "engine", "durable"] = Field(
        "engine", description="`durable`: answered when it is on disk; durable topics only"
    )
    deliver_at: Instant | None = Field(
        None,
        description="No subscription gets the record before; durable topics, 365 days ahead",
    )
    deliver_in_s: float | None = Field(
        None, ge=0, le=DELAY_S_MAX, description="The same, in seconds from now; give one of them"
    )


class Published(View):
    """The place of a published message."""

    topic: str
    node: str
    ack: str
    queue: Count | None = None
    token: Int64 | None = None
