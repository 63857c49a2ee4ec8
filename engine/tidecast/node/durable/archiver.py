"""The archiver at run time: its state, its thread, and the thread that syncs. Inline: neither.

To change the archiver's state, pass a command (`on_archiver`): it runs between two duty cycles, or
at once when the agents are inline. A thread that needs no cycle before its command can borrow the
state of an archiver that is parked (`on_parked_archiver`): no thread has to wake up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tidecast.agents.archiver import cycle as archiver_cycle
from tidecast.agents.archiver import state as ast
from tidecast.agents.events import A_EVENTS, EVENTS_MAX
from tidecast.agents.guard import Guard, OnFault
from tidecast.agents.idle import BACKOFF, ONCE
from tidecast.agents.run import ring_bell_line
from tidecast.agents.runner import AgentRunner
from tidecast.agents.states import SCRATCH_BYTES
from tidecast.buffers.member_ring import wake_queue
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes

T = TypeVar("T")
Rows = list[list[int]]
_SYNC_WAIT_NS = 100_000_000


class ArchiverRuntime:
    """``on_events`` gets rows of `archiver_state.E_*`, in the archiver's thread.

    ``sync(queue row) -> 0 or -errno``: make the appended records of a queue durable.
    """

    def __init__(
        self,
        *,
        counters: np.ndarray,
        bells: Bytes,
        inline: bool,
        on_events: Callable[[Rows], None],
        sync: Callable[[int], int],
        on_fault: OnFault,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._on_fault, self._wall_ns = on_fault, wall_ns
        self.state = ast.archiver_state(counters=counters, bells=bells)
        self.inline, self._bells = inline, bells
        self._on_events, self._sync_queue = on_events, sync
        self._words = self.state.words
        self._fields = np.zeros(8, dtype=np.int64)
        self._scratch = np.zeros(SCRATCH_BYTES, dtype=np.uint8)
        self._agent: AgentRunner | None = None
        self._syncer: threading.Thread | None = None
        self._stop = threading.Event()
        self._borrower = 0
        """The thread that has borrowed the archiver's state; 0: none has."""
        self.syncs_inline = True
        """Inline, `work` syncs by itself; else its owner calls `sync_all`."""

    def start(self) -> None:
        """Start the threads; nothing to do when inline."""
        if self.inline or self._agent is not None:
            return
        self._agent = AgentRunner(
            "archiver",
            lambda: self._run(BACKOFF, 0, 0),
            self.state.attention,
            self.drain_events,
            lambda: ring_bell_line(self._bells, lay.DOORBELL_ARCHIVER),
            self._on_fault,
        )
        self._syncer = threading.Thread(target=self._sync_loop, name="archiver-sync", daemon=True)
        self._agent.start()
        self._syncer.start()

    def _run(self, idle: int, now_ns: int, wall_ns: int) -> int:
        fields, scratch = self._fields, self._scratch
        return int(archiver_cycle.run_archiver(self._words, idle, fields, scratch, now_ns, wall_ns))

    def on_archiver(self, command: Callable[[], T]) -> T:
        """Run a command in the archiver's thread, between two duty cycles. Raises Timeout.

        A cycle is between two commands of a caller: the messages that rings held at the first
        command are in the log at the second, unless a cycle cannot take them all or a disk refuses.
        """
        if self._agent is None or self._borrower == threading.get_ident():
            return command()
        return self._agent.call(command)

    def on_parked_archiver(self, command: Callable[[], T]) -> T:
        """Run a command between two duty cycles: in this thread while the archiver is parked.

        No thread wakes up for it, and no cycle need be between two commands. Raises Timeout.
        """
        if self._agent is None or not archiver_cycle.borrow_archiver(self._words):
            return self.on_archiver(command)
        self._borrower = threading.get_ident()
        try:
            return command()
        finally:
            self._borrower = 0
            archiver_cycle.give_back(self._words)

    def drain_events(self) -> None:
        """Hand on the reports of the archiver."""
        n = int(self.state.attention[A_EVENTS])
        if n == 0:
            return
        rows = self.state.events[: min(n, EVENTS_MAX)].tolist()
        self.state.attention[A_EVENTS] = 0
        self._on_events(rows)

    def work(self, now_ns: int | None = None) -> int:
        """One duty cycle and, if due, a sync; in the caller's thread."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        done = self._run(ONCE, now, self._wall_ns())
        self.drain_events()
        if self.sync_asked and self.syncs_inline:
            self.sync_all()
        return done

    @property
    def sync_asked(self) -> bool:
        """The archiver waits for a sync."""
        return bool(self.state.misc[ast.M_SYNC] == ast.SYNC_ASKED)

    def sync_all(self) -> None:
        """Sync every queue of the topics that take part, note the outcome, report the end."""
        topics, queues = self.state.topics, self.state.queues
        for row in np.flatnonzero((queues["active"] != 0) & (queues["dirty"] != 0)).tolist():
            topic = topics[int(queues["topic"][row])]
            if topic["syncing"] != ast.SYNCING:
                continue
            queues["dirty"][row] = 0  # later appends are part of the next sync
            try:
                status = self._sync_queue(row)
            except BaseException:
                queues["dirty"][row] = 1
                raise
            if status < 0:
                queues["dirty"][row] = 1
                topic["sync_status"] = status
            elif (
                queues["puller"][row] > 0 and not topic["stored"]
            ):  # policy batch: synced records may be read now
                wake_queue(self.state.wakes, self._bells, int(queues["puller"][row]) - 1)
        archiver_cycle.sync_done(self._words)

    def wake_readers(self, row: int) -> None:
        """A queue has more that its consumers may read, and that is durable."""
        puller = int(self.state.queues["puller"][row])
        if puller > 0:
            wake_queue(self.state.wakes, self._bells, puller - 1)
        ring_bell_line(self._bells, lay.DOORBELL_ARCHIVER)

    def _sync_loop(self) -> None:
        scratch = np.zeros(SCRATCH_BYTES, dtype=np.uint8)
        guard = Guard("archiver-sync", self._on_fault)

        def step() -> None:
            if archiver_cycle.wait_for_sync(self._words, _SYNC_WAIT_NS, scratch):
                self.sync_all()

        while not self._stop.is_set():
            guard.round(step)

    def stop(self) -> None:
        """Stop the threads. Idempotent."""
        if self._agent is not None:
            self._agent.stop()
            self._agent = None
        self._stop.set()
        ring_bell_line(self._bells, lay.DOORBELL_ARCHIVER + 1)
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
