"""Topics that streams of JetStream store: the fence, and what is stored once."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_STORING = "engine/tidecast/jetstream/storing/"
_UNIT = "tests/unit/test_jetstream_storage.py::"
_HEADERS = "tests/unit/test_jetstream_headers.py::"

MUTATIONS = (
    Mutation(
        "stream-fence-of-one-marker",
        _STORING + "fencing.py",
        "MARKERS = CHUNK_MESSAGES_MAX + 1",
        "MARKERS = 1",
        (_UNIT + "test_no_message_of_a_fenced_writer_is_taken",),
        "The second message under way of a fenced writer fits behind the marker.",
    ),
    Mutation(
        "stream-strays-kept",
        _STORING + "reading.py",
        "            if noted_token(found) > due:",
        "            if noted_token(found) > due + CHUNK_MESSAGES_MAX:",
        (_UNIT + "test_messages_of_other_programs_do_no_harm",),
        "Records that came through behind another program's message are stored twice.",
    ),
    Mutation(
        "stream-log-from-the-mark",
        _STORING + "storage.py",
        "token = max(noted, reader.token)",
        "token = noted",
        (_UNIT + "test_kills_of_the_server_and_restarts_lose_nothing_and_repeat_nothing",),
        "Records behind the newest mark are stored again after a kill.",
    ),
    Mutation(
        "stream-records-lose-their-sequence",
        _STORING + "message_kernels.py",
        "add_record(out, begun, to, row[11], row[13],",
        "add_record(out, begun, to, base_seq, row[13],",
        (_UNIT + "test_an_engine_with_another_directory_goes_on_where_the_one_before_was",),
        "The next owner does not know what a producer has sent already.",
    ),
    Mutation(
        "stream-headers-above-the-limit",
        _STORING + "message_kernels.py",
        "HEADER_BYTES_MAX = 60 << 10",
        "HEADER_BYTES_MAX = 80 << 10",
        (_HEADERS + "test_a_server_takes_all_forms_and_gives_them_back",),
        "NATS refuses a message whose headers exceed 64 KiB, and the queue waits for ever.",
    ),
    Mutation(
        "stream-tail-without-its-headers",
        _STORING + "message_kernels.py",
        "if (key_n >= 0) != (g[15] & KEYED != 0) or (map_n >= 0) != (g[15] & HEADED != 0):",
        "if (key_n >= 0) != (g[15] & KEYED != 0):",
        (_HEADERS + "test_a_tail_that_does_not_add_up_is_refused_or_left_out",),
        "A record comes back without its headers, and nothing reports it.",
    ),
)
