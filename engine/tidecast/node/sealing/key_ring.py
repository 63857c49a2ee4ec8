"""The secrets of a node's sealed transports: read, read again when they change, and put to use.

They come from `wire-keys.json` in the data directory. Called with the node's lock held.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from tidecast import events
from tidecast.agents.live.unsealing import FORGED_PLAIN
from tidecast.config.topology import TransportConfig
from tidecast.errors import ConfigError, NotFound, TidecastError
from tidecast.layout import recorder as rec
from tidecast.layout import sealed as lay
from tidecast.native.crypto.libcrypto import find_libcrypto
from tidecast.node.context import NodeContext
from tidecast.node.live.peers import Peers
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.sealing.epochs import EpochChoice, Times
from tidecast.node.sealing.service_clock import ServiceClock
from tidecast.node.sealing.transport_keys import SealedTransport
from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, load_wire_keys
from tidecast.protocol.sealing.receiver import FORGED_PACKET

LOOK_S = 1.0
REPORT_AGAIN_S = 10.0
_log = logging.getLogger("tidecast.node")


class WireKeyRing:
    """See module."""

    def __init__(self, ctx: NodeContext, peers: Peers) -> None:
        self._ctx, self._peers = ctx, peers
        self._path = ctx.data_dir / FILE_NAME
        self._keys = WireKeys()
        self._seen: tuple[int, int, int] | None = None
        self._sealed: dict[str, list[SealedTransport]] = {}
        """The lanes of each transport."""
        self._choices: dict[str, EpochChoice] = {}
        self._in_use: dict[str, tuple[tuple[int, ...], int]] = {}
        self.service_clock = ServiceClock()
        """Epochs begin and end by it, once the link has asked."""
        self._reported_s: dict[tuple[str, int, str], float] = {}
        self._next_s = 0.0
        self._boot = 0
        """64 random bits of this start: the keys of two starts differ."""

    def open(self, config: TransportConfig) -> list[SealedTransport]:
        """Keys for each lane of a transport that is about to start; none: it is not sealed.

        Raises ConfigError with the remedy: no libcrypto, or `required` without an epoch.
        """
        if config.secure == "off":
            return []
        at = f"transport {config.name}: secure: {config.secure}"
        try:
            library = find_libcrypto()
        except NotFound as problem:
            raise ConfigError(
                f"{at}: {problem}: install OpenSSL 3 (Debian, Ubuntu: apt install libssl3), or pip "
                "install 'psycopg[binary]', or set secure: off"
            ) from None
        if self._seen is None:
            self._read(strict=True)
        if not self._boot:
            self._boot = secrets.randbits(64) if self._ctx.seed is None else self._ctx.random_id(62)
        made = [
            SealedTransport(config, self._ctx.id, self._boot, library, lane)
            for lane in range(config.lanes)
        ]
        self._sealed[config.name] = made
        self._choices[config.name] = EpochChoice(required=config.secure == "required")
        self._put_to_use(config.name)
        if config.secure == "required" and not made[0].active:
            raise ConfigError(
                f"{at}: {self._path} has no epoch of this transport: `tidecast wire keys "
                f"new {config.name}` makes one, for all nodes of the transport; for engines of a "
                f"control service `tidecast api POST /transports/{config.name}/keys/rotate` does"
            )
        return made

    def tick(self, now_s: float) -> None:
        """Read the file again if it has changed, follow the clock, prepare the next keys."""
        if not self._sealed or now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_S
        self._read(strict=False)
        refused = frozenset(self._ctx.topology.node.quarantined)
        for name, lanes in self._sealed.items():
            self._put_to_use(name)
            for sealed in lanes:
                sealed.refuse(refused)
                sealed.prepare()

    def stop(self) -> None:
        """Wipe all keys; the agents have ended."""
        for lanes in self._sealed.values():
            for sealed in lanes:
                sealed.close()
        self._sealed.clear()

    def state(self) -> list[dict[str, object]]:
        """Each sealed transport: its mode, the epoch in use, accepted epochs, known nodes."""
        modes = {lay.MODE_OPTIONAL: "optional", lay.MODE_REQUIRED: "required"}
        return [
            {
                "transport": name,
                "secure": modes[lanes[0].mode],
                "epoch": lanes[0].active,
                "accepted": list(lanes[0].accepted),
            }
            for name, lanes in self._sealed.items()
        ]

    # --- the file ---------------------------------------------------------------------------------

    def _read(self, *, strict: bool) -> None:
        """Read the file if it is another one than before. A file that is wrong changes nothing."""
        seen = _signature(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = load_wire_keys(self._path)
        except NotFound:
            if not strict:  # the agents keep their keys
                _log.warning("%s is gone: the keys in use stay", self._path)
        except TidecastError as problem:
            if strict:
                raise
            _log.error("%s: the keys in use stay", problem)
            for name in self._sealed:
                self._missing(name, 0, 0, "", str(problem))

    def _put_to_use(self, name: str) -> None:
        lanes, now_ns = self._sealed[name], self._ctx.clock_ns()
        times = Times(now_ns, self._ctx.wall_ns(), self.service_clock.now_ns(now_ns))
        epochs = self._keys.transports.get(name, [])
        heard: dict[int, int] = {}
        for sealed in lanes:
            for epoch, at_ns in sealed.heard().items():
                heard[epoch] = max(heard.get(epoch, 0), at_ns)
        accepted, active = self._choices[name].choose(epochs, times, heard)
        if not active:
            problem = f"transport {name}: {FILE_NAME} has no epoch that is active"
            self._missing(name, 0, 0, "", problem)
        use = (tuple(each.epoch for each in accepted), active)
        if use == self._in_use.get(name):
            return
        before, self._in_use[name] = self._in_use.get(name), use
        for sealed in lanes:
            sealed.use(accepted, active)
        if active and (before is None or before[1] != active):
            if self._ctx.started:
                self._ctx.note(rec.LOW, rec.Code.WIRE_KEY, active)
            self._ctx.notify_all(events.WireKeyActive(transport=name, epoch=active))

    # --- reports ----------------------------------------------------------------------------------

    def forgery(
        self, runtime: TransportRuntime, source: int, words: tuple[int, int], cause: int
    ) -> None:
        """An agent refused a packet that is not authentic."""
        self._peers.report(
            events.WireForgery(
                transport=runtime.config.name,
                node_id=source,
                address=runtime.address_text(words),
                reason="plain" if cause == FORGED_PLAIN else "tag",
            )
        )

    def not_learned(
        self,
        runtime: TransportRuntime,
        source: int,
        words: tuple[int, int],
        epoch: int,
        outcome: int,
    ) -> None:
        """The sender of a packet was not taken in."""
        if outcome == FORGED_PACKET:
            if self._is_due((runtime.config.name, 0, "forged")):
                self.forgery(runtime, source, words, 0)
            return
        self._missing(
            runtime.config.name,
            source,
            epoch,
            runtime.address_text(words),
            f"node {source} seals under epoch {epoch}, which this node does not have, or it may "
            "not send",
        )

    def _missing(self, name: str, source: int, epoch: int, address: str, reason: str) -> None:
        if self._is_due((name, source, "missing")):
            self._peers.report(
                events.WireKeyMissing(
                    transport=name, node_id=source, epoch=epoch, address=address, reason=reason
                )
            )

    def _is_due(self, what: tuple[str, int, str]) -> bool:
        now_s = self._ctx.now_s()
        if now_s - self._reported_s.get(what, -REPORT_AGAIN_S) < REPORT_AGAIN_S:
            return False
        if len(self._reported_s) >= 1024:
            self._reported_s.clear()
        self._reported_s[what] = now_s
        return True


def _signature(path: Path) -> tuple[int, int, int]:
    """Changes when the file does; zeros: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
