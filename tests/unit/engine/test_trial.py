"""Messages through a pipeline's own parts: what each sink would get; no broker, and no Spark where none is needed."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml

from penstock.assembly.trial_registry import build_offline, given_tables
from penstock.config import load
from penstock.config.cases import Case, MessageCase, TableCase
from penstock.engine.memory import MemoryReader, ranges_of
from penstock.errors import DefinitionError, MissingError, PenstockError, TransientError
from penstock.model import OffsetRange
from penstock.ops.cases.run import Output, see, to_batches

Load = Callable[..., Path]


@pytest.fixture
def file(tmp_path: Path) -> Load:
    def write(**keys: Any) -> Path:
        body = {
            "name": "orders",
            "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": ["orders"]},
            "decode": {"format": "json", "schema": "id BIGINT, amount DOUBLE"},
            "quarantine": {"table": "lake/bad"},
            "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
            "checkpoint": "checkpoint",
            **keys,
        }
        path = tmp_path / "orders.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in body.items() if value is not None}))
        return path

    return write


def no_spark() -> Any:
    raise AssertionError("this pipeline needs no Spark")


def tried(file: Path, *batches: Any, schemas: dict[str, str] | None = None, session: Any = no_spark) -> Output:
    made = tuple(
        b if isinstance(b, timedelta) else tuple(m if isinstance(m, MessageCase) else MessageCase(value=m) for m in b)
        for b in batches
    )
    pipeline, given = build_offline(load(file), schemas or {})
    return see(pipeline, Case(name="a", batches=made), session, given)


def columns(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_reader_gives_exactly_the_ranges_and_pickles() -> None:
    offsets = [0, 1, 5, 9]
    messages = [MessageCase(value=str(n), offset=n) for n in reversed(offsets)]
    other = MessageCase(value="x", partition=1)
    [records] = to_batches([[*messages, other]], ["t"])
    assert ranges_of(records) == [
        *(OffsetRange("t", 0, 0, 2), OffsetRange("t", 0, 5, 6), OffsetRange("t", 0, 9, 10)),
        OffsetRange("t", 1, 0, 1),
    ]
    reader = pickle.loads(pickle.dumps(MemoryReader(records)))
    read = [row for batch in reader.read([OffsetRange("t", 0, 1, 9)]) for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in read] == [(1, b"1"), (5, b"5")]


def test_direct_lane_gives_rows_of_every_batch_and_bad_records_with_their_bytes(file: Load) -> None:
    steps = [{"where": "amount >= 0"}, {"dedupe": {"keys": ["id"]}}]
    batches = [{"id": 1, "amount": 1.0}, {"id": 1, "amount": 2.0}, "{oops"], [{"id": 1, "amount": 3.0}, None]
    seen = tried(file(transforms=steps), *batches)
    assert columns(seen.sinks["out"], "id", "amount") == [(1, 2.0), (1, 3.0)]
    assert [row["_penstock"]["offset"] for row in seen.sinks["out"]] == [1, 3]
    assert columns(seen.quarantine, "code", "value", "offset", "stage") == [
        ("MALFORMED_JSON", b"{oops", 2, "decode"),
        ("TOMBSTONE", None, 4, "decode"),
    ]


def test_direct_lane_loads_neither_spark_nor_writes_anything(file: Load) -> None:
    path = file()
    probe = (
        "import sys; from penstock.testing import pipeline\n"
        "result = pipeline(sys.argv[1])([{'id': 1, 'amount': 2.0}, b'{'])\n"
        "print(result.sink('out'), [bad['code'] for bad in result.quarantine])\n"
        "print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["[{'id': 1, 'amount': 2.0}] ['MALFORMED_JSON']", "[]"], done.stderr
    assert [one.name for one in path.parent.iterdir()] == ["orders.yaml"]


def test_routes_share_the_bad_records_and_each_sink_has_its_own_rows(file: Load) -> None:
    sinks = [
        {"name": "big", "type": "parquet", "path": "lake/big", "select": ["id"]},
        {"name": "small", "type": "parquet", "path": "lake/small", "where": "amount > 1"},
    ]
    routes = [{"where": "amount > 10", "sinks": ["big"]}, {"otherwise": True, "sinks": ["small"]}]
    amounts = [{"id": n, "amount": float(n)} for n in (1, 5, 50)]
    seen = tried(file(sinks=sinks, routes=routes), [*amounts, "x"])
    assert columns(seen.sinks["big"], "id") == [(50,)]
    assert "amount" not in seen.sinks["big"][0]
    assert columns(seen.sinks["small"], "id") == [(5,)]
    assert columns(seen.quarantine, "code") == [("MALFORMED_JSON",)]


def test_merging_sink_gets_one_row_a_key_its_deletes_and_no_null_key(file: Load) -> None:
    sink = {"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["id"]}
    messages = [
        *({"id": 1, "amount": 1.0}, {"id": 1, "amount": 2.0}, {"id": 2, "amount": 5.0}, {"amount": 9.0}),
        MessageCase(value=None, key="2"),
    ]
    seen = tried(file(sinks=[sink]), messages)
    assert columns(seen.sinks["out"], "id", "amount", "_penstock_delete") == [(1, 2.0, None), (2, None, True)]
    assert columns(seen.quarantine, "code", "offset", "stage") == [("SINK_KEY_NULL", 3, "sink")]


def test_tombstone_where_a_sink_orders_rows_by_a_column_is_quarantined_and_deletes_nothing(file: Load) -> None:
    sink = {"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["id"], "when_newer": "amount"}
    messages = [{"id": 1, "amount": 2.0}, {"id": 1, "amount": 1.0}, MessageCase(value=None, key="1")]
    seen = tried(file(sinks=[sink]), messages)
    assert columns(seen.sinks["out"], "id", "amount") == [(1, 2.0)]
    assert columns(seen.quarantine, "code", "offset") == [("TOMBSTONE", 2)]


def test_pipeline_without_a_quarantine_stops_at_a_bad_record(file: Load) -> None:
    with pytest.raises(PenstockError, match="BAD_RECORD"):
        tried(file(quarantine=None), ["{oops"])


def test_offset_that_is_there_twice_is_refused() -> None:
    with pytest.raises(PenstockError, match="CASE_OFFSET_TWICE"):
        to_batches([[MessageCase(value="a", offset=3)], [MessageCase(value="b", offset=3)]], ["t"])


def test_messages_get_offsets_and_times_that_count_up() -> None:
    import penstock.config.cases as cases

    batches = [
        [MessageCase(value="a"), MessageCase(value="b", partition=1)],
        cases.AdvanceCase(advance=timedelta(minutes=10)),
        [MessageCase(value="c"), MessageCase(value="d", offset=9), MessageCase(value="e")],
    ]
    first, passed, last = to_batches(batches, ["t"])
    assert passed == timedelta(minutes=10)
    rows = first.to_pylist() + last.to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (1, 0), (0, 1), (0, 9), (0, 10)]
    assert [f"{row['timestamp']:%H:%M:%S}" for row in rows] == [
        "00:00:00",
        "00:00:01",
        "00:10:02",
        "00:10:03",
        "00:10:04",
    ]


AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def framed(schema_id: int, row: dict[str, Any]) -> MessageCase:
    body = BytesIO()
    fastavro.schemaless_writer(body, AVRO, row)
    return MessageCase(value_hex=(struct.pack(">bI", 0, schema_id) + body.getvalue()).hex())


def test_registry_is_stood_in_for_by_schema_files(file: Load, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    path = file(decode={"format": "avro", "registry": {"url": "http://127.0.0.1:9", "retries": 1}})
    with pytest.raises(MissingError, match=r"CASE_SCHEMA_MISSING.*orders-value"):
        tried(path, [framed(1, {"id": 5})])
    schemas = {"orders-value": str(tmp_path / "order.avsc")}
    seen = tried(path, [framed(1, {"id": 5}), "no header"], schemas=schemas)
    assert columns(seen.sinks["out"], "id") == [(5,)]
    assert columns(seen.quarantine, "code") == [("WRONG_MAGIC",)]
    with pytest.raises(TransientError, match="schema id 7, not seen before"):
        tried(path, [framed(7, {"id": 5})], schemas=schemas)


@pytest.mark.services
def test_frame_lane_gives_the_same_rows_as_the_direct_lane(file: Load, spark: Any) -> None:
    steps = [{"where": "amount >= 0"}, {"dedupe": {"keys": ["id"]}}]
    batches = [{"id": 1, "amount": 1.0}, {"id": 1, "amount": 2.0}, "{oops"], [{"id": 2, "amount": 3.0}, None]
    direct = tried(file(transforms=steps), *batches)
    frame = tried(file(transforms=steps, lane="frame"), *batches, session=lambda: spark)
    assert frame == direct
    counted = [{"sql": "SELECT id, count(*) AS n FROM input GROUP BY id"}]
    seen = tried(file(transforms=counted), *batches, session=lambda: spark)
    assert sorted(columns(seen.sinks["out"], "id", "n")) == [(1, 2), (2, 1)]
    with pytest.raises(PenstockError, match="SQL_REFUSED"):
        tried(file(transforms=[{"sql": "SELECT nosuch(id) FROM input"}]), *batches, session=lambda: spark)


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [("orders.txt", "CASE_SCHEMA_UNKNOWN", ".avsc, .proto, .json"), ("absent.avsc", "SCHEMA_FILE_MISSING", "relative")],
)
def test_schema_file_that_cannot_be_used_is_told(file: Load, tmp_path: Path, name: str, code: str, told: str) -> None:
    (tmp_path / "orders.txt").write_text('"string"')
    decode = {"format": "avro", "registry": {"url": "http://127.0.0.1:9"}}
    with pytest.raises(MissingError) as raised:
        tried(file(decode=decode), schemas={"orders-value": str(tmp_path / name)})
    assert (raised.value.code, told in str(raised.value)) == (code, True)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (TableCase.model_validate({"schema": "id BIGINT", "rows": [{"id": 1}, {"id": "x"}]}), "row 2: "),
        (({"id": 1}, {"id": "x"}), "have different types"),
    ],
    ids=["with types", "without"],
)
def test_table_of_a_case_whose_rows_have_no_one_type_is_refused(
    file: Load, table: TableCase | tuple[dict[str, Any], ...], told: str
) -> None:
    with pytest.raises(DefinitionError) as raised:
        given_tables(load(file()), {"customers": table})
    assert (raised.value.code, told in raised.value.summary) == ("CASE_TABLE_INVALID", True)
