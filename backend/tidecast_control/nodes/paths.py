"""Peers that engines hear on unicast transports: the reports of all engines, put together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidecast_control.kit.problems import ProblemError
from tidecast_control.nodes.records import shown
from tidecast_control.nodes.schemas import ClusterPeers, PeerPath

if TYPE_CHECKING:
    from tidecast_control.link.hub import Hub

ANSWER_S = 2.0
FIELDS = ("transport", "address", "heard_age_s", "silent")


async def of_cluster(hub: Hub) -> ClusterPeers:
    """Ask all connected engines at once. One that is old, or does not answer, is named."""
    names = hub.connected()
    asked = [hub.ask(name, "peers", {}, ANSWER_S) for name in names]
    found = await asyncio.gather(*asked, return_exceptions=True)
    paths: list[PeerPath] = []
    unanswered: list[str] = []
    for name, answer in zip(names, found, strict=True):
        try:
            if isinstance(answer, BaseException):
                raise answer
            paths += _paths(name, answer, names)
        except ProblemError:
            unanswered.append(name)
    paths.sort(key=lambda path: (path.node, path.transport, path.peer))
    return ClusterPeers(paths=paths, unanswered=unanswered)


def _paths(node: str, answer: dict[str, Any], up: list[str]) -> list[PeerPath]:
    def show() -> list[PeerPath]:
        return [
            PeerPath(
                node=node,
                peer=row["node"],
                peer_state="up" if row["node"] in up else "down",
                **{name: row[name] for name in FIELDS},
            )
            for row in answer["peers"]
        ]

    return shown(node, "peers", show)
