from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committing import commit
from tests.contract.rows import SCHEMA, land, records, stage, token
from tests.tables import read_table

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.sinks import DeltaSink
from penstock.sinks.delta.schema import alter_statements
from penstock.sinks.evolution import Evolve, Fitting


def sink(path: Path, evolve: Evolve = "fail") -> DeltaSink:
    return DeltaSink("orders", "out", str(path), evolve=evolve)


def counted(kind: pa.DataType) -> pa.Schema:
    return SCHEMA.append(pa.field("qty", kind))


def test_prepare_again_for_the_same_rows_makes_no_version(tmp_path: Path) -> None:
    target = sink(tmp_path, "add_columns")
    more = SCHEMA.append(pa.field("local", pa.timestamp("us")))
    for schema in (SCHEMA, more, SCHEMA, more):
        target.prepare(schema)
    version = DeltaTable(tmp_path).version()
    for schema in (SCHEMA, more):
        target.prepare(schema)
    assert DeltaTable(tmp_path).version() == version


def test_wider_integer_is_refused_naming_both_types_and_the_way_out(tmp_path: Path) -> None:
    sink(tmp_path).prepare(counted(pa.int32()))
    with pytest.raises(MissingError) as refused:
        sink(tmp_path, "add_columns").prepare(counted(pa.int64()))
    assert refused.value.context == {"qty": "pipeline long, table integer"}
    assert "evolve: widen" in str(refused.value.hint)


def test_widen_without_spark_says_what_it_needs_and_changes_nothing(tmp_path: Path) -> None:
    target = sink(tmp_path, "widen")
    assert target.needs_sql
    target.prepare(counted(pa.int32()))
    target.check(counted(pa.int64()))
    assert target.changes(counted(pa.int64())) == ["widen qty INT -> BIGINT"]
    with pytest.raises(TerminalError, match="SINK_NEEDS_SPARK"):
        target.prepare(counted(pa.int64()))
    assert DeltaTable(tmp_path).version() == 0


def test_ignored_field_inside_a_struct_is_left_out_of_the_files(tmp_path: Path) -> None:
    sink(tmp_path).prepare(SCHEMA)
    item = pa.struct([*SCHEMA.field("item").type, pa.field("price", pa.float64())])
    wider = SCHEMA.set(2, pa.field("item", item)).append(pa.field("odd", pa.uint64()))
    target = sink(tmp_path, "ignore")
    assert target.changes(wider) == ["ignore column item.price", "ignore column odd"]
    target.prepare(wider)
    land(target, token(0, 0, 1), wider, item={"sku": "s", "tags": [], "price": 1.5}, odd=1)
    assert read_table(tmp_path)["item"].to_pylist() == [{"sku": "s", "tags": []}]
    [file] = tmp_path.glob("part-*.parquet")
    assert pq.read_schema(file).field("item").type.num_fields == 2


def test_table_that_another_writer_gave_wider_types_has_the_batch_staged_again(tmp_path: Path) -> None:
    target = sink(tmp_path)
    target.prepare(counted(pa.int32()))
    batch = token(0, 0, 1)
    staged = stage(target, batch, [records([0], counted(pa.int32()), qty=7)], schema=counted(pa.int32()))
    rows = pa.Table.from_batches([records([9], counted(pa.int64()), qty=2**40)])
    write_deltalake(tmp_path, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TransientError, match="SINK_TABLE_CHANGED"):
        commit(target, batch, [staged])
    land(target, batch, counted(pa.int32()), qty=7)
    assert sorted(read_table(tmp_path)["qty"].to_pylist()) == [7, 2**40]


def test_table_whose_types_were_widened_is_refused_without_spark(tmp_path: Path) -> None:
    sink(tmp_path).prepare(counted(pa.int64()))
    log = tmp_path / "_delta_log" / f"{1:020}.json"
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}
    log.write_text(json.dumps({"protocol": {**features, "writerFeatures": ["typeWidening", "invariants"]}}))
    target = sink(tmp_path)
    assert target.needs_sql
    with pytest.raises(MissingError) as refused:
        target.prepare(counted(pa.int64()))
    assert refused.value.context == {"table features": "typeWidening"}


def test_statements_name_every_place_and_quote_every_name() -> None:
    inner = pa.struct([pa.field("a`b", pa.int64()), pa.field("x y", pa.map_(pa.string(), pa.list_(pa.int8())))])
    rows = pa.schema([pa.field("l", pa.list_(inner)), pa.field("new", inner)])
    held = pa.schema([pa.field("l", pa.list_(pa.struct([pa.field("a`b", pa.int32())])))])
    assert list(alter_statements("t", Fitting("out", "widen").fit(rows, held))) == [
        "ALTER TABLE t ADD COLUMNS (`l`.`element`.`x y` MAP<STRING, ARRAY<TINYINT>>,"
        " `new` STRUCT<`a``b`: BIGINT, `x y`: MAP<STRING, ARRAY<TINYINT>>>)",
        "ALTER TABLE t SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER TABLE t ALTER COLUMN `l`.`element`.`a``b` TYPE BIGINT",
    ]
