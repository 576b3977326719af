"""The targets of a crash run: each as the pipeline file names it, and what a reader asks of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATABASE = "CRASH_DATABASE"
"""The environment variable with the database's address."""
_COORDINATES = ["_penstock.topic", "_penstock.partition", "_penstock.offset"]
_JSON_COORDINATES = ["_penstock->>'topic'", "(_penstock->>'partition')::int", "(_penstock->>'offset')::bigint"]
_FOLDED = ["customer_id", "order_id"]
_MERGE = {"mode": "merge", "keys": ["customer_id"], "delete_when": "amount < 0"}


@dataclass(frozen=True)
class Target:
    """A sink. One that merges holds one row a customer, the last; the others hold every row with its coordinates."""

    name: str
    type: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def merges(self) -> bool:
        return self.settings.get("mode") in ("merge", "upsert")

    @property
    def columns(self) -> list[str]:
        """What identifies a row, as expressions of the reader's SQL."""
        if self.merges:
            return _FOLDED
        return _JSON_COORDINATES if self.type == "postgres" else _COORDINATES

    def definition(self, output: str) -> dict[str, Any]:
        """The sink in the pipeline file; `output` is the topic of one that writes to Kafka."""
        topic = {"topic": output} if self.type == "kafka" else {}
        return {"name": self.name, "type": self.type, **topic, **self.settings}

    def relation(self, folder: Path) -> str:
        """The table in Spark's SQL."""
        if self.type == "delta":
            return f"delta.`{folder / self.settings['path']}`"
        return f"penstock.{self.settings['table']}"


DELTA = Target("delta", "delta", {"path": "lake/delta"})
DELTA_MERGE = Target("merged", "delta", {"path": "lake/merged", **_MERGE})
ICEBERG = Target("ice", "iceberg", {"table": "shop.orders", "warehouse": "lake/ice"})
ICEBERG_MERGE = Target("ice", "iceberg", {"table": "shop.orders", "warehouse": "lake/ice", **_MERGE})
KAFKA = Target("topic", "kafka", {"key": "customer_id", "coordinates": True, "slots": 2})
KAFKA_HASTY = Target("topic", "kafka", {**KAFKA.settings, "transaction_timeout": "10 seconds"})
KAFKA_AT_LEAST_ONCE = Target(
    "topic", "kafka", {"key": "customer_id", "coordinates": True, "guarantee": "at_least_once"}
)
_TABLE = {"url": f"${{env:{DATABASE}}}", "table": "public.orders", "create": True}
POSTGRES = Target("pg", "postgres", {**_TABLE, "coordinates": True})
POSTGRES_UPSERT = Target("pg", "postgres", {**_TABLE, **_MERGE, "mode": "upsert"})
PARQUET = Target("files", "parquet", {"path": "lake/files"})
JSONL = Target("lines", "jsonl", {"path": "lake/lines", "compression": "gzip"})
