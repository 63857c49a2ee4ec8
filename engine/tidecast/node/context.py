"""Shared by the parts of a node: settings, clock, ids, registries, shared memory, events.

A part of the node receives this context, and the few other parts that it calls; no part receives
the whole node. The registries are read by all parts. An entry is added and removed by the part that
owns its kind: `live.publications`, `live.images`, `live.subscriptions`, `live.topics`, `clients`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from tidecast import events
from tidecast.agents.run import ring_bell_line
from tidecast.api.levels import check_level
from tidecast.buffers.counters import CountersFile
from tidecast.buffers.recorder import create_recorder, record_from_python
from tidecast.config.topology import (
    NodeConfig,
    TopicConfig,
    Topology,
    is_pattern,
    matches,
    shm_dir,
)
from tidecast.errors import ForkedProcess
from tidecast.layout import counters as counters_layout
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.node.conductor import RAN_S_MAX, Conductor, Fault
from tidecast.node.lanes import Lanes
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.registry import Indexed
from tidecast.node.shm_directory import adopt_recorder, make_directory, remove_directory
from tidecast.node.state import Client, Image, Publication, ResumePositions, Subscription

STAMP_AHEAD_NS_MAX = 366 * 86_400 * 10**9
"""A host's clock jumps back so far at most: stamps that are further ahead are not believed."""


class NodeContext:
    """See module. `create_files` makes the shared memory, `remove_files` removes it."""

    def __init__(
        self,
        topology: Topology,
        data_dir: Path,
        *,
        inline: bool = False,
        seed: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        incarnation: int | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        check_level(topology.level)
        self.topology, self.data_dir, self.inline = topology, data_dir, inline
        self.id, self.name = topology.node.id, topology.node.name
        self.clock_ns = clock_ns
        self.wall_ns = wall_ns
        """The time of day, ns since 1970."""
        self._stamp_ns, self._stamps_begin_ns = 0, wall_ns() - clock_ns()
        self.incarnation = wall_ns() if incarnation is None else incarnation
        self.started = False
        self._ticked_s = 0.0
        self.ran_s = 0.0
        """For how long the conductor has run: its process may be stopped, or get no core."""
        self.seed = seed
        self._random = np.random.default_rng(seed) if seed is not None else None
        self.ids = itertools.count(1)
        self.lock = threading.RLock()
        self.conductor = Conductor(self.lock, clock_ns, inline=inline, report=self._report)
        self.runtimes = Lanes()
        self.clients: dict[int, Client] = {}
        self.pubs: Indexed[Publication] = Indexed(
            topic=lambda p: p.topic.name, session=lambda p: p.session
        )
        self.subs: Indexed[Subscription] = Indexed(
            pattern=lambda s: "" if is_pattern(s.pattern) else s.pattern
        )
        self.ending_subs: dict[int, Subscription] = {}
        """Subscriptions whose topic is deleted; their clients read the rest."""
        self.images_by_id: Indexed[Image] = Indexed(
            topic=lambda i: i.topic.name,
            session=lambda i: (i.runtime.config.name, i.session),
            node=lambda i: i.node_id,
        )
        self.names: dict[int, str] = {}
        """Names of nodes by id; the newest comes last."""
        self.topic_by_name: dict[str, TopicConfig] = {t.name: t for t in topology.topics}
        self.resume_positions = ResumePositions()
        self._on_events: Callable[[int], None] | None = None
        self._on_source_gone: Callable[[Publication | Image], None] | None = None
        self._pid = os.getpid()
        self.directory = shm_dir(data_dir) / f"{time.time_ns():x}-{self._pid}"
        self.bells_path = self.directory / "doorbells"
        self.counters_path = self.directory / "counters"
        self.recorder_path = data_dir / "recorder"

    # --- life -------------------------------------------------------------------------------------

    def create_directory(self) -> None:
        """Create the directory of the shared memory, and lock it."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._alive = make_directory(self.directory, self.data_dir)

    @contextlib.contextmanager
    def create_files(self) -> Iterator[None]:
        """Create doorbells, counters, recorder. The recorder replaces the old one at the end."""
        fresh = self.recorder_path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            self._bells = MappedFile.create(self.bells_path, lay.DOORBELLS_MAX * lay.DOORBELL_BYTES)
            self.counters = CountersFile.create(self.counters_path)
            self._recorder = create_recorder(fresh)
            self.node_row = self.counters.allocate(
                counters_layout.ROW_NODE, self.name, str(self.id)
            )
            yield
            adopt_recorder(fresh, self.recorder_path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def remove_files(self) -> None:
        """Remove the shared memory and drop the lock. A forked child does nothing."""
        if os.getpid() == self._pid:
            remove_directory(self.directory)
            os.close(self._alive)
            with contextlib.suppress(OSError):
                self.directory.parent.rmdir()

    def stamp_ns(self) -> int:
        """Orders rings: the time of day when the engine began, advanced by its timers' clock.

        Each is later than all before, so a clock that jumps exchanges no rings.
        """
        self._stamp_ns = max(self._stamps_begin_ns + self.clock_ns(), self._stamp_ns + 1)
        return self._stamp_ns

    def note_stamp(self, stamp_ns: int) -> None:
        """An earlier engine of this host gave a stamp. A stamp that is too far ahead is damaged."""
        ahead_ns = stamp_ns - self._stamps_begin_ns - self.clock_ns()
        if 0 < ahead_ns < STAMP_AHEAD_NS_MAX:
            self._stamps_begin_ns += ahead_ns
            self._stamp_ns = max(self._stamp_ns, stamp_ns)

    def note_tick(self, now_s: float) -> None:
        """The conductor runs at ``now_s``, by the node's clock."""
        self.ran_s += min(now_s - self._ticked_s, RAN_S_MAX)
        self._ticked_s = now_s

    def set_started(self, started: bool) -> None:
        """The node serves clients, or stops."""
        self.started = started

    def set_node_settings(self, settings: NodeConfig) -> None:
        """Replace the node's section of the topology."""
        self.topology = msgspec.structs.replace(self.topology, node=settings)

    def set_level(self, level: int) -> None:
        """Write this level from now on. Raises ConfigError: this build does not read it."""
        check_level(level)
        self.topology = msgspec.structs.replace(self.topology, level=level)

    def check_process(self) -> None:
        """Raise ForkedProcess in a child of the node's process."""
        if os.getpid() != self._pid:
            raise ForkedProcess("this node belongs to the parent process: make one in the child")

    @property
    def bells(self) -> np.ndarray:
        """The doorbell file's bytes."""
        return self._bells.array

    @property
    def recorder(self) -> Bytes:
        """The flight recorder's bytes."""
        return self._recorder.array

    def now_s(self) -> float:
        """The node's clock in seconds."""
        return self.clock_ns() / 1e9

    def random_id(self, bits: int) -> int:
        """A random id above 0."""
        if self._random is not None:
            return int(self._random.integers(1, (1 << bits) - 1))
        return secrets.randbelow((1 << bits) - 1) + 1

    # --- registries -------------------------------------------------------------------------------

    def subscriptions_to(self, topic: str) -> list[Subscription]:
        """Subscriptions that cover a topic."""
        wild = [s for s in self.subs.of("pattern", "") if matches(s.pattern, topic)]
        return self.subs.of("pattern", topic) + wild

    def living_images(self, runtime: TransportRuntime, session: int) -> list[Image]:
        """Images of a session that still receive."""
        images = self.images_by_id.of("session", (runtime.config.name, session))
        return [image for image in images if not image.gone]

    # --- reports ----------------------------------------------------------------------------------

    def count(self, counter: counters_layout.NodeCounter, more: int = 1) -> None:
        """Add to a counter of the node."""
        self.counters.values[self.node_row, counter] += more

    def note(
        self, section: int, code: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0
    ) -> None:
        """A flight-recorder record of the conductor."""
        record_from_python(
            self.recorder,
            rec.WRITER_CONDUCTOR,
            section,
            self.clock_ns(),
            int(code),
            entity,
            a,
            b,
            c,
            d,
        )

    def notify(self, client_id: int, event: events.Event) -> None:
        """Queue an event for a client and ring its bell."""
        client = self.clients.get(client_id)
        if client is None:
            return
        if len(client.events) == client.events.maxlen:
            self.count(counters_layout.NodeCounter.EVENTS_LOST)
        client.events.append(msgspec.structs.replace(event, at_ns=self.wall_ns()))
        ring_bell_line(self.bells, client.doorbell)
        if self._on_events is not None:
            self._on_events(client_id)

    def notify_all(self, event: events.Event) -> None:
        """Queue an event for every client."""
        for client_id in list(self.clients):
            self.notify(client_id, event)

    def notify_gone(
        self, subscription_id: int, image_id: int, topic: str, node: str, session: int, reason: str
    ) -> None:
        """Notify a subscription that a publication which it reads has ended."""
        subscription = self.subs.get(subscription_id) or self.ending_subs.get(subscription_id)
        if subscription is not None:
            self.notify(
                subscription.client,
                events.ImageGone(
                    subscription_id=subscription_id,
                    image_id=image_id,
                    topic=topic,
                    node=node,
                    session=session,
                    reason=reason,
                ),
            )

    def source_gone(self, source: Publication | Image) -> None:
        """A publication or image is about to end: its counters can still be read."""
        if self._on_source_gone is not None:
            self._on_source_gone(source)

    def set_events_hook(self, hook: Callable[[int], None] | None) -> None:
        """Call ``hook(client id)`` after an event was queued; None: no more."""
        self._on_events = hook

    def set_source_gone_hook(self, hook: Callable[[Publication | Image], None] | None) -> None:
        """Call ``hook`` in `source_gone`; None: no more."""
        self._on_source_gone = hook

    def _report(self, fault: Fault) -> None:
        """The conductor reports an exception that no code expected."""
        self.count(counters_layout.NodeCounter.ENGINE_FAULTS)
        if fault.is_repeated:
            return
        name = fault.agent.partition("-")[0]
        number = rec.AGENT_NAMES.index(name) if name in rec.AGENT_NAMES else len(rec.AGENT_NAMES)
        self.note(rec.ALERT, rec.Code.ENGINE_FAULT, 0, number, fault.number, fault.in_a_row)
        self.notify_all(
            events.EngineFault(
                node=self.name,
                agent=fault.agent,
                problem=f"{type(fault.problem).__name__}: {fault.problem}",
                faults=fault.number,
            )
        )
