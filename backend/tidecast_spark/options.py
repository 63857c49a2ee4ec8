"""Options of the source and the sink, checked on the driver before any task starts."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidecast.config.suggestions import near
from tidecast.config.topology import TOPIC_NAME, default_data_dir
from tidecast.errors import ConfigError, NotFound
from tidecast_spark.catalogue import Catalogue, FileCatalogue, GatewayCatalogue
from tidecast_spark.parts import ALL_ROWS, KEYS_MAX, TIME_END_NS, TIME_MIN_NS, RowFilter

TOPICS_SHOWN_MAX = 20
ROWS_MAX = 1 << 40
PARTITIONS_MAX = 100_000
EARLIEST, LATEST = -2, -1
"""In JSON offsets, as Kafka's source has them."""

Positions = dict[str, dict[str, int]]
"""topic -> queue (as text, for JSON) -> token."""

_SPARK_OWN = frozenset(("checkpointlocation", "path", "queryname", "outputmode"))


@dataclass(frozen=True)
class Where:
    """A position: `earliest`, `latest`, a time in ns, or tokens by topic and queue."""

    kind: str
    time_ns: int = 0
    tokens: Positions | None = None


@dataclass(frozen=True)
class SourceOptions:
    """All options of the source, as values."""

    data_dir: Path
    topics: tuple[str, ...]
    pattern: str
    starting: Where
    ending: Where
    records_per_trigger: int
    partitions_min: int
    fail_on_data_loss: bool
    headers: str
    skip_corrupt: bool
    bad_records_path: str
    rows: RowFilter = ALL_ROWS
    queues: frozenset[int] | None = None
    push_filters: bool = False
    servers: str = ""
    token: str = field(default="", repr=False)


def topics_now(options: SourceOptions, catalogue: Catalogue) -> list[str]:
    """The topics to read, those of a pattern as they are now."""
    if not options.pattern:
        return list(options.topics)
    return [t for t in catalogue.topics() if fnmatch.fnmatchcase(t, options.pattern)]


def _problem(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"option {name}: {value!r}: {allowed}")


def _choice(name: str, value: str, allowed: Mapping[str, Any]) -> Any:
    if value.lower() not in allowed:
        raise _problem(name, value, f"allowed: {', '.join(allowed)}")
    return allowed[value.lower()]


_BOOL = {"true": True, "false": False}


def _number(name: str, value: str, at_most: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if not 1 <= number <= at_most:
        raise _problem(name, value, f"allowed: 1 to {at_most}")
    return number


def parse_time_ns(text: str) -> int | None:
    """ISO-8601, UTC unless it says otherwise, as ns since 1970; None when it is no such time."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    whole = int(when.replace(microsecond=0).timestamp())
    return (whole * 1_000_000 + when.microsecond) * 1000


_OFFSETS = (
    "allowed: earliest, latest, a time as 2026-01-31T12:00:00Z, or JSON of tokens as "
    '{"topic": {"0": 17, "1": -2}} with -2 for earliest and -1 for latest'
)


def parse_where(name: str, text: str, topics: Iterable[str], allowed: tuple[str, ...]) -> Where:
    """The value of ``startingOffsets`` or ``endingOffsets``. Raises ConfigError."""
    if text.lower() in ("earliest", "latest"):
        if text.lower() not in allowed:
            raise _problem(name, text, _OFFSETS.replace("earliest, latest", ", ".join(allowed)))
        return Where(text.lower())
    time_ns = parse_time_ns(text)
    if time_ns is not None:
        return Where("time", time_ns)
    try:
        found = json.loads(text)
    except ValueError:
        raise _problem(name, text, _OFFSETS) from None
    return Where("tokens", tokens=_positions(name, text, found, list(topics)))


def _positions(name: str, text: str, found: Any, topics: list[str]) -> Positions:
    if not isinstance(found, dict) or not found:
        raise _problem(name, text, _OFFSETS)
    if len(topics) == 1 and all(isinstance(v, int) for v in found.values()):
        found = {topics[0]: found}  # tokens by queue alone
    positions: Positions = {}
    for topic, queues in found.items():
        if topics and topic not in topics:
            raise _problem(name, text, f"{topic} is not a topic of this read: {', '.join(topics)}")
        if not isinstance(queues, dict):
            raise _problem(name, text, _OFFSETS)
        positions[topic] = {}
        for queue, token in queues.items():
            whole = isinstance(token, int) and not isinstance(token, bool)
            if not queue.isdecimal() or not whole or not -2 <= token < 1 << 62:
                raise _problem(name, text, _OFFSETS)
            positions[topic][queue] = token
    return positions


def _time(name: str, value: str) -> int:
    found = parse_time_ns(value)
    if found is None:
        raise _problem(name, value, "allowed: a time as 2026-01-31T12:00:00Z")
    return found


def _keys(name: str, value: str) -> tuple[bytes, ...]:
    keys = tuple(sorted({key.encode() for key in value.split(",")}))
    if len(keys) > KEYS_MAX:
        raise _problem(name, value, f"{len(keys)} keys: at most {KEYS_MAX}")
    return keys


def _queues(name: str, value: str) -> frozenset[int]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise _problem(name, value, "allowed: indexes of queues as 0,3,7")
    return frozenset(int(part) for part in parts)


def _check_names(
    given: Mapping[str, str], allowed: Mapping[str, str], who: str
) -> dict[str, tuple[str, str]]:
    """Lower-cased option -> (its proper name, value). Raises ConfigError for an unknown one."""
    proper = {name.lower(): name for name in allowed}
    found = {}
    for name, value in given.items():
        low = name.lower()
        if low in _SPARK_OWN or low.startswith(("__", "spark.")):
            continue
        if low not in proper:
            raise ConfigError(
                f"option {name}: the {who} has no such option{near(name, allowed)}: "
                f"{', '.join(allowed)}"
            )
        found[low] = (proper[low], value)
    return found


SOURCE_OPTIONS: dict[str, str] = {
    "dataDir": "directory of the engine on this host; default: TIDECAST_DATA_DIR, else the user's",
    "servers": "a gateway, tidecast://HOST:PORT, instead of dataDir: reads from any host",
    "token": "key or token that the gateway asks for; the key needs the right read_payloads",
    "topic": "one topic or several, separated by commas",
    "topicPattern": "topics by a pattern with * and ?, as orders.*; new ones are found",
    "startingOffsets": "where to begin: earliest (default), latest (streams only), a time, or "
    "JSON of tokens",
    "endingOffsets": "batch only, where to end: latest (default), a time, or JSON of tokens",
    "maxRecordsPerTrigger": "records a trigger, at most",
    "minPartitions": "tasks to cut a read into, if it is large enough; default: the cores here",
    "failOnDataLoss": "true (default): stop when retention overtook the read; false: continue",
    "includeHeaders": "false (default), true (a map of text to bytes), or raw (MessagePack bytes)",
    "mode": "failfast (default): stop at a corrupt batch; skip: leave it out and count it",
    "keys": "only records with one of these keys, separated by commas",
    "queues": "only these queues, separated by commas",
    "timestampFrom": "only records not older than this time",
    "timestampUntil": "only records older than this time",
    "pushFilters": "true: take over Spark's filters; see the note in docs/SPARK.md; default: false",
    "badRecordsPath": "directory that gets a file for each corrupt batch that was left out",
}
SINK_OPTIONS: dict[str, str] = {
    "dataDir": "directory of the engine on this host; default: TIDECAST_DATA_DIR, else the user's",
    "servers": "a gateway, tidecast://HOST:PORT, instead of dataDir; then stagingDir is needed",
    "topic": "where rows without a `topic` column go",
    "stagingDir": "directory that all tasks and the driver share; default: in the checkpoint",
    "reservedHeaders": "refuse or drop headers whose names the engine reserves; default refuse",
    "commit": "driver (default): the driver publishes a batch as a whole; partitions: each task "
    "publishes its rows when it has all of them",
    "otherRows": "commit=partitions, for a repeated task with other values: refuse (default), or "
    "keep the rows of the first attempt",
    "writeId": "batch only: a name that makes a repeated write to the same topic one write",
    "rate": "rows a second to publish at most; 0 (default): as fast as it goes",
    "token": "key or token that the gateway asks for, or an engine that was started with one",
}


def _data_dir(value: str | None) -> Path:
    data_dir = Path(value).expanduser() if value else default_data_dir()
    if not data_dir.is_dir():
        raise _problem("dataDir", str(data_dir), "must be an engine's data directory on this host")
    return data_dir.absolute()


def _topics(catalogue: Catalogue, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    known = catalogue.topics()
    for name in names:
        if not TOPIC_NAME.fullmatch(name):
            raise _problem("topic", name, "names have letters, digits, _ - and dots between them")
        if name not in known:
            some = ", ".join(known[:TOPICS_SHOWN_MAX]) or "none"
            left = len(known) - TOPICS_SHOWN_MAX
            more = f" and {left} more" if left > 0 else ""
            raise NotFound(
                f"option topic: {name!r}: no durable topic {catalogue.whose}{near(name, known)}; "
                f"known: {some}{more}"
            )
    return names


def _catalogue(found: Mapping[str, tuple[str, str]]) -> tuple[Catalogue, dict[str, Any]]:
    """Where to read from, and the options that say so."""
    servers, token = (found.get(name, ("", ""))[1] for name in ("servers", "token"))
    if servers:
        _check_servers(servers, found)
        values = {"servers": servers, "token": token, "data_dir": Path()}
        return GatewayCatalogue(servers, token), values
    if token:
        raise ConfigError("option token: it is for a gateway: give servers, too")
    data_dir = _data_dir(found.get("datadir", ("", ""))[1])
    return FileCatalogue(data_dir), {"data_dir": data_dir}


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check the options of a read. Raises ConfigError, NotFound, AuthError."""
    found = _check_names(given, SOURCE_OPTIONS, "source")

    def get(name: str, read: Callable[[str, str], Any], default: Any) -> Any:
        proper, value = found.get(name.lower(), (name, None))
        return default if value is None else read(proper, value)

    catalogue, place = _catalogue(found)
    named, pattern = "topic" in found, get("topicPattern", lambda _, v: v, "")
    if named == bool(pattern):
        raise ConfigError("option topic: give exactly one of topic and topicPattern")
    topics = _topics(catalogue, found["topic"][1]) if named else ()
    if (
        pattern
        and not streaming
        and not any(fnmatch.fnmatchcase(t, pattern) for t in catalogue.topics())
    ):
        raise NotFound(
            f"option topicPattern: {pattern!r}: no durable topic {catalogue.whose} matches"
        )
    if streaming and "endingoffsets" in found:
        raise ConfigError("option endingOffsets: only batch reads end; use Trigger.AvailableNow")
    first = ("earliest", "latest") if streaming else ("earliest",)
    return SourceOptions(
        **place,
        topics=topics,
        pattern=pattern,
        starting=get(
            "startingOffsets",
            lambda n, v: parse_where(n, v, topics, first),
            Where("earliest"),
        ),
        ending=get(
            "endingOffsets", lambda n, v: parse_where(n, v, topics, ("latest",)), Where("latest")
        ),
        records_per_trigger=get("maxRecordsPerTrigger", lambda n, v: _number(n, v, ROWS_MAX), 0),
        partitions_min=get("minPartitions", lambda n, v: _number(n, v, PARTITIONS_MAX), 0),
        fail_on_data_loss=get("failOnDataLoss", lambda n, v: _choice(n, v, _BOOL), True),
        headers=get(
            "includeHeaders",
            lambda n, v: _choice(n, v, {"false": "no", "true": "map", "raw": "raw"}),
            "no",
        ),
        skip_corrupt=get(
            "mode", lambda n, v: _choice(n, v, {"failfast": False, "skip": True}), False
        ),
        bad_records_path=get("badRecordsPath", lambda _, v: v, ""),
        rows=RowFilter(
            time_min_ns=get("timestampFrom", _time, TIME_MIN_NS),
            time_end_ns=get("timestampUntil", _time, TIME_END_NS),
            keys=get("keys", _keys, None),
        ),
        queues=get("queues", _queues, None),
        push_filters=get("pushFilters", lambda n, v: _choice(n, v, _BOOL), False),
    )


@dataclass(frozen=True)
class SinkOptions:
    """All options of the sink, as values. ``staging_dir`` empty: not given."""

    data_dir: Path
    topic: str
    staging_dir: Path
    write_id: str
    rate: int
    token: str
    servers: str = ""
    drop_reserved: bool = False
    by_partitions: bool = False
    keep_rows: bool = False

    @property
    def url(self) -> str:
        """Where to publish to."""
        return self.servers or f"tidecast://{self.data_dir}"


_SERVERS = re.compile(r"tidecast(\+tls)?://[^\s/:]+:\d{1,5}/?")


def _check_servers(servers: str, found: Mapping[str, tuple[str, str]]) -> None:
    if not _SERVERS.fullmatch(servers):
        raise _problem("servers", servers, "allowed: tidecast://HOST:PORT of one gateway")
    if "datadir" in found:
        raise ConfigError("option servers: give either servers or dataDir")


def _rate(value: str) -> int:
    return 0 if value.strip() == "0" else _number("rate", value, ROWS_MAX)


def _commit(found: Mapping[str, tuple[str, str]]) -> dict[str, bool]:
    """The options of the publisher: the driver, or its tasks. Raises ConfigError."""

    def get(name: str, allowed: Mapping[str, bool]) -> bool:
        given = found.get(name.lower())
        return False if given is None else bool(_choice(name, given[1], allowed))

    by_partitions = get("commit", {"driver": False, "partitions": True})
    if "otherrows" in found and not by_partitions:
        raise ConfigError("option otherRows: it is for commit=partitions")
    if by_partitions and _rate(found.get("rate", ("", "0"))[1]):
        raise ConfigError(
            "option rate: it is for commit=driver: with commit=partitions tasks publish side by "
            "side. Limit the topic (tidecast topic edit --rate-bytes-per-s)"
        )
    keep = get("otherRows", {"refuse": False, "keep": True})
    return {"by_partitions": by_partitions, "keep_rows": keep}


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises ConfigError, NotFound, AuthError."""
    found = _check_names(given, SINK_OPTIONS, "sink")
    servers = found.get("servers", ("", ""))[1]
    if servers:
        _check_servers(servers, found)
    data_dir = Path() if servers else _data_dir(found.get("datadir", ("", ""))[1])
    topic = found.get("topic", ("", ""))[1]
    if topic:
        if "," in topic:
            raise _problem("topic", topic, "one topic; for several give the rows a column `topic`")
        if not servers:
            _topics(FileCatalogue(data_dir), topic)
        elif not TOPIC_NAME.fullmatch(topic):
            raise _problem("topic", topic, "names have letters, digits, _ - and dots between them")
    return SinkOptions(
        data_dir=data_dir,
        topic=topic,
        staging_dir=Path(found.get("stagingdir", ("", ""))[1]),
        write_id=found.get("writeid", ("", ""))[1],
        rate=_rate(found.get("rate", ("", "0"))[1]),
        token=found.get("token", ("", ""))[1],
        servers=servers,
        drop_reserved=_choice(
            "reservedHeaders",
            found.get("reservedheaders", ("", "refuse"))[1],
            {"refuse": False, "drop": True},
        ),
        **_commit(found),
    )
