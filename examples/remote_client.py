"""A client without an engine of its own, through a gateway, with a key that has two rights.

TIDECAST_KEY=tck_... python remote_client.py tidecast+tls://db1.example:7400 [COUNT]

The key may publish to ``remote.orders`` and read the subscription ``shipping``, which its owner has
created. The ledger shows what arrived, and each attempt to exceed the two rights, with its error:

    tidecast key new shop --allow publish:remote.orders --allow subscribe:remote.orders
    tidecast topic create remote.orders --mode durable
    tidecast subscription create remote.orders shipping
"""

import json
import os
import sys
from collections.abc import Callable

import tidecast
import tidecast.sync


def attempts(client: tidecast.sync.Connection) -> dict[str, Callable[[], object]]:
    """Everything that the key may not do."""
    return {
        "publish elsewhere": lambda: client.publish("payments", b"x"),
        "subscribe elsewhere": lambda: client.subscribe("payments"),
        "subscribe to a wider pattern": lambda: client.subscribe("remote.>"),
        "create a topic": lambda: client.topics.create("remote.more", mode="durable"),
        "edit the topic": lambda: client.topics.edit("remote.orders", retention_s=1.0),
        "delete the topic": lambda: client.topics.delete("remote.orders"),
        "create a subscription": lambda: client.consumer("remote.orders", "spy"),
        "move the subscription": lambda: client.subscriptions.seek(
            "remote.orders", "shipping", "latest"
        ),
        "pause the subscription": lambda: client.subscriptions.pause("remote.orders", "shipping"),
        "delete the subscription": lambda: client.subscriptions.delete("remote.orders", "shipping"),
        "pause the topic": lambda: client.topics.pause("remote.orders"),
    }


def refusal(attempt: Callable[[], object]) -> str:
    """The code of the error; empty when the attempt was allowed."""
    try:
        attempt()
    except tidecast.TidecastError as problem:
        return problem.code
    return ""


def main(url: str, count: int) -> bool:
    with tidecast.sync.connect(url, token=os.environ["TIDECAST_KEY"]) as client:
        with client.publisher("remote.orders") as publisher:
            for n in range(count):
                publisher.publish(b"%d" % n, key=f"customer-{n % 7}")
            publisher.wait_durable(timeout=30.0)
        arrived: list[int] = []
        with client.consumer("remote.orders", "shipping") as consumer:
            while len(arrived) < count and (batch := consumer.fetch(500, max_wait=10.0)):
                arrived += [int(payload) for payload in batch.payloads()]
                batch.ack()
        refused = {name: refusal(attempt) for name, attempt in attempts(client).items()}
    same = sorted(arrived) == list(range(count))
    print(json.dumps({"sent": count, "arrived": len(arrived), "same": same, "refused": refused}))
    return same and all(refused.values())


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000))
