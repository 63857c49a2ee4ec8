"""Files of a queue's log: segments of batches of records, and their sparse index. Little endian.

A queue is a directory; each segment is named by the token of its first record, 20 digits, ``.log``,
with its sparse index beside it (``.index``). A batch holds records of one producer, has contiguous
tokens, and is written with one call. Bytes behind the last sound batch are a torn write.
"""

from __future__ import annotations

from tidecast.layout.fields import Field, Layout

SEGMENT_MAGIC = 0x314D474553434454  # "TDCSEGM1", little endian
INDEX_MAGIC = 0x3158444E49434454  # "TDCINDX1", little endian
SEGMENT_VERSION = 1

# --- segment header -----------------------------------------------------------------------------
SEGMENT_HEADER_BYTES = 64
(
    SEG_MAGIC_AT,
    SEG_VERSION_AT,
    SEG_QUEUE_AT,
    SEG_BASE_TOKEN_AT,
    SEG_CREATED_AT,
    SEG_TOPIC_AT,
    SEG_CRC_AT,
) = 0, 8, 12, 16, 24, 32, 60

SEGMENT_HEADER = Layout(
    "segment header",
    SEGMENT_HEADER_BYTES,
    (
        Field("magic", SEG_MAGIC_AT, 8, '"TDCSEGM1"; in an index "TDCINDX1"'),
        Field("version", SEG_VERSION_AT, 4, f"always {SEGMENT_VERSION}"),
        Field("queue", SEG_QUEUE_AT, 4, "index of the queue in its topic"),
        Field("base_token", SEG_BASE_TOKEN_AT, 8, "token of the first record"),
        Field("created", SEG_CREATED_AT, 8, "ns since 1970"),
        Field("topic", SEG_TOPIC_AT, 8, "first 8 bytes of BLAKE2b of the topic's name"),
        Field("crc", SEG_CRC_AT, 4, "CRC32C of the 60 bytes before"),
    ),
)

# --- batch --------------------------------------------------------------------------------------
BATCH_HEADER_BYTES = 72
BATCH_BYTES_MAX = (1 << 28) + (1 << 20)
"""Longest batch: one record of the longest message, with key, headers and the headers of both."""
BATCH_RECORDS_MAX = 1 << 14
BATCH_VERSION = 1
(
    BATCH_LENGTH_AT,
    BATCH_CRC_AT,
    BATCH_BASE_TOKEN_AT,
    BATCH_COUNT_AT,
    BATCH_VERSION_AT,
    BATCH_FLAGS_AT,
    BATCH_APPEND_TIME_AT,
    BATCH_TIME_MAX_AT,
    BATCH_PRODUCER_AT,
    BATCH_EPOCH_AT,
    BATCH_OWNER_AT,
    BATCH_BASE_SEQ_AT,
    BATCH_ACKED_SEQ_AT,
) = 0, 4, 8, 16, 20, 22, 24, 32, 40, 48, 52, 56, 64

BATCH_HEADER = Layout(
    "batch header",
    BATCH_HEADER_BYTES,
    (
        Field("length", BATCH_LENGTH_AT, 4, "bytes of the batch, this header included"),
        Field("crc", BATCH_CRC_AT, 4, "CRC32C of all bytes behind this field"),
        Field("base_token", BATCH_BASE_TOKEN_AT, 8, "token of the first record; the rest follow"),
        Field("count", BATCH_COUNT_AT, 4, "records, at least 1"),
        Field("version", BATCH_VERSION_AT, 2, f"always {BATCH_VERSION}"),
        Field("flags", BATCH_FLAGS_AT, 2, "0"),
        Field("append_time", BATCH_APPEND_TIME_AT, 8, "when it was appended, ns since 1970"),
        Field("time_max", BATCH_TIME_MAX_AT, 8, "latest time-stamp of a record"),
        Field("producer", BATCH_PRODUCER_AT, 8, "producer id; 0: none, nothing to deduplicate"),
        Field("epoch", BATCH_EPOCH_AT, 4, "producer's epoch; a lower one is fenced"),
        Field("owner", BATCH_OWNER_AT, 4, "epoch of the engine that owned the queue"),
        Field("base_seq", BATCH_BASE_SEQ_AT, 8, "producer's sequence of the first record, from 1"),
        Field("acked_seq", BATCH_ACKED_SEQ_AT, 8, "all of the producer up to here was durable"),
    ),
)

# --- record -------------------------------------------------------------------------------------
RECORD_HEADER_BYTES = 24
REC_LENGTH_AT, REC_SEQ_DELTA_AT, REC_TIME_AT = 0, 4, 8
REC_KEY_HASH_AT, REC_KEY_LENGTH_AT, REC_HEADERS_LENGTH_AT = 16, 20, 22
REC_LENGTH_MASK = (1 << 29) - 1
REC_KEY, REC_HEADERS, REC_ENGINE = 1 << 29, 1 << 30, 1 << 31
"""Flags in the length's word: there is a key (it may be empty), there are headers, an engine wrote
the record itself: only then the names of headers that it reserves mean anything."""

RECORD = Layout(
    "record",
    RECORD_HEADER_BYTES,
    (
        Field(
            "length",
            REC_LENGTH_AT,
            4,
            "29 bits: bytes in all; flags KEY 2^29, HEADERS 2^30, ENGINE 2^31",
        ),
        Field("seq_delta", REC_SEQ_DELTA_AT, 4, "producer's sequence less the batch's base_seq"),
        Field("time", REC_TIME_AT, 8, "publisher's time-stamp, else when it was appended"),
        Field("key_hash", REC_KEY_HASH_AT, 4, "`key_hash` of the key, 0 without one"),
        Field("key_length", REC_KEY_LENGTH_AT, 2, "bytes of the key"),
        Field("headers_length", REC_HEADERS_LENGTH_AT, 2, "bytes of the headers (MessagePack map)"),
    ),
)
"""Behind it: key, headers, payload. Nothing is padded."""

# --- sparse index -------------------------------------------------------------------------------
INDEX_ENTRY_BYTES = 32
INDEX_INTERVAL_BYTES = 64 * 1024
IDX_TOKEN_AT, IDX_POSITION_AT, IDX_TIME_AT, IDX_CRC_AT = 0, 8, 16, 24

INDEX_ENTRY = Layout(
    "index entry",
    INDEX_ENTRY_BYTES,
    (
        Field("token", IDX_TOKEN_AT, 8, "first token of a batch"),
        Field("position", IDX_POSITION_AT, 8, "where in the segment that batch starts"),
        Field("time", IDX_TIME_AT, 8, "latest time-stamp of all records before it in the segment"),
        Field("crc", IDX_CRC_AT, 4, "CRC32C of the 24 bytes before"),
    ),
)
"""One entry about every INDEX_INTERVAL_BYTES of log. The index can be rebuilt from the log."""

# --- producers ----------------------------------------------------------------------------------
PRODUCERS_MAGIC = 0x31444F5250434454  # "TDCPROD1", little endian
PRODUCERS_HEADER_BYTES, PRODUCER_BYTES = 16, 40

PRODUCERS_HEADER = Layout(
    "producers header",
    PRODUCERS_HEADER_BYTES,
    (
        Field("magic", 0, 8, '"TDCPROD1"'),
        Field("count", 8, 4, "producers that follow"),
        Field("crc", 12, 4, "CRC32C of the producers"),
    ),
)
PRODUCER = Layout(
    "producer",
    PRODUCER_BYTES,
    (
        Field("producer", 0, 8, "producer id"),
        Field("epoch", 8, 8, "its newest epoch"),
        Field("last_seq", 16, 8, "its last sequence in this queue before the segment"),
        Field("acked_seq", 24, 8, "all up to here was durable in all queues"),
        Field("seen", 32, 8, "when it last appended, ns since 1970"),
    ),
)
"""The contents of ``<segment>.producers``, so that recovery need not read the segments before."""
