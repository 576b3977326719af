"""What others than the writers find in the targets: Spark, a Kafka consumer, psycopg, plain Arrow."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from tests.crash.checker import Coordinates
from tests.tables import read_table

READER = Path(__file__).with_name("spark_reader.py")
Record = tuple[bytes | None, int, Coordinates]
"""The key, the partition, and the coordinates that the value carries."""


def read_by_spark(
    tables: Mapping[str, tuple[str, list[str]]], warehouse: Path, log: Path
) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each table: a relation, and expressions over it. Iceberg's are in the catalog `penstock`."""
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        ".warehouse": f"file://{warehouse}",
    }
    settings = {f"spark.sql.catalog.penstock{key}": value for key, value in catalog.items()}
    asked = json.dumps({"tables": tables, "settings": settings, "log": str(log)})
    done = subprocess.run(
        [sys.executable, str(READER)], input=asked, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: [tuple(row) for row in rows] for name, rows in found.items()}


def read_parquet(folder: Path) -> list[Coordinates]:
    """The folder as any reader of Parquet takes it: whatever files its listing shows."""
    rows = ds.dataset(folder, format="parquet").to_table(columns=["_penstock"], use_threads=False)
    return [_coordinates(at) for at in rows.column(0).to_pylist()]


def read_lines(folder: Path) -> list[Coordinates]:
    """The compressed JSON lines of whatever files a listing shows, by Python's own parser."""
    files = [gzip.decompress(file.read_bytes()) for file in folder.rglob("*.jsonl.gz")]
    return [_coordinates(json.loads(line)["_penstock"]) for file in files for line in file.splitlines()]


def read_delta(folder: Path) -> list[Coordinates]:
    """A Delta table without a start of Spark."""
    return [_coordinates(at) for at in read_table(folder, ["_penstock"]).column(0).to_pylist()]


def read_postgres(url: str, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {table}".encode()).fetchall()


def commit_ranges(table: Path) -> list[tuple[int, dict[tuple[str, int], tuple[int, int]]]]:
    """Each batch in a Delta table's history with its offset ranges. A claim has none of its own."""
    entries = []
    for commit in DeltaTable(table).history():
        token = json.loads(commit.get("penstock.token", "{}"))
        if token and not token.get("reason", "").startswith("claimed"):
            entries.append((token["batch_id"], {(t, p): (s, e) for t, p, s, e in token["ranges"]}))
    return entries


def log_ends(brokers: str, topic: str, isolation: str) -> list[int]:
    """The end of each partition for a reader: that of the log, or where the first open transaction begins."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "ends", "isolation.level": isolation})
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions]
    finally:
        consumer.close()


class CommittedReader:
    """A `read_committed` consumer that reads a topic all the while, in a thread of its own."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": f"crash-{os.getpid()}-{uuid.uuid4().hex[:8]}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self._ends: dict[int, int] = dict.fromkeys(partitions, 0)
        self._records: list[Record] = []
        self._thread = threading.Thread(target=self._read, name="committed-reader", daemon=True)
        self._closing = threading.Event()
        self._thread.start()

    def records(self, seconds: float = 60) -> list[Record]:
        """All that it saw, once it has reached the end of every partition. An open transaction holds it up."""
        logs = log_ends(self._brokers, self._topic, "read_uncommitted")
        deadline = time.monotonic() + seconds
        while any(self._ends[partition] < end for partition, end in enumerate(logs)):
            assert time.monotonic() < deadline, f"a reader of committed records stands at {self._ends}, not at {logs}"
            time.sleep(0.1)
        return list(self._records)

    @property
    def seen(self) -> int:
        """How many it saw so far."""
        return len(self._records)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)
        self._consumer.close()

    def _read(self) -> None:
        while not self._closing.is_set():
            for message in self._consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    at = _coordinates(json.loads(message.value())["_penstock"])
                    self._records.append((message.key(), message.partition(), at))
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._ends[message.partition()] = message.offset()


def _coordinates(at: Mapping[str, Any]) -> Coordinates:
    return at["topic"], at["partition"], at["offset"]
