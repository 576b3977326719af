"""Fill the topics of the examples: orders in order of event time, five late ones, and payments.

python produce.py            # send to localhost:9092, or to SHOP_BROKERS
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = {"shop.orders": 4, "shop.payments": 2, "shop.enriched": 4}
ORDERS = 1_000
START = datetime(2026, 1, 1, tzinfo=UTC)
TOMORROW = 24 * 60 * 6

Row = dict[str, Any]


def at(number: float) -> datetime:
    """The time of an order: one every ten seconds."""
    return START + timedelta(seconds=number * 10)


def order(number: int, ordered_at: datetime) -> Row:
    """One order."""
    customer = 99 if number % 100 == 99 else number % 50
    return {
        "order_id": number,
        "customer_id": f"c-{customer:02d}",
        "email": f"c-{customer:02d}@shop.example",
        "city": (" Bonn", "Ulm ", "Ko\u0308ln")[number % 3],
        "amount": -5.0 if number % 200 == 7 else round(number * 0.37, 2),
        "ordered_at": ordered_at.isoformat(),
    }


def payment(number: int, paid_at: datetime) -> Row:
    """The payment of an order."""
    return {
        "order_id": number,
        "method": ("card", "cash")[number % 2],
        "paid": round(number * 0.37, 2),
        "paid_at": paid_at.isoformat(),
    }


def orders() -> Iterator[Row]:
    """A thousand orders, five late ones, and one of the next day, which ends all windows of the first day."""
    yield from (order(number, at(number)) for number in range(ORDERS))
    yield from (order(number, at(number - ORDERS)) for number in range(ORDERS, ORDERS + 5))
    yield order(ORDERS + 5, at(TOMORROW))


def payments() -> Iterator[Row]:
    """Nine of ten orders are paid after five minutes, and half of the others after three hours."""
    for number in range(ORDERS):
        if number % 10:
            yield payment(number, at(number) + timedelta(minutes=5))
        elif number % 20:
            yield payment(number, at(number) + timedelta(hours=3))
    yield payment(ORDERS + 5, at(TOMORROW) + timedelta(minutes=5))


def produce(brokers: str) -> int:
    """Create the topics, send all messages, and return their number."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
        try:
            created.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SystemExit(f"creating topics at {brokers}: {error.args[0].str()}") from error
    # Idempotent, so that a retried request keeps its place: the late orders must come last.
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "enable.idempotence": True})
    failed: list[Any] = []
    sent = 0
    for topic, rows in (("shop.orders", orders()), ("shop.payments", payments())):
        for row in rows:
            producer.produce(
                topic,
                json.dumps(row).encode(),
                str(row["order_id"]).encode(),
                partition=row["order_id"] % TOPICS[topic],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            sent += 1
    if producer.flush(30) or failed:
        raise SystemExit(f"sending to {brokers}: not everything was delivered: {failed[:1]}")
    return sent


if __name__ == "__main__":
    where = os.environ.get("SHOP_BROKERS", "localhost:9092")
    print(f"sent {produce(where):,} messages to {where}")
