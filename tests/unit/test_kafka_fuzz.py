"""Some rounds of the Kafka endpoint's fuzzer, and record batches that decompress to gigabytes."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.kafka import KafkaFuzz

from tidecast.kafka.codes import Code


def test_strangers_do_no_harm(short_dir: Path) -> None:
    fuzz = KafkaFuzz(1, short_dir)
    for _ in range(10):
        fuzz.round()
    fuzz.settled()
    counters = fuzz.served.endpoint.counters
    assert counters.of("bad_requests") > 5  # some were damaged
    assert counters.of("batches_refused") > 0
    fuzz.close()


def test_what_decompresses_to_too_much_is_refused(short_dir: Path) -> None:
    fuzz = KafkaFuzz(0, short_dir)
    for bomb in fuzz.bombs:
        assert len(bomb) < 4 << 20
        assert fuzz.sound.produce("sound", 0, bomb)["error_code"] == Code.CORRUPT_MESSAGE
    fuzz.round()
    fuzz.close()
