"""Facts that the live feed reads from Postgres, once a second at most."""

from __future__ import annotations

from tidecast_control.alerts import repository as alerts
from tidecast_control.api.applied import drift_of
from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.live.channels import Facts
from tidecast_control.mirrors import repository as mirrors
from tidecast_control.nodes import repository as nodes


def read(db: Database) -> Facts:
    """Nodes, counts, alerts, subscriptions."""
    with db.begin() as session:
        version, _ = repository.clock(session)
        states = nodes.states(session)
        firing = alerts.firing(session)
        found = Facts(
            topics_total=repository.count(session, "topic"),
            firing=sum(not row.silenced for row in firing),
            silenced=sum(row.silenced for row in firing),
            subscriptions={
                row.name: row.spec for row in repository.all_of(session, "subscription")
            },
            mirrors=mirrors.figures(session),
        )
        for row in repository.all_of(session, "node"):
            name = row.name
            state = states.get(name)
            up = state is not None and state.connected
            why = drift_of(state, version) if up and state is not None else ""
            found.nodes[name] = {
                "state": "up" if up else "never" if state is None else "down",
                "drift": bool(why),
                "why": why,
                "topology_version": str(state.applied_version if state is not None else 0),
                "drained": bool(row.spec.get("drained")),
                "level": state.level if state is not None else 0,
                "version": state.software if state is not None else "",
            }
        return found
