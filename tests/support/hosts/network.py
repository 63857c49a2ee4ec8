"""Network namespaces on a bridge: hosts of a test, whose ports lose packets or are cut off.

A namespace has no name and no process that holds it: a descriptor of the test's process does. So
all of it is gone with that process, also after `kill -9`. No packet leaves the bridge.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

from tests.support.hosts import bpf

PREFIX = "10.254.86"
CONTROL = 60
"""The last byte of the control service's address."""
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 20.0
_HOSTS_MAX = 32
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(outcome: int, what: str) -> None:
    if outcome != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def address_of(number: int) -> str:
    """The address of a host, by its number: its last byte."""
    return f"{PREFIX}.{number}"


def enter(path: str) -> None:
    """This thread, and what it starts, is in the namespace of a file from now on."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.setns(fd, _CLONE_NEWNET), "setns")
    finally:
        os.close(fd)


class Namespace:
    """A network namespace that lives as long as this object and processes in it."""

    def __init__(self) -> None:
        """Raises OSError: it is not allowed here."""
        outcome: list[int | OSError] = []

        def make() -> None:  # in a thread of its own, which ends in the new namespace
            try:
                _checked(_libc.unshare(_CLONE_NEWNET), "unshare")
                outcome.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            except OSError as refused:
                outcome.append(refused)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if isinstance(outcome[0], OSError):
            raise outcome[0]
        self.fd = outcome[0]
        try:
            self.ip("link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """For other processes, as long as it lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets and processes that this thread makes in the block are in the namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(self.path)
            try:
                yield
            finally:
                _checked(_libc.setns(home, _CLONE_NEWNET), "setns back")
        finally:
            os.close(home)

    def ip(self, *arguments: str) -> None:
        """A command of `ip` in it. Raises OSError."""
        with self.entered():
            _command("ip", *arguments)

    def interface(self, name: str) -> int:
        """The number of an interface in it."""
        with self.entered():
            return socket.if_nametoindex(name)

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Port:
    """A host's port of the bridge, and the packets that pass to the host."""

    def __init__(self, network: Network, number: int) -> None:
        self.number, self._network = number, network
        self.namespace = Namespace()
        switch, outside = network.switch, f"port{number}"
        switch.ip(
            "link",
            "add",
            outside,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.namespace.path,
        )
        switch.ip("link", "set", outside, "master", "bridge", "gso_max_segs", "1", "up")
        inside = self.namespace.ip
        inside("address", "add", f"{self.address}/24", "dev", "eth0")
        inside("link", "set", "eth0", "gso_max_segs", "1", "up")
        inside("route", "add", "239.0.0.0/8", "dev", "eth0")
        index = switch.interface(outside)
        with switch.entered():
            self._to_host = bpf.Filter(index, bpf.EGRESS)
        self.loss, self._unheard = 0.0, 0

    @property
    def address(self) -> str:
        """Of the host."""
        return address_of(self.number)

    def lose(self, part: float) -> None:
        """This part of the packets to the host is lost from now on."""
        self.loss = part
        self._apply()

    def hear(self, *numbers: int, heard: bool) -> None:
        """Packets of these hosts arrive, or not: one way."""
        for number in numbers:
            self._unheard = self._unheard & ~(1 << number) | (0 if heard else 1 << number)
        self._apply()

    def _apply(self) -> None:
        self._to_host.set(self.loss, self._unheard)

    def lost(self) -> tuple[int, int]:
        """Packets to the host: passed, and dropped."""
        return self._to_host.counts()

    def close(self) -> None:
        """Let it go."""
        self._to_host.close()
        self.namespace.close()


class Network:
    """A bridge in a namespace of its own, and ports on it."""

    def __init__(self) -> None:
        self.ports: dict[int, Port] = {}
        self.switch = Namespace()
        try:
            self.switch.ip("link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
            self.switch.ip("link", "set", "bridge", "up")
        except BaseException:
            self.close()
            raise

    def port(self, number: int) -> Port:
        """A new host on the bridge: its number is the last byte of its address."""
        assert 0 < number < bpf.HOSTS_MAX
        assert number not in self.ports
        assert len(self.ports) < _HOSTS_MAX
        made = self.ports[number] = Port(self, number)
        return made

    def others(self, number: int) -> list[int]:
        """All other hosts."""
        return [other for other in self.ports if other != number]

    def deafen(self, number: int, deaf: bool = True) -> None:
        """The host hears none of the others; they hear it. ``deaf``: False ends it."""
        self.ports[number].hear(*self.others(number), heard=not deaf)

    def mute(self, number: int, muted: bool = True) -> None:
        """None of the others hears the host; it hears them. ``muted``: False ends it."""
        for other in self.others(number):
            self.ports[other].hear(number, heard=not muted)

    def cut(self, number: int, off: bool = True) -> None:
        """The host hears nobody, and nobody hears it. ``off``: False ends it."""
        self.deafen(number, off)
        self.mute(number, off)

    def counts(self) -> tuple[int, int]:
        """Packets to all hosts: passed, and dropped."""
        found = [port.lost() for port in self.ports.values()]
        return sum(passed for passed, _ in found), sum(dropped for _, dropped in found)

    def close(self) -> None:
        """Let all of it go. Idempotent."""
        for port in self.ports.values():
            port.close()
        self.ports.clear()
        self.switch.close()


@functools.cache
def missing() -> str:
    """Why hosts cannot be made here; empty when they can. Makes two and takes them away."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "hosts of a cluster are network namespaces: making them needs root on Linux"
    if shutil.which("ip") is None:
        return "hosts of a cluster need the command ip: install iproute2"
    try:
        network = Network()
    except OSError as refused:
        return f"no network namespaces or bridges here: {refused}"
    try:
        network.port(1)
    except OSError as refused:
        return f"no veth pairs or eBPF filters (kernel 6.6 or newer) here: {refused}"
    finally:
        network.close()
    return ""
