"""Tables of CSV and JSON files: values by their types, what cannot be read, and files that change."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.config.arrow_types import parse_columns
from penstock.errors import MissingError, TransientError
from penstock.tables.parquet import CsvLookup, JsonLookup

COLUMNS = parse_columns(
    "id BIGINT, name STRING, since TIMESTAMP, born DATE, price DECIMAL(10, 2), ok BOOLEAN, rate DOUBLE"
)
CSV = """name,id,extra,since,born,price,ok,rate
ann,1,x,2024-01-02 03:04:05,2000-02-29,1.50,true,1e3
"",2,,2024-01-02T03:04:05.123456Z,,,FALSE,NaN
,3,y,2024-01-02,,,,
"a,""b
c",4,y,2024-01-02 03:04:05+02:00,,,,
"""
JSON = """{"id":1,"name":"ann","since": "2024-01-02 03:04:05", "born":"2000-02-29","price":1.5,"ok":true,"rate":1e3}
{"name": "", "id": 2, "since": "2024-01-02T03:04:05.123456Z", "price": "2.25", "more": [1]}
{"id": 3, "since": null, "rate": 2}
"""

Open = Callable[..., Any]


def csv(path: Path, schema: pa.Schema = COLUMNS) -> CsvLookup:
    return CsvLookup("customers", str(path), schema)


def json(path: Path, schema: pa.Schema = COLUMNS) -> JsonLookup:
    return JsonLookup("customers", str(path), schema)


def at(*parts: int) -> datetime:
    return datetime(2024, 1, 2, *parts, tzinfo=UTC)


def test_csv_of_every_type_gives_the_values(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text(CSV)
    table = csv(file).read(COLUMNS.names)
    assert table is not None and table.schema == COLUMNS
    assert table["id"].to_pylist() == [1, 2, 3, 4]
    assert table["name"].to_pylist() == ["ann", "", None, 'a,"b\nc']
    assert table["since"].to_pylist() == [at(3, 4, 5), at(3, 4, 5, 123456), at(), at(1, 4, 5)]
    assert table["born"].to_pylist() == [date(2000, 2, 29), None, None, None]
    assert table["price"].to_pylist() == [Decimal("1.50"), None, None, None]
    assert table["ok"].to_pylist() == [True, False, None, None]
    assert table["rate"].to_pylist()[0] == 1000.0


def test_json_of_every_type_gives_the_values(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(JSON)
    table = json(file).read(COLUMNS.names)
    assert table is not None and table.schema == COLUMNS
    assert table["name"].to_pylist() == ["ann", "", None]
    assert table["since"].to_pylist() == [at(3, 4, 5), at(3, 4, 5, 123456), None]
    assert table["born"].to_pylist() == [date(2000, 2, 29), None, None]
    assert table["price"].to_pylist() == [Decimal("1.50"), Decimal("2.25"), None]
    assert table["rate"].to_pylist() == [1000.0, None, 2.0]


def test_folder_of_files_leaves_hidden_ones_out_and_unpacks_others(tmp_path: Path) -> None:
    schema = parse_columns("id BIGINT")
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"id\n2\n"))
    (tmp_path / "_SUCCESS").write_text("no")
    (tmp_path / ".b.csv.crc").write_text("no")
    table = csv(tmp_path, schema).read(["id"])
    assert table is not None and table["id"].to_pylist() == [2, 1]
    assert csv(tmp_path, schema).estimated_bytes() == 5 + (tmp_path / "b.csv.gz").stat().st_size


@pytest.mark.parametrize(
    ("make", "text", "column"),
    [
        (csv, "id,name\n1,a\nsecret-7,b\n", "id"),
        (csv, "id,name\n1,a,b\n", None),
        (json, '{"id": 1}\n{"id": "secret-7", "name": "b"}\n', "id"),
        (json, '{"id": 1.5}\n', "id"),
        (json, '[{"id": 1}]\n', None),
        (json, '{"id": 1\n', None),
    ],
)
def test_value_that_is_not_of_its_type_is_refused_by_file_and_column(
    tmp_path: Path, make: Open, text: str, column: str | None
) -> None:
    file = tmp_path / "customers"
    file.write_text(text)
    with pytest.raises(MissingError) as raised:
        make(file, parse_columns("id BIGINT, name STRING")).read(["id", "name"])
    assert raised.value.code == "TABLE_UNREADABLE"
    assert raised.value.context["file"] == "customers"
    assert raised.value.context.get("column") == column
    assert "secret-7" not in str(raised.value)


def test_json_date_that_is_none_is_refused_by_its_column(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"born": "2000-02-30"}\n')
    with pytest.raises(MissingError) as raised:
        json(file).read(["born"])
    assert raised.value.context["column"] == "born"


@pytest.mark.parametrize("make", [csv, json])
def test_file_that_is_not_there_is_missing_and_later_passing(tmp_path: Path, make: Open) -> None:
    file = tmp_path / "customers"
    schema = parse_columns("id BIGINT")
    table = make(file, schema)
    with pytest.raises(MissingError) as raised:
        table.version()
    assert raised.value.code == "TABLE_MISSING"
    file.write_text("id\n1\n" if make is csv else '{"id": 1}\n')
    before = table.version()
    assert table.version() == before
    file.unlink()
    for look in (table.version, table.schema, lambda: table.read(["id"])):
        with pytest.raises(TransientError) as passing:
            look()
        assert passing.value.code == "TABLE_UNREACHABLE"
    file.write_text("id\n1\n2\n" if make is csv else '{"id": 1}\n{"id": 2}\n')
    assert table.version() != before
    assert table.read(["id"]).num_rows == 2
    file.write_text('"half')
    with pytest.raises(TransientError) as passing:
        table.read(["id"])
    assert passing.value.code == "TABLE_UNREADABLE"


def test_column_that_is_not_given_names_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("id\n1\n")
    with pytest.raises(MissingError) as raised:
        csv(file, parse_columns("id BIGINT")).read(["id", "tier"])
    assert raised.value.code == "TABLE_COLUMN_MISSING"
    assert raised.value.context == {"needed": "id, tier", "columns of the table": "id"}


def test_csv_without_a_column_names_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("name,tier\nann,7\n")
    with pytest.raises(MissingError) as raised:
        csv(file).read(["name", "id"])
    assert raised.value.code == "TABLE_COLUMN_MISSING"
    assert raised.value.context == {"needed": "name, id", "columns of the table": "name, tier"}


def test_table_larger_than_asked_for_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("id\n" + "1\n" * 1_000)
    table = csv(file, parse_columns("id BIGINT"))
    assert table.read(["id"], most_bytes=7_999) is None
    assert table.read(["id"], most_bytes=8_000).num_rows == 1_000


def test_empty_json_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "c.json").touch()
    table = json(tmp_path / "c.json").read(["id"])
    assert table is not None and table.num_rows == 0
