"""The thread of an agent: each sender, receiver, archiver and puller has an `AgentRunner`.

To change an agent's state, other code passes in a command. The agent's kernel returns for it
(`A_STOP`), and the thread runs the command before it calls the kernel again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from tidecast.agents.command import PendingCommand
from tidecast.agents.events import A_STOP
from tidecast.agents.guard import Guard, OnFault
from tidecast.errors import Timeout
from tidecast.native.system.threads import prepare_agent_thread

Command = Callable[[], Any]
T = TypeVar("T")
COMMAND_TIMEOUT_S = 10.0
WAKE_AGAIN_S = 0.005


class AgentRunner:
    """See module. Not started, it runs commands at once: then the agent runs inline.

    ``run``: the kernel, until it is asked to stop or has events. ``drain`` hands its events on.
    ``wake`` ends its parking.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], object],
        attention: np.ndarray,
        drain: Callable[[], object],
        wake: Callable[[], None],
        on_fault: OnFault,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """``timeout_s``: how long a command may take to begin; None: COMMAND_TIMEOUT_S."""
        self.name = name
        self._run, self._attention, self._drain, self._wake = run, attention, drain, wake
        self._on_fault, self._timeout_s = on_fault, timeout_s
        self._commands: deque[Command] = deque()
        self._stopping = False
        self.thread: threading.Thread | None = None

    def start(self, core: int | None = None) -> None:
        """Start the thread; on ``core`` alone if given."""
        self._stopping = False
        self.thread = threading.Thread(target=self._main, args=(core,), name=self.name, daemon=True)
        self.thread.start()

    def _main(self, core: int | None) -> None:
        prepare_agent_thread(core)
        guard = Guard(self.name, self._on_fault)
        while not self._stopping:
            guard.round(self._run, self.obey, self._drain)

    def obey(self) -> None:
        """Run the commands that wait. After a failed command the others wait for the next cycle."""
        self._attention[A_STOP] = 0
        try:
            while self._commands:
                self._commands.popleft()()
        finally:  # never set it to 0 here: another thread may have set it just now
            if self._commands:
                self._attention[A_STOP] = 1

    def call(self, command: Callable[[], T]) -> T:
        """Run ``command`` in the agent's thread; return its result or raise its exception.

        Raises Timeout when the agent does not answer; the command never runs then.
        """
        if self.thread is None or threading.current_thread() is self.thread:
            return command()
        asked = PendingCommand(command)
        self._commands.append(asked)
        limit_s = COMMAND_TIMEOUT_S if self._timeout_s is None else self._timeout_s
        deadline = time.monotonic() + limit_s
        while not asked.done.is_set():
            self._ask()
            if asked.done.wait(WAKE_AGAIN_S):
                break
            dead = not self.thread.is_alive()
            if (dead or time.monotonic() > deadline) and (asked.give_up() or dead):
                raise Timeout(f"agent {self.name} does not answer")
        return cast("T", asked.outcome())

    def post(self, command: Command) -> None:
        """Run ``command`` between two duty cycles, some time soon."""
        self._commands.append(command)
        self._ask()

    def _ask(self) -> None:
        self._attention[A_STOP] = 1
        self._wake()

    def stop(self, patience_s: float | None = None) -> None:
        """Stop the thread and wait for its end, for ``patience_s`` at most. Idempotent."""
        thread = self.thread
        if thread is None:
            return
        self._stopping = True
        deadline = None if patience_s is None else time.monotonic() + patience_s
        while thread.is_alive() and (deadline is None or time.monotonic() < deadline):
            self._ask()
            thread.join(2 * WAKE_AGAIN_S)
        self.thread = None
