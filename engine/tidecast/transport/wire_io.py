"""Sending runs of packets and receiving bundles of them, for kernels: UDP with GSO and GRO, memory.

A *run* is consecutive packets at equal strides in memory: it leaves in as few system calls as
possible, by segmentation offload (`UDP_SEGMENT`) where the kernel takes it, else by `sendmmsg`.
A *bundle* is the result of one receive: a buffer and the size of the packets that GRO joined in it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from tidecast.layout import packet as wire
from tidecast.layout.sealed import SEAL_BYTES
from tidecast.native.handles import Kind, State
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    address_of,
    bytes_at,
    copy,
    load_i64,
    load_u16,
    load_u32,
    store_i64,
    store_u16,
    store_u32,
)
from tidecast.native.system import syscalls as sys
from tidecast.protocol.sealing.sender import SEALER, no_sealer, seal_packet, seal_run

KIND_UDP, KIND_MEMORY = 0, 1
IO_KIND, IO_FD, IO_TARGETS, IO_GSO, IO_SEGMENTS_MAX, IO_ERRNO, IO_SOURCE = 0, 1, 2, 3, 4, 5, 6
IO_CALLS, IO_SHORT, IO_ERRORS, IO_GSO_REFUSED = 7, 8, 9, 10
IO_SEALS, IO_SEALED, IO_KEYLESS = 11, 12, 13
IO_TOO_LONG, IO_REFUSING = 14, 15
"""Sends that failed because they were longer than the path carries, and the target of the last send
that failed (-1: an address that is no target)."""
IO_ASKED = 16
"""How many messages a receiver asks for next; 0 as 1."""
IO_FIELDS = 17
"""IO_GSO: some target takes segments. IO_SEGMENTS_MAX: the most packets of a datagram to any."""
MESSAGES_MAX = 64
_ADDRESS = sys.SOCKADDR_IN_BYTES
_CONTROL_BYTES = 64
SEND_BYTES_MAX = 65_507
_SEGMENTS_KERNEL_MAX = 64

SEND_IO = Kind(
    "SendIO",
    [
        ("io", np.int64, ()),  # IO_*: settings and counts
        ("headers", np.uint8, ()),  # struct mmsghdr
        ("iovecs", np.uint8, ()),
        ("controls", np.uint8, ()),  # control messages
        ("addresses", np.uint8, ()),  # of targets: 16 bytes a (target, channel)
        ("segments", np.int64, ()),  # of each target: the most packets that one datagram brings it
        ("seal", SEALER, ()),  # used while IO_SEALS is not 0
        ("sealed", np.uint8, ()),  # a run of packets, sealed
    ],
)

RECEIVE_MESSAGES = 8
RECEIVE_BUFFER_BYTES = 65_536
RECEIVE_IO = Kind(
    "ReceiveIO",
    [
        ("io", np.int64, ()),
        ("headers", np.uint8, ()),
        ("iovecs", np.uint8, ()),
        ("controls", np.uint8, ()),
        ("names", np.uint8, ()),  # source addresses, 16 bytes each
        ("buffers", np.uint8, ()),
    ],
)

INBOX_WRITE_AT, INBOX_READ_AT, INBOX_SLOTS_AT, INBOX_STRIDE_AT, INBOX_DROPPED_AT = 0, 8, 16, 24, 32
INBOX_HEADER_BYTES, INBOX_SLOT_HEADER_BYTES = 64, 32


def send_io(
    kind: int,
    fd: int,
    targets: list[list[bytes]],
    packet_bytes: int,
    gso: bool,
    source: int = 0,
    seal: State | None = None,
) -> State:
    """State for sending to ``targets``: for each, three 16-byte addresses, one a channel.

    ``seal``: of a sealed transport. Packets go out plain until IO_SEALS is set.
    """
    stride = packet_bytes if seal is None else packet_bytes + SEAL_BYTES
    io = np.zeros(IO_FIELDS, dtype=np.int64)
    io[IO_KIND], io[IO_FD], io[IO_TARGETS], io[IO_GSO] = kind, fd, len(targets), int(gso)
    io[IO_SEGMENTS_MAX] = max(1, min(SEND_BYTES_MAX // stride, _SEGMENTS_KERNEL_MAX))
    io[IO_SOURCE] = source
    flat = b"".join(b"".join(channels) for channels in targets)
    each = int(io[IO_SEGMENTS_MAX]) if gso else 1
    return SEND_IO.make(
        io=io,
        headers=np.zeros(MESSAGES_MAX * sys.MMSGHDR_BYTES, dtype=np.uint8),
        iovecs=np.zeros(MESSAGES_MAX * sys.IOVEC_BYTES, dtype=np.uint8),
        controls=np.zeros(MESSAGES_MAX * _CONTROL_BYTES, dtype=np.uint8),
        addresses=np.frombuffer(flat or bytes(_ADDRESS * 3), dtype=np.uint8).copy(),
        segments=np.full(max(len(targets), 1), each, dtype=np.int64),
        seal=no_sealer() if seal is None else seal,
        sealed=np.zeros(8 if seal is None else MESSAGES_MAX * stride, dtype=np.uint8),
    )


def set_targets(tx: State, targets: list[list[bytes]], gso: bool) -> None:
    """Replace the targets, between two calls of a kernel. A target that stays keeps its segments.

    ``gso``: a new target may get segments.
    """
    size, count = _ADDRESS * wire.CHANNELS, int(tx.io[IO_TARGETS])
    raw = tx.addresses[: count * size].tobytes()
    known = {raw[i * size : (i + 1) * size]: int(tx.segments[i]) for i in range(count)}
    names = [b"".join(channels) for channels in targets]
    new = int(tx.io[IO_SEGMENTS_MAX]) if gso else 1
    flat = np.frombuffer(b"".join(names), dtype=np.uint8)
    if flat.size > tx.addresses.size:
        tx.replace("addresses", flat.copy())
        tx.replace("segments", np.ones(len(names), dtype=np.int64))
    else:
        tx.addresses[:] = 0
        tx.addresses[: flat.size] = flat
    tx.segments[: len(names)] = [known.get(name, new) for name in names]
    tx.io[IO_TARGETS] = len(names)
    tx.io[IO_GSO] = int(gso and (not names or tx.segments[: len(names)].max() > 1))


def segment_again(tx: State, targets: Sequence[int]) -> None:
    """Send segments to these targets again, between two calls of a kernel."""
    count = int(tx.io[IO_TARGETS])
    for target in targets:
        if 0 <= target < count:
            tx.segments[target] = tx.io[IO_SEGMENTS_MAX]
            tx.io[IO_GSO] = 1


def receive_io(kind: int, fd: int, inbox: int = 0) -> State:
    """State for receiving from one socket or one in-memory inbox (its address)."""
    io = np.zeros(IO_FIELDS, dtype=np.int64)
    io[IO_KIND], io[IO_FD], io[IO_SOURCE] = kind, fd, inbox
    messages = RECEIVE_MESSAGES
    return RECEIVE_IO.make(
        io=io,
        headers=np.zeros(messages * sys.MMSGHDR_BYTES, dtype=np.uint8),
        iovecs=np.zeros(messages * sys.IOVEC_BYTES, dtype=np.uint8),
        controls=np.zeros(messages * _CONTROL_BYTES, dtype=np.uint8),
        names=np.zeros(messages * _ADDRESS, dtype=np.uint8),
        buffers=np.zeros(messages * RECEIVE_BUFFER_BYTES, dtype=np.uint8),
    )


def make_inbox(slots: int, packet_bytes: int) -> np.ndarray:
    """An in-memory network's inbox of one node: a ring of packets.

    In front of each its length, the address of its source, and the number of the source's host.
    """
    stride = INBOX_SLOT_HEADER_BYTES + (packet_bytes + SEAL_BYTES + 7) // 8 * 8
    # Separate pages: the heap would touch all of them at once, and keep them afterwards.
    pages = mmap.mmap(-1, INBOX_HEADER_BYTES + slots * stride)
    inbox = np.frombuffer(pages, dtype=np.uint8)
    fields = inbox[:INBOX_HEADER_BYTES].view(np.int64)
    fields[INBOX_SLOTS_AT // 8], fields[INBOX_STRIDE_AT // 8] = slots, stride
    return inbox


# --- sending --------------------------------------------------------------------------------------


@inlined
def _set_message(tx, i, name_address, base, n, segment_bytes):
    """Fill mmsghdr ``i``: one iovec, and a UDP_SEGMENT control message when segment_bytes > 0."""
    header = i * sys.MMSGHDR_BYTES
    store_i64(tx.headers, header + sys.MSG_NAME_AT, name_address)
    store_i64(tx.headers, header + sys.MSG_NAMELEN_AT, _ADDRESS)
    store_i64(tx.headers, header + sys.MSG_IOV_AT, address_of(tx.iovecs) + i * sys.IOVEC_BYTES)
    store_i64(tx.headers, header + sys.MSG_IOVLEN_AT, 1)
    store_i64(tx.iovecs, i * sys.IOVEC_BYTES, base)
    store_i64(tx.iovecs, i * sys.IOVEC_BYTES + 8, n)
    store_i64(tx.headers, header + sys.MSG_FLAGS_AT, 0)
    if segment_bytes > 0:
        control = i * _CONTROL_BYTES
        store_i64(tx.controls, control + sys.CMSG_LEN_AT, sys.CMSG_DATA_AT + 2)
        store_u32(tx.controls, control + sys.CMSG_LEVEL_AT, sys.SOL_UDP)
        store_u32(tx.controls, control + sys.CMSG_TYPE_AT, sys.UDP_SEGMENT)
        store_u16(tx.controls, control + sys.CMSG_DATA_AT, segment_bytes)
        store_i64(tx.headers, header + sys.MSG_CONTROL_AT, address_of(tx.controls) + control)
        store_i64(tx.headers, header + sys.MSG_CONTROLLEN_AT, 24)
    else:
        store_i64(tx.headers, header + sys.MSG_CONTROL_AT, 0)
        store_i64(tx.headers, header + sys.MSG_CONTROLLEN_AT, 0)


@inlined
def _deliver_to_inbox(name, source, memory, at, n):
    """Put one packet into an in-memory inbox; a full inbox drops, like a socket buffer."""
    address = load_i64(name, 0)
    if address == 0:
        return
    head = bytes_at(address, INBOX_HEADER_BYTES)
    write, read = load_i64(head, INBOX_WRITE_AT), load_i64(head, INBOX_READ_AT)
    slots, stride = load_i64(head, INBOX_SLOTS_AT), load_i64(head, INBOX_STRIDE_AT)
    if write - read >= slots or n > stride - INBOX_SLOT_HEADER_BYTES:
        store_i64(head, INBOX_DROPPED_AT, load_i64(head, INBOX_DROPPED_AT) + 1)
        return
    slot = bytes_at(address + INBOX_HEADER_BYTES + (write % slots) * stride, stride)
    store_i64(slot, 0, n)
    store_i64(slot, 8, source)
    store_i64(slot, 16, 0)
    copy(slot, INBOX_SLOT_HEADER_BYTES, memory, at, n)
    store_i64(head, INBOX_WRITE_AT, write + 1)


@inlined
def _packet_bytes(memory, at, stride, extra):
    """A packet's length with ``extra``, at most ``stride``: a client may change its header."""
    return min(load_u16(memory, at + wire.LENGTH_AT) + extra, stride)


@inlined
def _send_run_udp(tx, target, channel, memory, at, stride, packets, padded, extra):
    """One system call for a run. Returns packets sent, or ``-errno`` when none were."""
    io = tx.io
    name_address = address_of(tx.addresses) + (target * wire.CHANNELS + channel) * _ADDRESS
    base = address_of(memory) + at
    last = _packet_bytes(memory, at + (packets - 1) * stride, stride, extra)
    io[IO_CALLS] += 1
    if packets == 1:
        return min(sys.sendto(io[IO_FD], base, last, sys.MSG_DONTWAIT, name_address), 1)
    n = 0
    gso = padded and packets > 1 and tx.segments[target] > 1
    per = tx.segments[target] if gso else 1
    done = 0
    while done < packets and n < MESSAGES_MAX:
        part = min(per, packets - done)
        tail = stride
        if done + part == packets:
            tail = last
        elif not gso:
            tail = _packet_bytes(memory, at + done * stride, stride, extra)
        size = (part - 1) * stride + tail
        _set_message(tx, n, name_address, base + done * stride, size, stride if part > 1 else 0)
        n += 1
        done += part
    result = sys.sendmmsg(io[IO_FD], address_of(tx.headers), n, sys.MSG_DONTWAIT)
    if result < 0:
        return result
    if result == n:
        return done
    return result * per


@inlined
def _segments_refused(tx, target):
    """The kernel refuses segments to a target: its packets are sent one by one from now on.

    The path there is narrower than a packet, or its device lacks segmentation offload.
    """
    tx.segments[target] = 1
    tx.io[IO_GSO_REFUSED] += 1
    tx.io[IO_GSO] = 0
    for each in range(tx.io[IO_TARGETS]):
        if tx.segments[each] > 1:
            tx.io[IO_GSO] = 1


@inlined
def send_run(tx, target, channel, memory, at, stride, packets, padded, extra):
    """Send ``packets`` packets to a target: ``stride`` apart in ``memory``, from ``at`` on.

    Each packet's header holds its length; ``extra``: bytes that a sealed packet is longer.
    ``padded``: all but the last packet may be sent with ``stride`` bytes, as segmentation offload
    needs it; else each packet is sent with just its length.
    Returns packets sent; 0 when the socket is full; ``-errno`` on other errors.
    """
    io = tx.io
    if io[IO_KIND] == KIND_MEMORY:
        name_at = (target * wire.CHANNELS + channel) * _ADDRESS
        name = tx.addresses[name_at : name_at + _ADDRESS]
        for i in range(packets):
            n = _packet_bytes(memory, at + i * stride, stride, extra)
            _deliver_to_inbox(name, io[IO_SOURCE], memory, at + i * stride, n)
        io[IO_CALLS] += 1
        return packets
    result = 0
    again = True
    while again:
        result = _send_run_udp(tx, target, channel, memory, at, stride, packets, padded, extra)
        refused = result == -sys.EINVAL or result == -sys.EIO or result == -sys.EMSGSIZE
        again = refused and padded and packets > 1 and tx.segments[target] > 1
        if again:
            io[IO_ERRNO] = -result
            _segments_refused(tx, target)
    if result >= 0:
        return result
    if result == -sys.EAGAIN or result == -sys.ENOBUFS:
        io[IO_SHORT] += 1
        return 0
    if result == -sys.EINTR or result == -sys.ECONNREFUSED:
        return 0  # refused: the error of an earlier datagram to a peer that is not up yet
    _count_error(io, result, target)
    return result


@inlined
def _count_error(io, result, target):
    io[IO_ERRORS] += 1
    io[IO_ERRNO], io[IO_REFUSING] = -result, target
    if result == -sys.EMSGSIZE:
        io[IO_TOO_LONG] += 1


@inlined
def _seal_run(tx, memory, at, stride, packets):
    """Seal a run into the staging area. How many packets are; fewer when no key is ready."""
    out_stride = stride + SEAL_BYTES
    packets = min(packets, tx.sealed.size // out_stride)
    done = seal_run(tx.seal, memory, at, stride, packets, tx.sealed, out_stride)
    tx.io[IO_SEALED] += done
    return done


@inlined
def send_run_to_all(tx, channel, memory, at, stride, packets, padded):
    """`send_run` to every target; the first target that takes packets sets how many count as sent.

    Packets that another target refuses are lost for it, and repaired by its NAK; a target that is
    not routable delays no other target. A sealed transport seals the run once for all targets;
    without a key nothing is sent, and the result is ``-ENOKEY``.
    """
    if tx.io[IO_TARGETS] == 0:
        return packets  # no target yet: peers may be added later
    extra = 0
    if tx.io[IO_SEALS] != 0:
        packets = _seal_run(tx, memory, at, stride, packets)
        if packets == 0:
            tx.io[IO_KEYLESS] += 1
            return -sys.ENOKEY
        memory, at, stride, extra = tx.sealed, 0, stride + SEAL_BYTES, SEAL_BYTES
    sent = send_run(tx, 0, channel, memory, at, stride, packets, padded, extra)
    first = 0
    while sent < 0 and first + 1 < tx.io[IO_TARGETS]:
        first += 1
        sent = send_run(tx, first, channel, memory, at, stride, packets, padded, extra)
    if sent > 0:
        for target in range(first + 1, tx.io[IO_TARGETS]):
            send_run(tx, target, channel, memory, at, stride, sent, padded, extra)
    return sent


@inlined
def send_to_address(tx, name, memory, n, node):
    """Send one packet of ``n`` bytes to a 16-byte address (a NAK or STATUS to its publisher).

    ``node``: the id of the node there: only this node can open a sealed packet.
    """
    io = tx.io
    if io[IO_SEALS] != 0:
        n = seal_packet(tx.seal, node, memory, 0, n, tx.sealed, 0)
        if n < 0:
            io[IO_KEYLESS] += 1
            return -sys.ENOKEY
        io[IO_SEALED] += 1
        memory = tx.sealed
    if io[IO_KIND] == KIND_MEMORY:
        _deliver_to_inbox(name, io[IO_SOURCE], memory, 0, n)
        return 1
    io[IO_CALLS] += 1
    result = sys.sendto(io[IO_FD], address_of(memory), n, sys.MSG_DONTWAIT, address_of(name))
    if result < 0 and result != -sys.EAGAIN and result != -sys.ECONNREFUSED:
        _count_error(io, result, -1)
    return min(result, 1)


# --- receiving ------------------------------------------------------------------------------------


@inlined
def _receive_memory(rx):
    """Take packets out of the inbox into the buffers, one a buffer."""
    head = bytes_at(rx.io[IO_SOURCE], INBOX_HEADER_BYTES)
    write, read = load_i64(head, INBOX_WRITE_AT), load_i64(head, INBOX_READ_AT)
    slots, stride = load_i64(head, INBOX_SLOTS_AT), load_i64(head, INBOX_STRIDE_AT)
    n = min(write - read, RECEIVE_MESSAGES)
    for i in range(n):
        slot = bytes_at(
            rx.io[IO_SOURCE] + INBOX_HEADER_BYTES + ((read + i) % slots) * stride, stride
        )
        size = load_i64(slot, 0)
        store_i64(rx.names, i * _ADDRESS, load_i64(slot, 8))
        store_i64(rx.names, i * _ADDRESS + 8, load_i64(slot, 16))
        copy(rx.buffers, i * RECEIVE_BUFFER_BYTES, slot, INBOX_SLOT_HEADER_BYTES, size)
        store_u32(rx.headers, i * sys.MMSGHDR_BYTES + sys.MMSG_LEN_AT, size)
        store_i64(rx.headers, i * sys.MMSGHDR_BYTES + sys.MSG_CONTROLLEN_AT, 0)
    store_i64(head, INBOX_READ_AT, read + n)
    return n


@inlined
def receive(rx):
    """Fill the buffers without waiting. Returns bundles received; 0 none; ``-errno`` on errors."""
    if rx.io[IO_KIND] == KIND_MEMORY:
        return _receive_memory(rx)
    io = rx.io
    asked = max(io[IO_ASKED], 1)
    for i in range(asked):
        header = i * sys.MMSGHDR_BYTES
        store_i64(rx.headers, header + sys.MSG_NAME_AT, address_of(rx.names) + i * _ADDRESS)
        store_i64(rx.headers, header + sys.MSG_NAMELEN_AT, _ADDRESS)
        iovec = i * sys.IOVEC_BYTES
        store_i64(rx.headers, header + sys.MSG_IOV_AT, address_of(rx.iovecs) + iovec)
        store_i64(rx.headers, header + sys.MSG_IOVLEN_AT, 1)
        store_i64(rx.iovecs, iovec, address_of(rx.buffers) + i * RECEIVE_BUFFER_BYTES)
        store_i64(rx.iovecs, iovec + 8, RECEIVE_BUFFER_BYTES)
        control = address_of(rx.controls) + i * _CONTROL_BYTES
        store_i64(rx.headers, header + sys.MSG_CONTROL_AT, control)
        store_i64(rx.headers, header + sys.MSG_CONTROLLEN_AT, _CONTROL_BYTES)
        store_i64(rx.headers, header + sys.MSG_FLAGS_AT, 0)
    io[IO_CALLS] += 1
    if asked == 1:
        done = sys.recvmsg(io[IO_FD], address_of(rx.headers), sys.MSG_DONTWAIT)
        if done >= 0:
            store_u32(rx.headers, sys.MMSG_LEN_AT, done)
            done = 1
    else:
        done = sys.recvmmsg(io[IO_FD], address_of(rx.headers), asked, sys.MSG_DONTWAIT)
    io[IO_ASKED] = min(max(done, 0) * 2, RECEIVE_MESSAGES)
    if done == -sys.EAGAIN or done == -sys.EINTR or done == -sys.ECONNREFUSED:
        return 0
    return done


@inlined
def bundle_bytes(rx, i):
    """Bytes in bundle ``i``."""
    return min(load_u32(rx.headers, i * sys.MMSGHDR_BYTES + sys.MMSG_LEN_AT), RECEIVE_BUFFER_BYTES)


@inlined
def bundle_segment_bytes(rx, i):
    """Size of the packets in bundle ``i``: GRO's word, or the whole bundle."""
    control = i * _CONTROL_BYTES
    given = load_i64(rx.headers, i * sys.MMSGHDR_BYTES + sys.MSG_CONTROLLEN_AT)
    if (
        given >= sys.CMSG_DATA_AT + 2
        and load_u32(rx.controls, control + sys.CMSG_LEVEL_AT) == sys.SOL_UDP
        and load_u32(rx.controls, control + sys.CMSG_TYPE_AT) == sys.UDP_GRO
    ):
        size = load_u16(rx.controls, control + sys.CMSG_DATA_AT)
        if size > 0:
            return size
    return bundle_bytes(rx, i)
