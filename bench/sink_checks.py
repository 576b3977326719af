"""What a target holds, read back, where there is one, by a client that no job writes with, and held to the events."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from deltalake import DeltaTable
from processes import BenchError
from pyarrow import json as arrow_json
from sink_events import Pairs, pairs_of

_COLUMNS = ["order_id", "amount"]
_WAIT_SECONDS = 30


def check(job: str, target: str, wanted: Pairs, found: Pairs) -> None:
    """Raise unless the target holds exactly what it should."""
    difference = wanted.difference(found)
    if difference is not None:
        raise BenchError(f"{job}: the {target} is wrong: {difference}")


def delta_rows(table: Path) -> Pairs:
    """The rows of a Delta table."""
    return pairs_of(DeltaTable(table).to_pyarrow_table(columns=_COLUMNS))


def iceberg_rows(warehouse: Path) -> Pairs:
    """The rows of the one Iceberg table in a warehouse, by its newest metadata."""
    from pyiceberg.table import StaticTable

    newest = max(warehouse.rglob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    return pairs_of(StaticTable.from_metadata(str(newest)).scan(selected_fields=tuple(_COLUMNS)).to_arrow())


def postgres_rows(dsn: str, table: str) -> Pairs:
    """The rows of a PostgreSQL table."""
    import psycopg
    from pyarrow import csv

    text = io.BytesIO()
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY (SELECT order_id, amount FROM {table}) TO STDOUT (FORMAT csv, HEADER)".encode()) as rows,
    ):
        for part in rows:
            text.write(part)
    text.seek(0)
    types = {"order_id": pa.int64(), "amount": pa.float64()}
    return pairs_of(csv.read_csv(text, convert_options=csv.ConvertOptions(column_types=types)))


def topic_rows(brokers: str, topic: str) -> Pairs:
    """The committed records of a topic, whose values are rows as JSON."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bench-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 3,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_WAIT_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        return pairs_of(_rows(_values(consumer, set(partitions))))
    finally:
        consumer.close()


def _values(consumer: Any, open_partitions: set[int]) -> bytes:
    """All values up to the end of each partition, one a line."""
    lines, heard = [], time.monotonic()
    while open_partitions:
        # It waits until it has that many, or for the whole time.
        messages = consumer.consume(10_000, timeout=0.2)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _WAIT_SECONDS:
            raise BenchError(f"reading a topic back: nothing came for {_WAIT_SECONDS} s")
        for message in messages:
            if message.error() is None:
                lines.append(message.value())
            elif message.error().name() == "_PARTITION_EOF":
                open_partitions.discard(message.partition())
            else:
                raise BenchError(f"reading a topic back: {message.error()}")
    return b"\n".join(lines)


def _rows(lines: bytes) -> pa.Table:
    schema = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return arrow_json.read_json(io.BytesIO(lines), parse_options=options)
