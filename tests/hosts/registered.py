"""Events as a producer writes them that registers its schemas: JSON behind the id of one version, then of another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import requests
from tests.crash.events import Events

_MAGIC = b"\0"
_FIRST_ROWS = 3_500
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer"},
        "customer_id": {"type": ["string", "null"]},
        "amount": {"type": ["number", "null"]},
        "event_time": {"type": "string", "format": "date-time"},
    },
    "required": ["order_id"],
}


def registered_values(events: Events, registry: str) -> Iterator[Any]:
    """The events; behind the first ones of a version that no task has met. The broken ones stay as they are."""
    ids = [_register(registry, events.topic, version) for version in ("first", "second")]
    for number, value in enumerate(events.values()):
        which = ids[number >= _FIRST_ROWS]
        yield value if isinstance(value, bytes) else _MAGIC + which.to_bytes(4, "big") + json.dumps(value).encode()


def _register(registry: str, topic: str, title: str) -> int:
    body = {"schema": json.dumps({**_SCHEMA, "title": title}), "schemaType": "JSON"}
    answer = requests.post(f"{registry}/subjects/{topic}-value/versions", json=body, timeout=30)
    answer.raise_for_status()
    return int(answer.json()["id"])
