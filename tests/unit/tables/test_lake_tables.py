"""Tables in Delta, Iceberg and Parquet: their rows in plain types, their versions, and what is not there."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committing import commit
from tests.contract.rows import token

from penstock.errors import MissingError, TransientError
from penstock.model import COORDINATES, COORDINATES_FIELD, SlotAttempt
from penstock.sinks.iceberg import IcebergCatalog
from penstock.sinks.parquet import ParquetSink
from penstock.tables.delta import DeltaLookup
from penstock.tables.iceberg import IcebergLookup
from penstock.tables.parquet import ParquetLookup
from penstock.tables.types import plain_type

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["ann", None], "tier": pa.array([7, 8], pa.int32())})
MORE = pa.table({"id": pa.array([3], pa.int64()), "name": ["cyd"], "tier": pa.array([9], pa.int32())})


def test_delta_table_is_read_at_the_version_that_was_seen(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS, partition_by=["tier"])
    table = DeltaLookup("customers", str(tmp_path / "t"))
    assert table.version() == "0"
    assert table.schema().names == ["id", "name", "tier"]
    write_deltalake(tmp_path / "t", MORE, mode="append")
    before = table.read(["id", "tier"])
    assert before is not None and before.sort_by("id").to_pylist() == [{"id": 1, "tier": 7}, {"id": 2, "tier": 8}]
    assert table.version() == "1"
    after = table.read(["name"])
    assert after is not None and after.schema == pa.schema([("name", pa.string())])
    assert sorted(map(str, after["name"].to_pylist())) == ["None", "ann", "cyd"]


def test_delta_table_size_is_that_of_its_live_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    write_deltalake(tmp_path / "t", MORE, mode="overwrite")
    [live] = DeltaTable(tmp_path / "t").file_uris()
    assert DeltaLookup("customers", str(tmp_path / "t")).estimated_bytes() == Path(live).stat().st_size


def test_delta_table_replaced_by_another_has_another_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    table = DeltaLookup("customers", str(tmp_path / "t"))
    before = table.version()
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TransientError) as raised:
        table.version()
    assert raised.value.code == "TABLE_UNREACHABLE"
    write_deltalake(tmp_path / "t", MORE)
    assert table.version() != before
    found = table.read(["id"])
    assert found is not None and found["id"].to_pylist() == [3]


@pytest.mark.parametrize("kind", ["delta", "parquet", "iceberg"])
def test_table_that_is_not_there_is_missing(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "nothing")
    made = {
        "delta": lambda: DeltaLookup("customers", place),
        "parquet": lambda: ParquetLookup("customers", place),
        "iceberg": lambda: IcebergLookup(
            "customers", "shop.customers", "penstock", IcebergCatalog().client_properties(place)
        ),
    }
    table = made[kind]()
    for look in (table.version, table.schema, table.estimated_bytes, lambda: table.read(["id"])):
        with pytest.raises(MissingError) as raised:
            look()
        assert raised.value.code == "TABLE_MISSING"
    assert not Path(place).exists()


def test_iceberg_table_is_read_at_the_snapshot_that_was_seen(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    properties = IcebergCatalog().client_properties(str(tmp_path))
    catalog = load_catalog("penstock", **{**properties, "init_catalog_tables": "true"})
    table = IcebergLookup("customers", "shop.customers", "penstock", properties)
    with pytest.raises(MissingError) as raised:
        table.version()
    assert raised.value.code == "TABLE_MISSING"
    catalog.create_namespace("shop")
    made = catalog.create_table("shop.customers", ROWS.schema)
    empty = table.version()
    assert table.schema() == ROWS.schema
    assert table.estimated_bytes() == 0
    none = table.read(["id"])
    assert none is not None and none.num_rows == 0
    made.append(ROWS)
    first = table.version()
    assert first != empty
    made.append(MORE)
    found = table.read(["name", "id"])
    assert found is not None and found.schema == pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert found["id"].to_pylist() == [1, 2]
    assert table.version() != first
    assert (table.estimated_bytes() or 0) > 0
    catalog.drop_table("shop.customers")
    with pytest.raises(TransientError) as passing:
        table.version()
    assert passing.value.code == "TABLE_UNREACHABLE"


def test_parquet_file_is_read_in_plain_types(tmp_path: Path) -> None:
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    written = pa.table(
        {
            "d": pa.array(["x", None]).dictionary_encode(),
            "l": pa.array(["y", "z"], pa.large_string()),
            "t": pa.array([moment, None], pa.timestamp("ms", tz="Europe/Berlin")),
            "n": pa.array([datetime(2024, 1, 2), None], pa.timestamp("ns")),
            "u": pa.array([2**32 - 1, 0], pa.uint32()),
            "p": pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)),
            "a": pa.array([[1], None], pa.large_list(pa.int16())),
            "f": pa.array([b"ab", None], pa.binary(2)),
        }
    )
    pq.write_table(written, tmp_path / "t.parquet")
    found = ParquetLookup("customers", str(tmp_path / "t.parquet")).read(written.column_names)
    assert found is not None
    assert found.schema.types == [
        pa.string(),
        pa.string(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("us"),
        pa.int64(),
        pa.decimal128(5, 1),
        pa.list_(pa.field("element", pa.int16())),
        pa.binary(),
    ]
    assert found.slice(0, 1).to_pylist() == [
        {
            "d": "x",
            "l": "y",
            "t": moment,
            "n": datetime(2024, 1, 2),
            "u": 2**32 - 1,
            "p": Decimal("1.5"),
            "a": [1],
            "f": b"ab",
        }
    ]


def test_plain_type_of_nested_types_reaches_inside() -> None:
    kind = pa.struct([("a", pa.large_list(pa.string_view())), ("b", pa.map_(pa.large_string(), pa.uint8()))])
    plain = pa.struct([("a", pa.list_(pa.field("element", pa.string()))), ("b", pa.map_(pa.string(), pa.int16()))])
    assert plain_type(kind) == plain


def test_parquet_folder_with_partitions_joins_the_columns_of_all_files(tmp_path: Path) -> None:
    for folder, rows in {
        "day=2024-01-02/shop=7": pa.table({"id": pa.array([1], pa.int32())}),
        "day=2024-01-03/shop=__HIVE_DEFAULT_PARTITION__": pa.table({"id": pa.array([2], pa.int64()), "name": ["bob"]}),
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(rows, tmp_path / folder / "a.parquet")
    (tmp_path / "_SUCCESS").touch()
    table = ParquetLookup("customers", str(tmp_path))
    assert table.schema() == pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("shop", pa.int32())]
    )
    found = table.read(["shop", "name", "id", "day"])
    assert found is not None and found.to_pylist() == [
        {"shop": 7, "name": None, "id": 1, "day": date(2024, 1, 2)},
        {"shop": None, "name": "bob", "id": 2, "day": date(2024, 1, 3)},
    ]
    days = table.read(["day"])
    assert days is not None and days["day"].to_pylist() == [date(2024, 1, 2), date(2024, 1, 3)]


def test_parquet_file_replaced_has_another_version(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(ROWS, file)
    table = ParquetLookup("customers", str(file))
    before, size = table.version(), table.estimated_bytes()
    assert table.version() == before and size
    pq.write_table(MORE, file)
    assert table.version() != before
    found = table.read(["id"])
    assert found is not None and found["id"].to_pylist() == [3]
    file.write_bytes(b"half written")
    with pytest.raises(TransientError) as raised:
        table.version()
    assert raised.value.code == "TABLE_UNREADABLE"


def test_parquet_sink_folder_gives_only_files_of_its_manifests(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC")), COORDINATES_FIELD]
    )
    sink = ParquetSink("orders", "out", str(tmp_path / "out"), partition_by=["day", "at"])
    sink.prepare(schema)
    table = ParquetLookup("customers", str(tmp_path / "out"))
    empty = table.version()
    assert set(table.schema().names) == {"id", "day", "at", COORDINATES}
    none = table.read(["id"])
    assert none is not None and none.num_rows == 0
    moment = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "day": date(2024, 1, 2), "at": moment}], schema=schema)
    batch = token(0, 0, 1)
    stage = sink.stage(batch, SlotAttempt(0, "a"), schema)
    stage.write(rows)
    commit(sink, batch, [stage.finish()])
    [folder] = (tmp_path / "out").glob("penstock_batch=*")
    pq.write_table(pa.table({"id": [99]}), folder / "stray.parquet")
    assert table.version() != empty
    found = table.read(["id", "day", "at"])
    assert found is not None and found.to_pylist() == [{"id": 1, "day": date(2024, 1, 2), "at": moment}]
