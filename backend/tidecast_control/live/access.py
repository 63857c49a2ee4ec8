"""The rights that a channel of the live feed needs: one rule for websocket and routes."""

from __future__ import annotations

from tidecast_control.kit.actor import Actor
from tidecast_control.kit.rights import EVERY_TOPIC

OF_TOPIC = ("topic", "messages")
OF_PLATFORM = {
    "keys": "keys:read",
    "audit": "audit:read",
    "recorder": "nodes:read",
    "moves": "nodes:read",
    "kafka": "nodes:read",
}
"""Channels about the platform, and the right that their routes take too."""


def need_channel(actor: Actor, name: str) -> None:
    """Raise `denied` unless the actor may watch a channel.

    A channel of a topic shows that topic, every other shows all of them.
    """
    kind, _, rest = name.partition(":")
    actor.need("live:read")
    if kind in OF_PLATFORM:
        actor.need(OF_PLATFORM[kind])  # with scopes: `manage` on every topic
    actor.need_shown(rest if kind in OF_TOPIC else EVERY_TOPIC)
