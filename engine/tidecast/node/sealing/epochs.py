"""Which epochs of a sealed transport are accepted, and which epoch seals.

A step without a clock: `EpochChoice.choose` gets the times. By the service's time an epoch begins
and ends when it is planned. A host's own clock may be wrong by any amount. So without the service's
time, epochs that others send under count more than the clock, and an epoch ends late: too late
costs nothing but memory, too early makes the engine deaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidecast.node.sealing.wire_keys import WireEpoch

S = 10**9
HELD_S_MAX = 600
"""A new epoch waits for so long at most in an engine that has only its own clock."""
MARGIN_NS = 7 * 86_400 * S
"""By a host's own clock an epoch ends so much later than planned."""
HEARD_NS = 5 * S
"""An epoch that another engine sealed a packet under since then is in use there."""
INSIST_NS = 30 * S
"""Others that send under an epoch for so long make it begin, whatever the service's time."""
OUTLIVED_NS_MAX = 3600 * S
"""By the service's time: an epoch that is over is taken for so long at most, if others use it."""


@dataclass(frozen=True, slots=True)
class Times:
    """Now. ``service_ns``: ns since 1970 at the control service; None: it has not answered."""

    monotonic_ns: int
    wall_ns: int
    service_ns: int | None = None

    @property
    def best_ns(self) -> int:
        """The service's time, else the host's."""
        return self.wall_ns if self.service_ns is None else self.service_ns


class EpochChoice:
    """Of one transport. ``required``: it sends no plain packets, so any secret will do."""

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self.active = 0
        """The epoch in use; 0: none."""
        self._held_ns: dict[int, int] = {}
        """By epoch: since when it is known here."""
        self._used_ns = 0
        """Since when the epoch in use is in use."""
        self._heard_ns: dict[int, int] = {}
        """By epoch: since when others are known to send under it."""

    def choose(
        self, epochs: Sequence[WireEpoch], times: Times, heard: Mapping[int, int]
    ) -> tuple[list[WireEpoch], int]:
        """(epochs whose packets are taken, the epoch to send under or 0).

        ``epochs``: of the file, oldest first. ``heard``: by epoch, the monotonic time of the newest
        authentic packet of another engine.
        """
        known = {each.epoch for each in epochs}
        now_ns = times.monotonic_ns
        self._held_ns = {e: self._held_ns.get(e, now_ns) for e in known}
        self._heard_ns = {
            e: self._heard_ns.get(e, now_ns) for e in known if e in heard or e in self._heard_ns
        }
        fresh = {e for e, at_ns in heard.items() if now_ns - at_ns <= HEARD_NS}
        living = [each for each in epochs if not self._is_over(each, epochs, times, fresh)]
        chosen = self._chosen(living, times, fresh) if living else 0
        if chosen != self.active:
            self.active, self._used_ns = chosen, now_ns
        return living, chosen

    # --- the end of an epoch ----------------------------------------------------------------------

    def _is_over(
        self, each: WireEpoch, epochs: Sequence[WireEpoch], times: Times, fresh: set[int]
    ) -> bool:
        late_ns = 0 if times.service_ns is not None else MARGIN_NS
        if not each.retire_at_ns or times.best_ns < each.retire_at_ns + late_ns:
            return False
        later = [other for other in epochs if other.epoch > each.epoch]
        if not later:
            return True  # nothing follows: its owner ended it
        if self.active not in {other.epoch for other in later}:
            return False  # it is in use here, or nothing is yet
        used_ns = times.monotonic_ns - self._used_ns
        if used_ns < _overlap_ns(each, later[0]):
            return False
        outlives = times.service_ns is None or used_ns < OUTLIVED_NS_MAX
        return not (each.epoch in fresh and outlives)

    # --- the epoch to send under ------------------------------------------------------------------

    def _chosen(self, living: Sequence[WireEpoch], times: Times, fresh: set[int]) -> int:
        begun = [each.epoch for each in living if each.activate_at_ns <= times.best_ns]
        found = begun[-1] if begun else 0
        newest, waits = living[-1].epoch, False
        if times.service_ns is None:
            waits = self._waits(living, times.monotonic_ns)
            if newest in self._heard_ns:
                found = newest
            elif waits and found == newest:
                before = living[-2].epoch
                found = before if self.active == before or before in fresh else newest
        elif self._insist(newest, times.monotonic_ns):
            found = newest
        if not found and self._required:
            found = living[0].epoch
        if self.active in {each.epoch for each in living} and not waits:
            found = max(found, self.active)  # a clock that is set back begins no older epoch
        return found

    def _insist(self, epoch: int, now_ns: int) -> bool:
        """Others have sent under it for a while."""
        return epoch in self._heard_ns and now_ns - self._heard_ns[epoch] >= INSIST_NS

    def _waits(self, living: Sequence[WireEpoch], now_ns: int) -> bool:
        """The newest epoch is known here for less time than both epochs are taken, as planned.

        Others may not have it yet, whatever time this host's clock has.
        """
        if len(living) < 2 or living[-1].epoch in self._heard_ns:
            return False
        held_ns = now_ns - self._held_ns[living[-1].epoch]
        return held_ns < _overlap_ns(living[-2], living[-1])


def _overlap_ns(before: WireEpoch, after: WireEpoch) -> int:
    """For how long both are taken, as planned; limited."""
    planned_ns = before.retire_at_ns - after.activate_at_ns
    return min(max(planned_ns, 0), HELD_S_MAX * S)
