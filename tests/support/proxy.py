"""A TCP proxy for tests: cuts, freezes and delays the connections that go through it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Proxy:
    """Forwards ``127.0.0.1:port`` to a target, until a test cuts or freezes it."""

    def __init__(self, target_port: int) -> None:
        self.target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.refuses = False
        self.frozen = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._cut_after: int | None = None
        self._counts_answers = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL that a client connects to."""
        return f"tidecast://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections, both ends."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    each.shutdown(socket.SHUT_RDWR)

    def cut_after(self, n_bytes: int, *, answers: bool = False) -> None:
        """Cut when so many bytes more have gone to the target, before any answer to the last.

        With ``answers`` bytes count that have gone to the client.
        """
        self._counts_answers, self._cut_after = answers, n_bytes

    @property
    def cuts(self) -> bool:
        """A cut is still to come."""
        return self._cut_after is not None

    def abandon(self) -> None:
        """The client's side is reset; the target's stays open and is never heard of again."""
        pairs, self._pairs = self._pairs, []
        for client, target in pairs:
            self._kept = getattr(self, "_kept", [])
            self._kept.append(target)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Forward nothing until `resume`: a network that is silent."""
        self._go.clear()

    def resume(self) -> None:
        """Forward again."""
        self._go.set()

    def close(self) -> None:
        """End it."""
        self._closed = True
        self._go.set()
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            try:
                target = socket.create_connection(self.target, 5)
            except OSError:
                client.close()
                continue
            self.connections += 1
            pair = (client, target)
            self._pairs.append(pair)
            threading.Thread(target=self._forward, args=(pair,), daemon=True).start()

    def _forward(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, target = pair
        poller, ends = select.poll(), {each.fileno(): each for each in pair}
        try:
            for each in pair:
                poller.register(each, select.POLLIN)
            while True:
                ready = poller.poll(1000)
                self._go.wait()
                for each in [ends[fd] for fd, _ in ready]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if self._cut_after is not None and (each is target) == self._counts_answers:
                        self._cut_after -= len(data)
                    (target if each is client else client).sendall(data)
                    if self._cut_after is not None and self._cut_after <= 0:
                        self._cut_after = None
                        self.cut()
                        return
        except (OSError, ValueError):
            return
        finally:
            kept = target in getattr(self, "_kept", [])
            for each in pair:
                if not (kept and each is target):
                    each.close()
