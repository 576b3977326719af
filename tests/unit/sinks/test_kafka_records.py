"""Rows to records, and which of them a topic can take. No broker: the topics' facts are given."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicFacts
from penstock.model import COORDINATES_FIELD
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.fitting import TopicCache, record_sizes
from penstock.sinks.kafka.records import RECORD_SCHEMA, RowRecords
from penstock.sinks.kafka.stage import pieces

WHEN = datetime(2026, 1, 1, 0, 0, 1, 500_999, tzinfo=UTC)


def rows_of(**columns: pa.Array) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    places = [{"topic": "orders", "partition": 1, "offset": 10 + n, "timestamp": WHEN} for n in range(count)]
    return pa.RecordBatch.from_pydict({**columns, "_penstock": pa.array(places, COORDINATES_FIELD.type)})


def made(rows: pa.RecordBatch, **settings: Any) -> list[dict[str, Any]]:
    records = RowRecords("out", "clean", **settings).make(rows)
    assert records.schema == RECORD_SCHEMA
    return list(records.to_pylist())


def book(**limits: int) -> TopicCache:
    facts = {name: TopicFacts(name, 4, limit) for name, limit in limits.items()}
    return TopicCache("out", KafkaSettings("nowhere:1"), "clean", facts=facts)


def test_row_without_computed_columns_becomes_json_for_the_fixed_topic() -> None:
    [record] = made(rows_of(id=pa.array([7]), note=pa.array(["x"])))
    assert record == {
        "topic": "clean",
        "partition": None,
        "key": None,
        "value": b'{"id":7,"note":"x"}',
        "headers": None,
        "timestamp": int(WHEN.timestamp() * 1000),
    }


def test_computed_columns_are_no_part_of_the_value_and_coordinates_only_when_kept() -> None:
    rows = rows_of(id=pa.array([7]), _penstock_key=pa.array(["k"]), _penstock_delete=pa.array([False]))
    assert json.loads(made(rows)[0]["value"]) == {"id": 7}
    kept = json.loads(made(rows, keep_coordinates=True)[0]["value"])
    assert list(kept) == ["id", "_penstock"]
    assert kept["_penstock"]["offset"] == 10


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (pa.array(["ü", None]), ["ü".encode(), None]),
        (pa.array([b"\xff", None]), [b"\xff", None]),
        (pa.array([7, None]), [b"7", None]),
        (pa.array([True, None]), [b"true", None]),
        (pa.array([date(2026, 1, 1), None]), [b"2026-01-01", None]),
        (pa.array([Decimal("1.50"), None]), [b"1.50", None]),
        (pa.array([WHEN, None], pa.timestamp("us", tz="UTC")), [b"2026-01-01T00:00:01.500999Z", None]),
        (pa.array([{"a": 1}, None]), [b'{"a":1}', None]),
    ],
)
def test_key_of_each_kind_is_bytes_or_text(values: pa.Array, keys: list[bytes | None]) -> None:
    assert [record["key"] for record in made(rows_of(_penstock_key=values))] == keys


def test_headers_keep_the_order_of_their_columns_and_a_null_is_no_header() -> None:
    columns = {"_penstock_header:b": pa.array(["1", None, None]), "_penstock_header:a": pa.array([b"\xff", b"2", None])}
    headers = [record["headers"] for record in made(rows_of(**columns))]
    assert headers == [
        [{"key": "b", "value": b"1"}, {"key": "a", "value": b"\xff"}],
        [{"key": "a", "value": b"2"}],
        [],
    ]


def test_row_without_coordinates_gets_the_time_of_sending() -> None:
    assert made(pa.RecordBatch.from_pydict({"id": [1]}))[0]["timestamp"] == 0


def test_fit_refuses_by_topic_partition_and_size_and_keeps_the_order_of_the_rest() -> None:
    rows = rows_of(
        id=pa.array(range(7)),
        _penstock_topic=pa.array(["clean", None, "clean", "..", "other", "clean", "other"]),
        _penstock_partition=pa.array([0, 0, 4, 0, None, None, 3], pa.int32()),
        _penstock_value=pa.array([b"a", b"b", b"c", b"d", b"e" * 2000, b"f" * 2000, b"g"]),
    )
    maker = RowRecords("out", "clean")
    fitting, refused = book(clean=10_000_000, other=2_000_000).fit(rows, maker.make(rows), maker)
    assert [value[:1] for value in fitting.column("value").to_pylist()] == [b"a", b"e", b"f", b"g"]
    assert {r.record.start: r.code for r in refused} == {
        11: "SINK_TOPIC_NULL",
        12: "SINK_PARTITION_INVALID",
        13: "SINK_TOPIC_INVALID",
    }
    fitting, refused = book(clean=1000, other=1_000_000).fit(rows, maker.make(rows), maker)
    assert {r.record.start: r.code for r in refused if r.code == "SINK_RECORD_TOO_LARGE"} == {
        14: "SINK_RECORD_TOO_LARGE",  # the producer sends what the fixed topic takes, and no more
        15: "SINK_RECORD_TOO_LARGE",
    }


def test_fit_of_a_row_without_coordinates_that_must_be_refused_stops() -> None:
    rows = pa.RecordBatch.from_pydict({"_penstock_topic": pa.array([None], pa.string())})
    maker = RowRecords("out", None)
    with pytest.raises(TerminalError, match="SINK_TOPIC_NULL"):
        book(clean=1000).fit(rows, maker.make(rows), maker)


def test_record_sizes_count_keys_values_and_headers() -> None:
    columns = {"_penstock_key": pa.array(["abc"]), "_penstock_value": pa.array([b"x" * 100])}
    plain = record_sizes(RowRecords("out", "clean").make(rows_of(**columns)))[0]
    headed = record_sizes(
        RowRecords("out", "clean").make(rows_of(**columns, **{"_penstock_header:hé": pa.array(["v"])}))
    )
    assert plain >= 103
    assert headed[0] - plain == 10 + len("hé".encode()) + 1


def test_batches_stay_within_what_the_fixed_topic_takes() -> None:
    assert book(clean=5000).batch_bytes == 5000
    assert book(clean=50_000_000).batch_bytes == 1_000_000
    assert book(clean=50_000_000).record_bytes == 50_000_000


def test_pieces_of_a_large_batch_are_bounded_and_whole() -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array(range(25_000))})
    parts = list(pieces(rows))
    assert max(part.num_rows for part in parts) == 10_000
    assert pa.concat_batches(parts).equals(rows)


def test_sink_pickles_small_and_shows_no_secret() -> None:
    sink = KafkaSink("orders", "out", KafkaSettings("b:1", {"sasl.password": "s3cret"}), topic="clean")
    assert len(pickle.dumps(sink)) < 2000
    assert "s3cret" not in sink.target
    assert "s3cret" not in repr(sink._slot_id(0))
