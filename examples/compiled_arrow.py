"""The same messages in three ways: a compiled handler, Arrow columns, and plain Python.

python compiled_arrow.py [COUNT]

Each message has a random price and a random text. All three readers must find the same number of
messages, bytes and prices.
"""

import json
import random
import struct
import sys
from typing import Any

import numpy as np

import tidecast
import tidecast.sync

PRICE = struct.Struct("<q")


def add_up(data, state) -> None:  # type: ignore[no-untyped-def]
    """Compiled by Numba: ``data`` is uint8[:], the first 8 bytes are the price."""
    price = np.int64(0)
    for i in range(8):
        price |= np.int64(data[i]) << (8 * i)
    state[0] += 1
    state[1] += len(data)
    state[2] += price


def compiled(messages: tidecast.sync.Subscription, count: int) -> list[int]:
    state = np.zeros(3, dtype=np.int64)
    messages.run_compiled(add_up, state, max_messages=count)
    return [int(each) for each in state]


def arrow(messages: tidecast.sync.Subscription, count: int) -> list[int]:
    import pyarrow.compute as pc

    found = np.zeros(3, dtype=np.int64)
    for batch in messages.batches(max_messages=1000):
        column: Any = batch.to_arrow()
        heads = pc.binary_slice(column, 0, PRICE.size)
        prices = np.frombuffer(b"".join(heads.to_pylist()), dtype="<i8")
        found += [len(column), pc.sum(pc.binary_length(column)).as_py(), prices.sum()]
        if found[0] == count:
            break
    return [int(each) for each in found]


def plain(messages: tidecast.sync.Subscription, count: int) -> list[int]:
    n = size = total = 0
    for message in messages:
        n, size = n + 1, size + message.size
        total += PRICE.unpack_from(message.data)[0]
        if n == count:
            break
    return [n, size, total]


def main(count: int) -> bool:
    dice = random.Random(7)
    prices = [dice.randrange(1 << 40) for _ in range(count)]
    payloads = [PRICE.pack(price) + bytes(dice.randrange(200)) for price in prices]
    tidecast.compile_handler(add_up, np.zeros(3, dtype=np.int64))  # before subscribing
    with (
        tidecast.sync.connect(name="three ways") as client,
        client.subscribe("quotes.binary") as first,
        client.subscribe("quotes.binary") as second,
        client.subscribe("quotes.binary") as third,
    ):
        client.publish_batch("quotes.binary", payloads).check()
        client.flush()
        found = {
            "compiled": compiled(first, count),
            "arrow": arrow(second, count),
            "plain": plain(third, count),
        }
    sent = [count, sum(map(len, payloads)), sum(prices)]
    print(json.dumps({"sent": sent} | found))
    return all(each == sent for each in found.values())


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
