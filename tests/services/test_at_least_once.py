"""The Kafka sink with `guarantee: at_least_once`: Spark sends what was staged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.committed import committed
from tests.committing import commit
from tests.contract.rows import SCHEMA, records, token

from penstock.kafka import KafkaSettings
from penstock.model import SlotAttempt
from penstock.sinks.kafka import KafkaAtLeastOnceSink

pytestmark = pytest.mark.services


@pytest.fixture
def at_least_once(spark: Any, topics: Any, tmp_path: Path) -> Iterator[KafkaAtLeastOnceSink]:
    from penstock.spark.sql import SparkSql

    sink = KafkaAtLeastOnceSink(
        "orders", "out", KafkaSettings(topics.brokers), str(tmp_path / "staging"), topic=topics.create(1, prefix="alo")
    )
    sink.use(SparkSql(spark))
    yield sink


def test_at_least_once_sends_the_records_through_spark_and_removes_its_files(
    at_least_once: KafkaAtLeastOnceSink, tmp_path: Path
) -> None:
    sink = at_least_once
    sink.prepare(SCHEMA)
    batch = token(0, 0, 3)
    keyed = records(range(3)).append_column("_penstock_key", pa.array(["a", None, "c"]))
    rows = keyed.append_column("_penstock_header:kind", pa.array(["order", "order", None]))
    for attempt in ("dead", "counted"):
        stage = sink.stage(batch, SlotAttempt(0, attempt), SCHEMA)
        assert not stage.write(rows)
        manifest = stage.finish()
    commit(sink, batch, [manifest])
    sink.discard(batch, [manifest])
    found = committed(sink.settings.brokers, str(sink.topic))
    assert [json.loads(m.value())["note"] for m in found] == ["note 0", "note 1", "note 2"]
    assert [m.key() for m in found] == [b"a", None, b"c"]
    assert found[0].headers() == [("kind", b"order")]
    assert list((tmp_path / "staging").rglob("*.parquet")) == []
    assert sink.position() is None
