"""Fill the topic of the examples: 1,000 orders, 300 changes to them, 50 deletes and 10 tombstones.

python produce.py            # send to localhost:9092, or to CHANGES_BROKERS
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = {"changes": 4, "changes.clean": 4, "changes.large": 1}


def change(number: int, op: str, amount: float, day: int) -> tuple[bytes, bytes]:
    """A change to one order. The key is the order id, so that the changes of an order stay in sequence."""
    order = {
        "order_id": number,
        "customer_id": f"c-{number % 50:02d}",
        "amount": amount,
        "changed_at": f"2026-01-{day:02d}T{number % 24:02d}:00:00Z",
        "op": op,
    }
    return str(number).encode(), json.dumps(order).encode()


def messages() -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values in the order in which they are sent."""
    yield from (change(number, "c", number * 0.5, 1) for number in range(1_000))
    yield from (change(number, "u", number * 0.5 + 1, 2) for number in range(300))
    yield from (change(number, "d", 0.0, 3) for number in range(950, 1_000))
    yield from ((str(number).encode(), None) for number in range(900, 910))


def produce(brokers: str) -> int:
    """Create the topics, send all messages, and return their number."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
        try:
            created.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SystemExit(f"creating topics at {brokers}: {error.args[0].str()}") from error
    # Idempotent: otherwise a retried request could arrive after later ones, such as a change after its delete.
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "enable.idempotence": True})
    failed, sent = [], 0
    for key, value in messages():
        producer.produce("changes", value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
        sent += 1
    if producer.flush(30) or failed:
        raise SystemExit(f"sending to changes at {brokers}: not everything was delivered: {failed[:1]}")
    return sent


if __name__ == "__main__":
    where = os.environ.get("CHANGES_BROKERS", "localhost:9092")
    print(f"sent {produce(where):,} messages to changes at {where}")
