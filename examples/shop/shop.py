"""The shop of docs/TUTORIAL.md: live prices, and orders that become invoices.

Run it: tidecast run shop:app --app-dir examples/shop --workers 2
"""

import msgspec

import tidecast
from tidecast.app import Reject, Retry


class Price(msgspec.Struct):
    item: str
    price: float


class Order(msgspec.Struct):
    id: int
    customer: str
    item: str
    quantity: int


class Invoice(msgspec.Struct):
    order: int
    customer: str
    total: float


app = tidecast.App("shop")
app.topic("orders", mode="durable", queues=4)
app.topic("orders.failed", mode="durable")
app.topic("invoices", mode="durable")
app.state.prices = {}


@app.subscriber("prices")
async def remember(price: Price, app: tidecast.App) -> None:
    app.state.prices[price.item] = price.price


@app.responder("quotes")
async def quote(item: str, app: tidecast.App) -> float:
    price: float = app.state.prices[item]
    return price


@app.consumer(
    "orders",
    "pricing",
    concurrency=8,
    publishes="invoices",
    retry=Retry(max_deliver=3, delays=(0.2, 1.0)),
    dead_letter="orders.failed",
)
async def price_order(order: Order, app: tidecast.App) -> Invoice:
    if order.quantity < 1:
        raise Reject("the quantity is below 1")
    price = app.state.prices[order.item]  # KeyError: no price has arrived, so try again later
    return Invoice(order.id, order.customer, order.quantity * price)
