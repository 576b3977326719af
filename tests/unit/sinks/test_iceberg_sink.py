"""What others do to a table while a pipeline appends to it: expire, roll back, change columns, drop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import LongType, StringType
from tests.contract.rows import SCHEMA, land, records, stage, token

from penstock.errors import DefinitionError, MissingError, PenstockError, TerminalError
from penstock.model import DELETES
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink


def make(folder: Path, pipeline: str = "orders", **settings: Any) -> IcebergSink:
    return IcebergSink(pipeline, "out", "shop.orders", str(folder), catalog=IcebergCatalog(), **settings)


def prepared(folder: Path, **settings: Any) -> IcebergSink:
    sink = make(folder, **settings)
    sink.prepare(SCHEMA)
    return sink


def opened(folder: Path) -> Table:
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table("shop.orders")


def write_aside(folder: Path, number: int) -> None:
    """A row by a writer who knows nothing of tokens."""
    table = opened(folder)
    table.append(pa.Table.from_batches([records([number])]).cast(table.schema().as_arrow()))


def expire_all(folder: Path) -> None:
    opened(folder).maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()


def ids(folder: Path) -> list[int]:
    return sorted(opened(folder).scan().to_arrow()["id"].to_pylist())


def test_commit_makes_one_snapshot_that_carries_the_token_and_the_tag(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 3))
    table = opened(tmp_path)
    [snapshot] = table.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["penstock.token"] == token(0, 0, 3).to_json()
    assert (snapshot.summary["penstock.pipeline"], snapshot.summary["penstock.sink"]) == ("orders", "out")
    [tag] = [ref for ref in table.refs().values() if ref.snapshot_ref_type == SnapshotRefType.TAG]
    assert tag.snapshot_id == snapshot.snapshot_id
    assert len(table.metadata.metadata_log) == 1  # the making of the table; all else was one commit


def test_expiry_of_every_snapshot_but_the_needed_keeps_the_newest_token(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    for batch in range(3):
        land(sink, token(batch, batch, batch + 1))
    expire_all(tmp_path)
    assert len(opened(tmp_path).snapshots()) == 1
    assert make(tmp_path).holds(token(2, 2, 3))
    assert make(tmp_path).last_commit() == token(2, 2, 3)


def test_expiry_after_others_wrote_keeps_the_newest_token(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    land(sink, token(1, 1, 2))
    for number in (10, 11, 12):
        write_aside(tmp_path, number)
    expire_all(tmp_path)
    assert len(opened(tmp_path).snapshots()) == 2
    assert make(tmp_path).last_commit() == token(1, 1, 2)
    land(sink, token(1, 1, 2))
    land(sink, token(2, 2, 3))
    assert ids(tmp_path) == [0, 1, 2, 10, 11, 12]


def test_roll_back_past_a_batch_is_noticed_and_undone_by_going_back(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    first = opened(tmp_path).current_snapshot()
    land(sink, token(1, 1, 2))
    second = opened(tmp_path).current_snapshot()
    assert first is not None
    assert second is not None
    opened(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    write_aside(tmp_path, 10)

    for attempt in (lambda: make(tmp_path).holds(token(1, 1, 2)), lambda: land(sink, token(2, 2, 3))):
        with pytest.raises(TerminalError) as refused:
            attempt()
        assert refused.value.code == "SINK_TABLE_RESTORED"
        assert str(second.snapshot_id) in str(refused.value.hint)
    assert make(tmp_path).last_commit() == token(0, 0, 1)
    opened(tmp_path).manage_snapshots().set_current_snapshot(second.snapshot_id).commit()
    assert make(tmp_path).holds(token(1, 1, 2))


def test_fresh_checkpoint_after_a_roll_back_goes_on_from_what_is_left(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    first = opened(tmp_path).current_snapshot()
    assert first is not None
    land(sink, token(1, 1, 2))
    opened(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert not make(tmp_path).holds(token(0, 1, 2, query="fresh"))
    land(sink, token(0, 1, 2, query="fresh"))
    assert make(tmp_path).last_commit() == token(0, 1, 2, query="fresh")
    assert ids(tmp_path) == [0, 1]


def _rename(table: Table) -> None:
    table.update_schema().rename_column("note", "remark").commit()


def _replace(table: Table) -> None:
    table.update_schema(allow_incompatible_changes=True).delete_column("note").commit()
    table.update_schema().add_column("note", LongType()).commit()


def _replace_by_its_like(table: Table) -> None:
    table.update_schema(allow_incompatible_changes=True).delete_column("note").commit()
    table.update_schema().add_column("note", StringType()).commit()


def _repartition(table: Table) -> None:
    table.update_spec().add_identity("note").commit()


@pytest.mark.parametrize("change", [_rename, _replace, _replace_by_its_like, _repartition])
def test_table_changed_under_way_so_that_staged_files_do_not_fit_is_refused(
    tmp_path: Path, change: Callable[[Table], None]
) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    change(opened(tmp_path))
    with pytest.raises(MissingError) as refused:
        land(sink, token(1, 1, 2))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert not make(tmp_path).holds(token(1, 1, 2))


def test_column_added_by_others_under_way_does_not_stop_the_pipeline(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    opened(tmp_path).update_schema().add_column("more", LongType()).commit()
    land(sink, token(1, 1, 2))
    assert ids(tmp_path) == [0, 1]


def test_table_dropped_under_way_stops_the_commit(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    opened(tmp_path).catalog.drop_table("shop.orders")
    with pytest.raises(TerminalError) as refused:
        land(sink, token(0, 0, 1))
    assert refused.value.code == "SINK_TABLE_GONE"


def test_drivers_racing_with_one_token_exactly_one_lands(tmp_path: Path) -> None:
    batch = token(0, 0, 3)
    drivers = [prepared(tmp_path) for _ in range(4)]
    staged = [stage(sink, batch, [records(range(3))], attempt=str(n)) for n, sink in enumerate(drivers)]
    start = threading.Barrier(len(drivers))
    failed: list[BaseException] = []

    def drive(number: int) -> None:
        start.wait()
        try:
            drivers[number].commit(batch, [staged[number]])
        except PenstockError as error:
            failed.append(error)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(len(drivers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert ids(tmp_path) == [0, 1, 2]
    assert len(opened(tmp_path).snapshots()) == 1


def test_computed_columns_beside_the_row_are_not_written(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field(DELETES, pa.bool_())])
    sink = make(tmp_path)
    sink.prepare(schema)
    land(sink, token(0, 0, 1), schema)
    assert [field.name for field in opened(tmp_path).schema().fields] == SCHEMA.names


@pytest.mark.parametrize("table", ["orders", "shop.", "shop.or`ders", "a b.c", ""])
def test_sink_of_a_table_without_a_proper_name_is_refused(tmp_path: Path, table: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        IcebergSink("p", "s", table, str(tmp_path), catalog=IcebergCatalog())
    assert refused.value.code == "SINK_TABLE_NAME"


def test_sink_with_a_partition_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as refused:
        make(tmp_path, partition_by=["weeks(at)"])
    assert refused.value.code == "SINK_PARTITION_TEXT"


@pytest.mark.parametrize("sign", "#?%;")
def test_prepare_of_a_warehouse_whose_path_is_no_uri_is_refused(tmp_path: Path, sign: str) -> None:
    with pytest.raises(MissingError) as refused:
        make(tmp_path / f"a{sign}b").prepare(SCHEMA)
    assert refused.value.code == "SINK_PATH_UNSUPPORTED"


def test_warehouse_with_a_space_and_letters_of_any_script_works(tmp_path: Path) -> None:
    folder = tmp_path / "la ke ü"
    land(prepared(folder), token(0, 0, 3))
    assert ids(folder) == [0, 1, 2]


def test_check_of_a_catalog_that_does_not_answer_says_it_is_not_there(tmp_path: Path) -> None:
    catalog = IcebergCatalog("rest", "http://127.0.0.1:1")
    with pytest.raises(MissingError) as refused:
        IcebergSink("p", "s", "a.b", str(tmp_path), catalog=catalog).check(SCHEMA)
    assert refused.value.code == "SINK_UNAVAILABLE"


def test_prepare_again_for_other_rows_changes_only_what_it_must(tmp_path: Path) -> None:
    sink = prepared(tmp_path, evolve="widen")
    with opened(tmp_path).update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", LongType(), required=True, default_value=0)
    narrow, wide = (
        pa.schema([*SCHEMA, pa.field("must", pa.int64(), nullable=False), pa.field("n", pa.list_(kind))])
        for kind in (pa.int16(), pa.int64())
    )
    sink.prepare(narrow)
    land(sink, token(0, 0, 1), narrow, must=1, n=[1])
    assert sink.changes(wide) == ["widen n[] INT -> BIGINT"]
    sink.prepare(wide)
    before = opened(tmp_path).metadata_location
    sink.prepare(wide)
    assert opened(tmp_path).metadata_location == before
    land(sink, token(1, 1, 2), wide, must=2, n=[2**40])
    assert opened(tmp_path).schema().find_field("must").required
    assert sorted(opened(tmp_path).scan().to_arrow()["n"].to_pylist()) == [[1], [2**40]]


def test_widen_of_a_partition_column_keeps_old_and_new_rows_apart(tmp_path: Path) -> None:
    narrow, wide = (SCHEMA.append(pa.field("part", kind)) for kind in (pa.int32(), pa.int64()))
    sink = make(tmp_path, evolve="widen", partition_by=["part"])
    sink.prepare(narrow)
    land(sink, token(0, 0, 2), narrow, part=lambda number: number)
    sink.prepare(wide)
    land(sink, token(1, 2, 4), wide, part=lambda number: number + 2**40)
    assert sorted(opened(tmp_path).scan().to_arrow()["part"].to_pylist()) == [0, 1, 2**40 + 2, 2**40 + 3]
    assert opened(tmp_path).scan("part == 1").to_arrow()["id"].to_pylist() == [1]


def test_widen_of_a_scale_is_refused_for_the_table_keeps_it(tmp_path: Path) -> None:
    make(tmp_path).prepare(SCHEMA.append(pa.field("price", pa.decimal128(9, 2))))
    make(tmp_path, evolve="widen").check(SCHEMA.append(pa.field("price", pa.decimal128(12, 2))))
    with pytest.raises(MissingError) as refused:
        make(tmp_path, evolve="widen").check(SCHEMA.append(pa.field("price", pa.decimal128(12, 4))))
    assert refused.value.context == {"price": "pipeline decimal(12, 4), table decimal(9, 2)"}


def test_ignored_field_inside_a_struct_is_left_out_of_the_files(tmp_path: Path) -> None:
    prepared(tmp_path)
    item = pa.struct([*SCHEMA.field("item").type, pa.field("price", pa.float64())])
    wider = SCHEMA.set(2, pa.field("item", item)).append(pa.field("odd", pa.uint64()))
    sink = make(tmp_path, evolve="ignore")
    assert sink.changes(wider) == ["ignore column item.price", "ignore column odd"]
    sink.prepare(wider)
    land(sink, token(0, 0, 1), wider, item={"sku": "s", "tags": [], "price": 1.5}, odd=1)
    assert opened(tmp_path).scan().to_arrow()["item"].to_pylist() == [{"sku": "s", "tags": []}]
