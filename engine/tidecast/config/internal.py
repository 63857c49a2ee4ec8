"""Internal topics, which carry replies to requests and the announcements of responders.

Each live topic ``T`` on which requests are sent has two of them, made and removed by the engine:
``_responders.T`` for announcements, ``_replies.T`` for replies. See docs/adr/0024.
"""

from __future__ import annotations

RESPONDERS, REPLIES = "_responders.", "_replies."
PREFIXES = (RESPONDERS, REPLIES)


def is_internal(name: str) -> bool:
    """Is it the name of an internal topic, or a pattern for some?"""
    return name.startswith(PREFIXES)


def served_topic(name: str) -> str:
    """The topic that an internal topic serves; any other name is its own."""
    return name.partition(".")[2] if name.startswith(PREFIXES) else name


def internal_topics(name: str) -> tuple[str, str]:
    """The internal topics that serve a topic."""
    return RESPONDERS + name, REPLIES + name
