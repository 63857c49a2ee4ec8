"""Rows about a node's publications, images and receivers, and the ids of known nodes."""

from __future__ import annotations

from typing import Any

from tidecast.errors import NoResponders
from tidecast.node.context import NodeContext
from tidecast.node.live import agent_tables


def node_id_of(ctx: NodeContext, name: str) -> int:
    """Id of a node by name, of two nodes the later. Raises NoResponders.

    Names travel with a node's publications, and with its reports as a receiver.
    """
    if name == ctx.name:
        return ctx.id
    names = dict(ctx.names)
    for node_id in reversed(names):
        if names[node_id] == name:
            return node_id
    known = ", ".join(sorted(names.values())) or "none"
    unnamed = {row["node_id"] for row in receivers(ctx)} - names.keys()
    numbers = ", ".join(map(str, sorted(unnamed)))
    hint = f"; receivers whose names are not known yet: give their id, {numbers}" * bool(numbers)
    raise NoResponders(f"no node {name!r} was seen: known are {known}{hint}")


def publications(ctx: NodeContext) -> list[dict[str, Any]]:
    """One mapping a publication."""
    with ctx.lock:
        return [agent_tables.publication_row(p) for p in ctx.pubs.values()]


def images(ctx: NodeContext) -> list[dict[str, Any]]:
    """One mapping an image."""
    with ctx.lock:
        return [agent_tables.image_row(i) for i in ctx.images_by_id.values()]


def receivers(ctx: NodeContext) -> list[dict[str, Any]]:
    """One mapping a receiver of a publication of this node."""
    with ctx.lock:
        return [r for p in ctx.pubs.values() for r in agent_tables.receiver_rows(ctx.names, p)]
