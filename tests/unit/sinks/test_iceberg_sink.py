"""What others do to a table while a pipeline appends to it: expire, roll back, change columns, drop it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType
from tests.committing import commit, holds, last_commit
from tests.contract.rows import SCHEMA, land, records, stage, stage_some, token

from penstock.config.sinks import PartitionText
from penstock.errors import DefinitionError, MissingError, PenstockError, TerminalError, TransientError
from penstock.model import DELETES, BatchToken, OffsetRange, Position
from penstock.model.upkeep import Cleaned
from penstock.sinks.commit import move
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.iceberg.history import mark_of
from penstock.sinks.iceberg.partitions import refuse_long_values
from penstock.sinks.maintenance import NoLock


def make(folder: Path, pipeline: str = "orders", **settings: Any) -> IcebergSink:
    return IcebergSink(pipeline, "out", "shop.orders", str(folder), catalog=IcebergCatalog(), **settings)


def prepared(folder: Path, **settings: Any) -> IcebergSink:
    sink = make(folder, **settings)
    sink.prepare(SCHEMA)
    return sink


def opened(folder: Path) -> Table:
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table("shop.orders")


def test_table_out_of_a_hadoop_catalog_goes_on_from_its_position_once_registered(tmp_path: Path) -> None:
    land(prepared(tmp_path), token(0, 0, 3))
    table = opened(tmp_path)
    newest = f"{table.location()}/metadata/v42.metadata.json"  # named as by a Hadoop catalog
    Path(table.metadata_location.removeprefix("file://")).rename(newest.removeprefix("file://"))
    (tmp_path / "catalog.db").unlink()

    catalog = load_catalog(
        "penstock", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("shop")
    catalog.register_table("shop.orders", newest)
    sink = prepared(tmp_path)
    assert last_commit(sink) == token(0, 0, 3)
    land(sink, token(1, 3, 5))
    assert ids(tmp_path) == [0, 1, 2, 3, 4]


def write_aside(folder: Path, number: int) -> None:
    """A row by a writer who knows nothing of tokens."""
    table = opened(folder)
    table.append(pa.Table.from_batches([records([number])]).cast(table.schema().as_arrow()))


def expire_all(folder: Path) -> None:
    opened(folder).maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()


def ids(folder: Path) -> list[int]:
    return sorted(opened(folder).scan().to_arrow()["id"].to_pylist())


def test_commit_makes_one_snapshot_that_carries_the_position_and_the_tag(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 3))
    table = opened(tmp_path)
    [snapshot] = table.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["penstock.token"] == Position.first(token(0, 0, 3)).to_json()
    assert (snapshot.summary["penstock.pipeline"], snapshot.summary["penstock.sink"]) == ("orders", "out")
    [tag] = [ref for ref in table.refs().values() if ref.snapshot_ref_type == SnapshotRefType.TAG]
    assert tag.snapshot_id == snapshot.snapshot_id
    assert tag.max_ref_age_ms == 2**63 - 1, "the table's own limit for tags would remove it"
    assert len(table.metadata.metadata_log) == 1  # the making of the table; all else was one commit


def test_expiry_of_every_snapshot_but_the_needed_keeps_the_position(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    for batch in range(3):
        land(sink, token(batch, batch, batch + 1))
    expire_all(tmp_path)
    assert len(opened(tmp_path).snapshots()) == 1
    assert holds(make(tmp_path), token(2, 2, 3))
    assert last_commit(make(tmp_path)) == token(2, 2, 3)


def test_expiry_after_others_wrote_keeps_the_position(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    land(sink, token(1, 1, 2))
    for number in (10, 11, 12):
        write_aside(tmp_path, number)
    expire_all(tmp_path)
    assert len(opened(tmp_path).snapshots()) == 2
    assert last_commit(make(tmp_path)) == token(1, 1, 2)
    land(sink, token(1, 1, 2))
    land(sink, token(2, 2, 3))
    assert ids(tmp_path) == [0, 1, 2, 10, 11, 12]


def current(folder: Path) -> int:
    snapshot = opened(folder).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def roll_back(folder: Path, snapshot_id: int) -> None:
    opened(folder).manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


@pytest.mark.parametrize("others_go_on", [False, True])
def test_roll_back_past_a_batch_stops_the_next_one_until_it_is_undone(tmp_path: Path, others_go_on: bool) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    first = current(tmp_path)
    land(sink, token(1, 1, 2))
    second = current(tmp_path)
    roll_back(tmp_path, first)
    if others_go_on:
        write_aside(tmp_path, 10)

    assert make(tmp_path).position() == Position.first(token(0, 0, 1))
    with pytest.raises(TerminalError) as refused:
        land(sink, token(2, 2, 3))
    assert (refused.value.code, refused.value.context["missing"]) == ("TARGET_WENT_BACK", "orders[0] 1-2")
    opened(tmp_path).manage_snapshots().set_current_snapshot(second).commit()
    land(sink, token(2, 2, 3))
    assert ids(tmp_path) == [0, 1, 2]


def test_roll_back_to_before_the_first_batch_is_not_taken_for_a_new_table(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    write_aside(tmp_path, 10)
    before = current(tmp_path)
    land(sink, token(0, 0, 1))
    roll_back(tmp_path, before)
    held = make(tmp_path).position()
    assert held == Position.nothing_left(Position.first(token(0, 0, 1)))
    with pytest.raises(TerminalError) as refused:
        land(sink, token(1, 1, 2))
    assert (refused.value.code, refused.value.context["missing"]) == ("TARGET_WENT_BACK", "orders[0] 0-1")
    land(sink, token(0, 0, 2, query="catching-up"))
    assert ids(tmp_path) == [0, 1, 10]


def test_roll_back_before_an_expiry_is_still_seen(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    write_aside(tmp_path, 10)
    before = current(tmp_path)
    for number in range(2):
        land(sink, token(number, number, number + 1))
    roll_back(tmp_path, before)
    expire_all(tmp_path)
    assert len(opened(tmp_path).snapshots()) == 2, "the current one, and the tagged one"
    held = make(tmp_path).position()
    assert held is not None
    assert (held.number, list(held.next.values())) == (0, [0])


def test_land_onto_a_position_that_moved_commits_nothing(tmp_path: Path) -> None:
    sink, other = prepared(tmp_path), prepared(tmp_path)
    batch = token(0, 0, 3)
    manifest = stage(sink, batch, [records(range(3))])
    land(other, token(0, 0, 2, query="other"))
    with pytest.raises(TransientError) as refused:
        sink.land(Position.first(batch), [manifest], None)
    assert refused.value.code == "SINK_COMMIT_CONFLICT"
    assert ids(tmp_path) == [0, 1]
    with pytest.raises(TerminalError) as fenced:
        commit(sink, batch, [manifest])
    assert fenced.value.code == "FENCED"


def test_land_beside_writers_that_are_always_first_goes_on_until_it_is_its_turn(tmp_path: Path) -> None:
    sink, other = prepared(tmp_path), prepared(tmp_path, pipeline="returns")
    turns = iter(range(8))
    original = sink._commit_snapshot

    def overtaken(*given: Any) -> None:
        if (number := next(turns, None)) is not None:
            land(other, token(number, 100 + number, 101 + number, pipeline="returns"))
        original(*given)

    sink._commit_snapshot = overtaken  # type: ignore[method-assign]
    land(sink, token(0, 0, 3))
    assert ids(tmp_path) == [0, 1, 2, *range(100, 108)]
    assert [last_commit(each) for each in (sink, other)] == [token(0, 0, 3), token(7, 107, 108, pipeline="returns")]


def test_commit_that_gives_a_reason_says_it_in_the_history(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    move(make(tmp_path), token(0, 9, 9, query="fork"), "checkpoint fork")  # by a command, which prepares nothing
    table = opened(tmp_path)
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None and summary["penstock.reason"] == "checkpoint fork"
    assert "penstock.reason" not in table.snapshots()[0].summary.additional_properties  # type: ignore[union-attr]
    land(sink, token(1, 9, 10, query="fork"))
    assert ids(tmp_path) == [0, 9]


def wide_token(batch_id: int, *ranges: tuple[int, int, int]) -> BatchToken:
    return BatchToken("orders", "5f0c7f3e", batch_id, tuple(OffsetRange("orders", *each) for each in ranges))


GOLDEN = Path(__file__).parents[2] / "golden"


def stored(name: str) -> list[dict[str, str]]:
    """The summaries of the snapshots that one version made of the same batches, oldest first."""
    found: list[dict[str, str]] = json.loads((GOLDEN / name).read_text())
    return found


def test_position_stored_by_version_0_7_is_continued_with_every_partition(tmp_path: Path) -> None:
    prepared(tmp_path)
    for summary in stored("iceberg_summaries_0.7.0.json"):
        opened(tmp_path).append(opened(tmp_path).schema().as_arrow().empty_table(), snapshot_properties=summary)
    sink = prepared(tmp_path)
    held = sink.position()
    assert held is not None
    assert (held.last, held.number) == (wide_token(2, (0, 5, 9)), 0)
    assert {at.partition: offset for at, offset in held.next.items()} == {0: 9, 1: 4}
    with pytest.raises(TerminalError) as refused:
        commit(sink, wide_token(3, (0, 9, 9), (1, 6, 8)), [])
    assert (refused.value.code, refused.value.context["missing"]) == ("TARGET_WENT_BACK", "orders[1] 4-6")
    commit(sink, wide_token(3, (0, 9, 12)), [])
    expire_all(tmp_path)
    held = make(tmp_path).position()
    assert held is not None
    assert (held.number, {at.partition: offset for at, offset in held.next.items()}) == (1, {0: 12, 1: 4})


def test_writers_of_a_table_are_named_with_the_sinks_own_replays_and_redrives(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    assert make(tmp_path / "none").other_writers() == sink.other_writers() == []
    for pipeline in ("orders", "orders.replay-2026", "orders.redrive"):
        land(prepared(tmp_path, pipeline=pipeline), token(0, 0, 1, pipeline=pipeline))
    assert sink.other_writers() == ["orders.redrive/out", "orders.replay-2026/out"]
    assert make(tmp_path, pipeline="orders.replay-2026").other_writers() == ["orders.redrive/out", "orders/out"]
    land(prepared(tmp_path, pipeline="returns"), token(0, 0, 1, pipeline="returns"))
    assert sink.other_writers() == ["orders.redrive/out", "orders.replay-2026/out", "returns/out"]
    twin = IcebergSink("orders", "twin", "shop.orders", str(tmp_path), catalog=IcebergCatalog())
    assert twin.other_writers() == ["orders.redrive/out", "orders.replay-2026/out", "orders/out", "returns/out"]


def test_discard_after_a_second_commit_of_a_batch_keeps_the_files_of_both(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    batch = token(0, 0, 5)
    commit(sink, batch, [stage(sink, batch, [records([0, 1, 2])])])
    held = sink.position()
    more = stage(sink, batch, [records([3, 4])])
    stray = stage(sink, batch, [records([9])])
    sink.land(Position.after(held, batch), [more], held)
    data = tmp_path / "shop/orders/data"
    there = set(data.rglob("*.parquet"))
    sink.discard(batch, [])
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert [path.name for path in there - set(data.rglob("*.parquet"))] == [stray.items[0].path.rpartition("/")[2]]  # type: ignore[attr-defined]
    commit(sink, token(1, 5, 6), [stage(sink, token(1, 5, 6), [records([5])])])
    sink.discard(batch, [])
    assert ids(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_records_held_are_those_of_the_ranges_that_have_rows(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    batch = token(0, 0, 20)
    commit(sink, batch, [stage(sink, batch, [records([1, 2, 2, 5, 11])])])
    several = [OffsetRange("orders", 0, *each) for each in ((0, 4), (1, 2), (4, 5), (11, 12))]
    assert sink.records_held(several) == {("orders", 0, 1), ("orders", 0, 2), ("orders", 0, 11)}
    single = [OffsetRange("orders", 0, number, number + 1) for number in range(2, 5_000)]
    assert sink.records_held(single) == {("orders", 0, 2), ("orders", 0, 5), ("orders", 0, 11)}
    assert sink.records_held([OffsetRange("orders", 1, 0, 9), OffsetRange("others", 0, 0, 9)]) == set()
    assert sink.records_held([]) == make(tmp_path / "none").records_held(several) == set()
    assert make(tmp_path, keep_coordinates=False).records_held(several) is None


def test_records_held_of_a_table_without_coordinates_are_not_known(tmp_path: Path) -> None:
    prepared(tmp_path, keep_coordinates=False)
    assert make(tmp_path).records_held([OffsetRange("orders", 0, 0, 9)]) is None


REQUIRED = pa.schema(
    [
        *SCHEMA,
        pa.field("part", pa.struct([pa.field("n", pa.int64(), nullable=False)]), nullable=False),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)


def require(folder: Path) -> None:
    """A table of someone's making, whose columns must have values."""
    struct = StructType(NestedField(1, "n", LongType(), required=True))
    with opened(folder).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
        update.add_column("part", struct, required=True)
        update.add_column("tags", ListType(1, StringType(), element_required=True), required=True)


def test_required_columns_take_rows_whose_columns_are_not_null(tmp_path: Path) -> None:
    prepared(tmp_path)
    require(tmp_path)
    sink = make(tmp_path)
    sink.prepare(REQUIRED)
    land(sink, token(0, 0, 2), REQUIRED, part={"n": 1}, tags=["a"])
    rows = opened(tmp_path).scan().to_arrow()
    assert rows["part"].to_pylist() == [{"n": 1}] * 2
    [path] = list(tmp_path.rglob("data/*.parquet"))
    assert [field.nullable for field in pq.read_schema(path)] == [False, True, True, True, False, False]


def test_required_columns_refuse_rows_that_may_be_null_and_say_what_to_do(tmp_path: Path) -> None:
    prepared(tmp_path)
    require(tmp_path)
    loose = pa.schema([each.with_nullable(True) for each in REQUIRED])
    with pytest.raises(MissingError) as refused:
        make(tmp_path).prepare(loose)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert refused.value.context == dict.fromkeys(("id", "part", "tags"), "pipeline may be null, table NOT NULL")
    assert "requires values" in refused.value.summary
    assert "NOT NULL" in (refused.value.hint or "")


def test_required_columns_give_back_a_row_without_a_value_and_take_the_others(tmp_path: Path) -> None:
    prepared(tmp_path)
    with opened(tmp_path).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
    sink = make(tmp_path)
    sink.prepare(SCHEMA)
    batch = token(0, 0, 3)
    loose = pa.schema([each.with_nullable(True) for each in SCHEMA])
    rows = records(range(3), loose, id=lambda number: number if number != 1 else None)
    manifest, refused = stage_some(sink, batch, [rows])
    assert [(each.record, each.code) for each in refused] == [(OffsetRange("orders", 0, 1, 2), "SINK_ROW_REFUSED")]
    commit(sink, batch, [manifest])
    assert ids(tmp_path) == [0, 2]


def test_columns_of_a_new_table_may_be_null_whatever_the_pipeline_says(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.prepare(REQUIRED)
    land(sink, token(0, 0, 1), REQUIRED, part={"n": 1}, tags=["a"])
    assert all(field.optional for field in opened(tmp_path).schema().fields)
    [path] = list(tmp_path.rglob("data/*.parquet"))
    assert all(field.nullable for field in pq.read_schema(path))


def cleaned(sink: IcebergSink) -> Cleaned:
    """What an expiry of everything would do, as far as it is known without Spark."""
    return sink.maintenance().clean(timedelta(0), NoLock(), time.monotonic() + 60, dry_run=True)


def test_expiry_by_maintenance_leaves_all_where_a_roll_back_took_out_another_pipelines_commits(tmp_path: Path) -> None:
    sink, sibling = prepared(tmp_path), prepared(tmp_path, pipeline="returns")
    for number in range(2):
        land(sink, token(number, number, number + 1))
    assert cleaned(sink).versions == 1
    before = current(tmp_path)
    land(sibling, token(0, 0, 1, pipeline="returns"))
    roll_back(tmp_path, before)
    found = cleaned(sink)
    assert found.versions == 0
    assert "returns/out" in (found.note or "")


def test_expiry_by_maintenance_leaves_all_where_older_snapshots_alone_name_a_partition(tmp_path: Path) -> None:
    prepared(tmp_path)
    for summary in stored("iceberg_summaries_0.7.0.json"):
        opened(tmp_path).append(opened(tmp_path).schema().as_arrow().empty_table(), snapshot_properties=summary)
    newest = current(tmp_path)
    opened(tmp_path).manage_snapshots().create_tag(newest, mark_of("orders", "out")).commit()
    sink = prepared(tmp_path)
    assert cleaned(sink).versions == 0
    commit(sink, wide_token(3, (0, 9, 12)), [])
    assert cleaned(sink).versions == 3


def test_fresh_checkpoint_after_a_roll_back_goes_on_from_what_is_left(tmp_path: Path) -> None:
    sink = prepared(tmp_path)
    land(sink, token(0, 0, 1))
    first = opened(tmp_path).current_snapshot()
    assert first is not None
    land(sink, token(1, 1, 2))
    opened(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert not holds(make(tmp_path), token(0, 1, 2, query="fresh"))
    land(sink, token(0, 1, 2, query="fresh"))
    assert last_commit(make(tmp_path)) == token(0, 1, 2, query="fresh")
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
    assert not holds(make(tmp_path), token(1, 1, 2))


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
            commit(drivers[number], batch, [staged[number]])
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


def test_text_that_no_folder_can_be_named_after_is_refused_where_it_names_one() -> None:
    rows = records([1, 2], note=lambda n: "x" * (300 if n == 2 else 3))
    kept, refused = refuse_long_values("out", rows, [PartitionText("note", "identity")])
    assert (kept.column("id").to_pylist(), len(refused)) == ([1], 1)
    for entry in (
        PartitionText("note", "bucket", 4),
        PartitionText("id", "identity"),
        PartitionText("gone", "identity"),
    ):
        kept, refused = refuse_long_values("out", rows, [entry])
        assert (kept.num_rows, refused) == (2, [])
