"""Runs and bundles: in memory, and over loopback with and without segmentation offload."""

from __future__ import annotations

import errno
import select
import socket

import numpy as np
import pytest
from tests.support import packets as packet_builder
from tests.support.hosts.network import Namespace, missing

from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.native.handles import State
from tidecast.native.jit import kernel
from tidecast.native.memory import address
from tidecast.transport import wire_io
from tidecast.transport.sockets import open_multicast, sockaddr

STRIDE = 1400
send_io_of, receive_io_of = wire_io.SEND_IO.of, wire_io.RECEIVE_IO.of


@kernel
def sent(tx, memory, stride, packets, padded):  # type: ignore[no-untyped-def]
    return wire_io.send_run_to_all(send_io_of(tx), 1, memory, 0, stride, packets, padded)


@kernel
def sent_to(tx, name, memory, n):  # type: ignore[no-untyped-def]
    return wire_io.send_to_address(send_io_of(tx), name, memory, n, 1)


@kernel
def received(words, sizes):  # type: ignore[no-untyped-def]
    rx = receive_io_of(words)
    n = wire_io.receive(rx)
    for i in range(max(n, 0)):
        sizes[i, 0] = wire_io.bundle_bytes(rx, i)
        sizes[i, 1] = wire_io.bundle_segment_bytes(rx, i)
    return n


def run_of(*packets: bytes) -> np.ndarray:
    memory = np.zeros(len(packets) * STRIDE, dtype=np.uint8)
    for i, packet in enumerate(packets):
        memory[i * STRIDE : i * STRIDE + len(packet)] = np.frombuffer(packet, dtype=np.uint8)
    return memory


def _readable(end: socket.socket) -> bool:
    """A packet arrives within 5 s. Unlike `select.select`, for any number of descriptors."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(5000))


def packets_in(rx: State) -> list[bytes]:
    """Everything that has arrived, each packet as long as its header says."""
    found: list[bytes] = []
    while True:
        sizes = np.zeros((wire_io.RECEIVE_MESSAGES, 2), dtype=np.int64)
        n = int(received(rx.words, sizes))
        if n <= 0:
            return found
        for i in range(n):
            total, size = sizes[i].tolist()
            base = i * wire_io.RECEIVE_BUFFER_BYTES
            for at in range(0, total, size):
                head = base + at + wire.LENGTH_AT
                length = int(rx.buffers[head : head + 2].view("<u2")[0])
                assert length <= min(size, total - at)
                found.append(rx.buffers[base + at : base + at + length].tobytes())


def memory_pair(slots: int = 8) -> tuple[State, State, np.ndarray]:
    inbox = wire_io.make_inbox(slots, STRIDE)
    name = address(inbox).to_bytes(8, "little") + bytes(8)
    tx = wire_io.send_io(wire_io.KIND_MEMORY, -1, [[name] * 3], STRIDE, False, source=4711)
    return tx, wire_io.receive_io(wire_io.KIND_MEMORY, -1, address(inbox)), inbox


def test_memory_carries_packets_their_order_and_their_source() -> None:
    tx, rx, _ = memory_pair()
    packets = [packet_builder.data(packet_builder.message(b"x" * i), seq=i) for i in range(5)]
    assert sent(tx.words, run_of(*packets), STRIDE, 5, True) == 5
    assert packets_in(rx) == packets
    assert int(rx.names[:8].view(np.int64)[0]) == 4711
    assert packets_in(rx) == []


def test_a_full_inbox_drops_and_counts_like_a_socket() -> None:
    tx, rx, inbox = memory_pair(slots=4)
    packets = [packet_builder.data(seq=i) for i in range(7)]
    assert sent(tx.words, run_of(*packets), STRIDE, 7, True) == 7
    assert packets_in(rx) == packets[:4]
    assert (
        int(inbox[wire_io.INBOX_DROPPED_AT : wire_io.INBOX_DROPPED_AT + 8].view(np.int64)[0]) == 3
    )


def test_a_length_that_a_client_scribbled_sends_no_more_than_its_slot() -> None:
    tx, rx, _ = memory_pair()
    memory = run_of(packet_builder.data(), packet_builder.data())
    memory[STRIDE + wire.LENGTH_AT : STRIDE + wire.LENGTH_AT + 2] = 0xFF
    assert sent(tx.words, memory, STRIDE, 2, True) == 2
    sizes = np.zeros((wire_io.RECEIVE_MESSAGES, 2), dtype=np.int64)
    assert received(rx.words, sizes) == 2
    assert sizes[1].tolist() == [STRIDE, STRIDE]


def test_nobody_to_send_to_counts_as_sent() -> None:
    tx = wire_io.send_io(wire_io.KIND_MEMORY, -1, [], STRIDE, False)
    assert sent(tx.words, run_of(packet_builder.data()), STRIDE, 1, True) == 1


@pytest.fixture
def sockets() -> tuple[socket.socket, socket.socket]:
    pair = tuple(socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for each in pair:
        each.bind(("127.0.0.1", 0))
        each.setblocking(False)
    return pair[0], pair[1]


def udp(send: socket.socket, receive: socket.socket, *, gso: bool) -> tuple[State, State]:
    name = sockaddr("127.0.0.1", receive.getsockname()[1])
    tx = wire_io.send_io(wire_io.KIND_UDP, send.fileno(), [[name] * 3], STRIDE, gso)
    return tx, wire_io.receive_io(wire_io.KIND_UDP, receive.fileno())


@pytest.mark.parametrize("gso", [False, True])
@pytest.mark.parametrize("gro", [False, True])
def test_udp_carries_runs_with_and_without_offload(
    sockets: tuple[socket.socket, socket.socket], gso: bool, gro: bool
) -> None:
    send, receive = sockets
    if gro:
        receive.setsockopt(17, 104, 1)
    tx, rx = udp(send, receive, gso=gso)
    packets = [
        packet_builder.data(packet_builder.message(bytes([i]) * 1300), seq=i) for i in range(20)
    ]
    packets.append(packet_builder.data(packet_builder.message(b"short"), seq=20))
    assert sent(tx.words, run_of(*packets), STRIDE, 21, True) == 21
    found: list[bytes] = []
    while len(found) < 21:
        assert _readable(receive), f"only {len(found)} arrived"
        found += packets_in(rx)
    assert found == packets
    assert tx.io[wire_io.IO_ERRORS] == 0
    if gso and tx.io[wire_io.IO_GSO_REFUSED] == 0:
        assert tx.io[wire_io.IO_CALLS] == 1


def test_a_quiet_socket_is_asked_for_one_message_and_a_busy_one_for_more(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """A round trip waits for no headers of further messages, and a burst comes in few calls."""
    send, receive = sockets
    tx, rx = udp(send, receive, gso=False)
    packets = [packet_builder.data(packet_builder.message(bytes([i])), seq=i) for i in range(20)]
    for packet in packets:
        assert sent(tx.words, run_of(packet), STRIDE, 1, False) == 1
    sizes = np.zeros((wire_io.RECEIVE_MESSAGES, 2), dtype=np.int64)
    brought, asked, found = [], [], []
    assert _readable(receive)
    while (n := int(received(rx.words, sizes))) > 0:
        brought.append(n)
        asked.append(int(rx.io[wire_io.IO_ASKED]))
        for i in range(n):
            total, size = sizes[i].tolist()
            assert total == size
            base = i * wire_io.RECEIVE_BUFFER_BYTES
            found.append(rx.buffers[base : base + total].tobytes())
    assert found == packets
    assert brought == [1, 2, 4, 8, 5]
    assert asked == [2, 4, 8, 8, 8], "no more than there are headers"
    assert rx.io[wire_io.IO_CALLS] == 6
    assert int(received(rx.words, sizes)) == 0
    assert rx.io[wire_io.IO_ASKED] == 0, "quiet: one message again"


def test_answers_go_to_where_a_packet_came_from(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    send, receive = sockets
    tx, rx = udp(send, receive, gso=False)
    sent(tx.words, run_of(packet_builder.data()), STRIDE, 1, False)
    assert _readable(receive)
    assert packets_in(rx) == [packet_builder.data()]
    answer, back = udp(receive, send, gso=False)
    raw = np.frombuffer(packet_builder.status(), dtype=np.uint8).copy()
    assert sent_to(answer.words, rx.names[:16], raw, raw.size) == 1
    assert _readable(send)
    assert packets_in(back) == [packet_builder.status()]


def test_a_packet_that_the_kernel_finds_too_long_is_counted_with_its_target(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    send, receive = sockets
    name = sockaddr(*receive.getsockname())
    tx = wire_io.send_io(wire_io.KIND_UDP, send.fileno(), [[name] * 3] * 2, 65_528, False)
    raw = np.zeros(65_528, dtype=np.uint8)
    raw[wire.LENGTH_AT : wire.LENGTH_AT + 2] = np.frombuffer(
        (65_520).to_bytes(2, "little"), dtype=np.uint8
    )
    assert sent(tx.words, raw, 65_528, 1, False) == -errno.EMSGSIZE
    assert tx.io[wire_io.IO_TOO_LONG] == tx.io[wire_io.IO_ERRORS] == 2
    assert tx.io[wire_io.IO_REFUSING] == 1
    assert tx.io[wire_io.IO_ERRNO] == errno.EMSGSIZE


def test_a_closed_socket_is_an_error_that_is_counted(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    tx, rx = udp(*sockets, gso=False)
    tx.io[wire_io.IO_FD] = 999_999
    assert sent(tx.words, run_of(packet_builder.data()), STRIDE, 1, False) == -9
    assert tx.io[wire_io.IO_ERRORS] == 1
    assert tx.io[wire_io.IO_ERRNO] == 9
    rx.io[wire_io.IO_FD] = 999_999
    assert received(rx.words, np.zeros((wire_io.RECEIVE_MESSAGES, 2), dtype=np.int64)) == -9


def test_an_interface_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match=r"transport lan: interface: 203\.0\.113\.9: this host"):
        open_multicast(
            name="lan",
            group="239.1.2.3",
            port=47_123,
            interface="203.0.113.9",
            ttl=1,
            buffer_bytes=65_536,
            gro=False,
        )


def run_bytes(receive: socket.socket, rx: State, packets: int) -> set[int]:
    """The sizes of the datagrams that bring a run; as many packets as were sent come with it."""
    found, got = set(), 0
    while got < packets:
        assert _readable(receive), f"only {got} of {packets} packets arrived"
        sizes = np.zeros((wire_io.RECEIVE_MESSAGES, 2), dtype=np.int64)
        for total, size in sizes[: int(received(rx.words, sizes))].tolist():
            found.add(total)
            got += -(-total // size)
    return found


def test_a_narrow_path_takes_segments_away_from_its_target_alone() -> None:
    """The run that the kernel refuses goes out at once without: every target has all of it."""
    if missing():
        pytest.skip(missing())
    namespace = Namespace()
    try:
        namespace.ip("addr", "add", "10.9.0.2/32", "dev", "lo")
        route = ("local", "10.9.0.2", "dev", "lo", "table", "local", "mtu")
        namespace.ip("route", "replace", *route, "1200")
        narrow, wide = "10.9.0.2", "127.0.0.1"
        with namespace.entered():
            send, first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "abc")
        with send, first, second:
            for each, host in ((first, narrow), (second, wide)):
                each.bind((host, 0))
                each.setblocking(False)
                each.setsockopt(17, 104, 1)  # GRO: a run that was not cut comes in one piece
            names = [sockaddr(h, s.getsockname()[1]) for h, s in ((narrow, first), (wide, second))]
            targets = [[name] * 3 for name in names]
            tx = wire_io.send_io(wire_io.KIND_UDP, send.fileno(), targets, STRIDE, True)
            ends = [(s, wire_io.receive_io(wire_io.KIND_UDP, s.fileno())) for s in (first, second)]
            whole = int(tx.io[wire_io.IO_SEGMENTS_MAX])
            body = packet_builder.message(bytes(STRIDE - 64))
            run = run_of(*(packet_builder.data(body, seq=i) for i in range(10)))

            for _ in range(2):
                assert sent(tx.words, run, STRIDE, 10, True) == 10
                assert max(run_bytes(*ends[0], 10)) <= STRIDE
                assert max(run_bytes(*ends[1], 10)) > 9 * (STRIDE - 64)
            assert tx.segments.tolist() == [1, whole]
            assert tx.io[wire_io.IO_GSO] == 1
            assert tx.io[wire_io.IO_GSO_REFUSED] == 1
            assert tx.io[wire_io.IO_ERRORS] == 0

            wire_io.set_targets(tx, targets[::-1], True)
            assert tx.segments.tolist() == [whole, 1], "what is known of a target stays with it"
            wire_io.set_targets(tx, targets, True)
            namespace.ip("route", "replace", *route, "9000")
            wire_io.segment_again(tx, [0])
            assert sent(tx.words, run, STRIDE, 10, True) == 10
            assert max(run_bytes(*ends[0], 10)) > 9 * (STRIDE - 64)
            assert tx.segments.tolist() == [whole, whole]
    finally:
        namespace.close()


def test_targets_are_replaced_with_more_fewer_and_none() -> None:
    names = [[sockaddr("127.0.0.1", port) for port in (i, i + 1, i + 2)] for i in (10, 20, 30)]
    tx = wire_io.send_io(wire_io.KIND_UDP, -1, names[:1], STRIDE, True)
    whole = int(tx.io[wire_io.IO_SEGMENTS_MAX])
    tx.segments[0] = 1
    for count in (3, 2, 0, 1):
        wire_io.set_targets(tx, names[:count], True)
        assert tx.io[wire_io.IO_TARGETS] == count
        assert tx.segments.size >= count
        assert tx.addresses.size >= 48 * count
        if count > 1:
            assert tx.segments[:count].tolist() == [1, *[whole] * (count - 1)]
    assert tx.segments[0] == whole, "it was gone meanwhile: it is tried again"
    wire_io.set_targets(tx, names, False)
    assert tx.segments[1:].tolist() == [1, 1], "gso: false"
    wire_io.segment_again(tx, [-1, 3])  # targets that are gone
    assert tx.segments.size == 3
