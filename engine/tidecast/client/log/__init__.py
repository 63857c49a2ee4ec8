"""Reading durable topics without a subscription: `Connection.read`."""

from __future__ import annotations
