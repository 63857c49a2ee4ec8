"""Two producers, three competing consumers, one of them killed, and a ledger of every order.

python order_pipeline.py [COUNT]

A consumer stores the result of an order before it acks the order. When the consumer dies in
between, the order is handled again, and its result may be stored twice: the ledger counts these
results. No order is missing, and every order that cannot be handled is one dead letter.
"""

import json
import multiprocessing
import sys
import threading
from collections import Counter

import tidecast.sync

POISON = 50  # every 50th order cannot be handled


def produce(client: tidecast.sync.Connection, name: str, numbers: range) -> None:
    with client.publisher("shop.orders", producer=name, first_seq=1) as publisher:
        for number in numbers:
            publisher.publish(b"%d" % number, key=f"customer-{number % 97}")
        publisher.wait_durable(timeout=60.0)


def result_of(number: int) -> bytes:
    if number % POISON == 0:
        raise ValueError(f"order {number} has no address")
    return b"%d" % number


def consume() -> None:
    """Store the results of a batch, then ack its orders; refuse the orders that fail."""
    with (
        tidecast.sync.connect(name="consumer") as client,
        client.publisher("shop.handled") as results,
        client.consumer("shop.orders", "billing") as orders,
    ):
        while True:
            handled = []
            for message in orders.fetch(max_messages=50, max_wait=60.0):
                if message.held_back:
                    message.give_back()
                    continue
                try:
                    results.publish(result_of(int(message.data)))
                except ValueError:
                    message.nak(delay=0.01)
                else:
                    handled.append(message)
            results.wait_durable(timeout=60.0)
            for message in handled:
                message.ack()


def main(count: int) -> bool:
    with tidecast.sync.connect(name="ledger") as client:
        client.topics.ensure("shop.orders", mode="durable", queues=4)
        client.topics.ensure("shop.failed", mode="durable")
        client.topics.ensure("shop.handled", mode="durable", fsync_interval_ms=5)
        client.subscriptions.ensure(
            "shop.orders", "billing", max_deliver=3, dead_letter="shop.failed"
        )
        context = multiprocessing.get_context("spawn")
        consumers = [context.Process(target=consume, daemon=True) for _ in range(3)]
        for consumer in consumers:
            consumer.start()
        halves = range(1, count // 2 + 1), range(count // 2 + 1, count + 1)
        producers = [
            threading.Thread(target=produce, args=(client, f"producer {n}", half))
            for n, half in enumerate(halves)
        ]
        for producer in producers:
            producer.start()

        letters: Counter[int] = Counter()
        handled: Counter[int] = Counter()
        with (
            client.consumer("shop.handled", "ledger") as results,
            client.consumer("shop.failed", "ledger") as failures,
        ):
            while len(handled) + len(letters) < count:
                for counter, source in ((handled, results), (letters, failures)):
                    batch = source.fetch(max_messages=1000, max_wait=0.05)
                    counter.update(int(payload) for payload in batch.payloads())
                    batch.ack()
                if len(handled) > count // 4 and consumers[0].is_alive():
                    consumers[0].kill()
        for consumer in consumers:
            consumer.kill()
            consumer.join()
        for producer in producers:
            producer.join()
    sent = set(range(1, count + 1))
    poison = {number for number in sent if number % POISON == 0}
    ledger = {
        "sent": count,
        "missing": len(sent - handled.keys() - letters.keys()),
        "handled": len(handled),
        "stored_twice": sum(handled.values()) - len(handled),
        "dead_letters": sum(letters.values()),
        "wrong_dead_letters": len(letters.keys() ^ poison),
    }
    print(json.dumps(ledger))
    return not ledger["missing"] and not ledger["wrong_dead_letters"]


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000))
