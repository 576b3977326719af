"""Fill the topic of the example: 1,000 orders, 10 of them negative, 10 sent twice, and 4 messages that are not orders.

python produce.py            # send to localhost:9092, ORDERS_BROKERS, or with the client settings in ORDERS_CLIENT
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "orders"
PARTITIONS = 4
ORDERS = 1_000
NOT_ORDERS: tuple[bytes | None, ...] = (
    b'{"order_id": 1, "amount": 12.',
    b'{"order_id": 2, "amount": "twelve"}',
    b'{"customer_id": "c-3", "amount": 3.5}',
    None,
)


def messages() -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values in the order in which they are sent."""
    for number in range(ORDERS):
        amount = -5.0 if number % 100 == 7 else round(number * 0.37, 2)
        order = {
            "order_id": number,
            "customer_id": f"c-{number % 50:02d}",
            "amount": amount,
            "event_time": f"2026-01-{1 + number // 400:02d}T{number % 24:02d}:00:00Z",
        }
        value = json.dumps(order).encode()
        for _ in range(2 if number % 100 == 50 else 1):
            yield f"o-{number}".encode(), value
    for number, other in enumerate(NOT_ORDERS):
        yield f"bad-{number}".encode(), other


def produce(brokers: str, settings: Mapping[str, str] = MappingProxyType({})) -> int:
    """Create the topic if it does not exist, send all messages, and return their number."""
    client = {"bootstrap.servers": brokers, "log_level": 0, **settings}
    admin = AdminClient(client)
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        try:
            created.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SystemExit(f"creating topics at {brokers}: {error.args[0].str()}") from error
    producer = Producer({**client, "enable.idempotence": True})
    failed, sent = [], 0
    for key, value in messages():
        producer.produce(TOPIC, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
        sent += 1
    if producer.flush(30) or failed:
        raise SystemExit(f"sending to {TOPIC} at {brokers}: not everything was delivered: {failed[:1]}")
    return sent


def read_settings(file: str) -> dict[str, str]:
    """Client settings, one `name=value` per line, such as those that `penstock dev up --secure` writes."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


if __name__ == "__main__":
    own = read_settings(os.environ["ORDERS_CLIENT"]) if "ORDERS_CLIENT" in os.environ else {}
    where = own.get("bootstrap.servers") or os.environ.get("ORDERS_BROKERS", "localhost:9092")
    print(f"sent {produce(where, own):,} messages to {TOPIC} at {where}")
