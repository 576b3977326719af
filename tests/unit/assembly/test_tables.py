"""Tables in a run: when they are looked at, when they are read again, and which are left to Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pydantic import TypeAdapter

from penstock.assembly.tables import Tables
from penstock.config.tables import LookupConfig
from penstock.errors import MissingError, TransientError

ROWS = pa.table({"id": [1, 2], "name": ["ann", "bob"], "tier": [7, 8]})


def configured(**settings: Any) -> LookupConfig:
    config: LookupConfig = TypeAdapter(LookupConfig).validate_python(settings)
    return config


def delta(path: Path, **settings: Any) -> Tables:
    return Tables({"customers": configured(type="delta", path=str(path), **settings)})


def test_tables_with_refresh_on_change_take_a_new_version_up_at_once(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    tables = delta(tmp_path / "t")
    first = tables.current({"customers": ["id", "name"]}, 0.0)["customers"]
    assert first.rows is not None and first.rows.column_names == ["id", "name"]
    assert (first.version, first.changed) == ("0", False)
    again = tables.current({"customers": ["id", "name"]}, 0.0)["customers"]
    assert again.rows is first.rows
    write_deltalake(tmp_path / "t", ROWS, mode="append")
    later = tables.current({"customers": ["id", "name"]}, 0.0)["customers"]
    assert later.changed
    assert later.notice == "table customers: version 1 loaded, 4 rows"
    assert not tables.current({"customers": ["id", "name"]}, 0.0)["customers"].changed


def test_tables_with_a_refresh_time_look_no_sooner(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    tables = delta(tmp_path / "t", refresh=timedelta(minutes=10))
    tables.current({"customers": ["id"]}, 100.0)
    write_deltalake(tmp_path / "t", ROWS, mode="append")
    assert tables.current({"customers": ["id"]}, 699.0)["customers"].version == "0"
    assert tables.current({"customers": ["id"]}, 700.0)["customers"].version == "1"
    write_deltalake(tmp_path / "t", ROWS, mode="append")
    assert tables.current({"customers": ["id"]}, 1_299.0)["customers"].version == "1"


def test_tables_asked_for_more_columns_read_them_all(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    tables = delta(tmp_path / "t", refresh=timedelta(hours=1))
    tables.current({"customers": ["id"]}, 0.0)
    loaded = tables.current({"customers": ["tier"]}, 1.0)["customers"]
    assert loaded.rows is not None and set(loaded.rows.column_names) == {"id", "tier"}
    assert not loaded.changed


def test_table_larger_than_its_memory_is_left_to_spark(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": pa.array(range(10_000), pa.int64()), "same": ["x" * 100] * 10_000}), file)
    settings = {"type": "parquet", "path": str(file)}
    small = Tables({"customers": configured(**settings, memory="1 KiB")})
    assert not small.may_fit("customers")
    assert small.current({"customers": ["id"]}, 0.0)["customers"].rows is None
    # The same text takes little in the file, and much in memory.
    packed = Tables({"customers": configured(**settings, memory="500 KB")})
    assert packed.may_fit("customers")
    assert packed.current({"customers": ["id", "same"]}, 0.0)["customers"].rows is None
    assert "joined by Spark" in packed.current({"customers": ["id", "same"]}, 0.0)["customers"].notice
    assert packed.current({"customers": ["id"]}, 0.0)["customers"].rows is None
    fits = Tables({"customers": configured(**settings, memory="500 KB")})
    rows = fits.current({"customers": ["id"]}, 0.0)["customers"].rows
    assert rows is not None and rows.num_rows == 10_000


def test_table_that_vanishes_in_a_run_is_passing_and_taken_up_when_it_is_back(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    tables = delta(tmp_path / "t")
    tables.current({"customers": ["id"]}, 0.0)
    (tmp_path / "t").rename(tmp_path / "away")
    with pytest.raises(TransientError) as raised:
        tables.current({"customers": ["id"]}, 1.0)
    assert raised.value.code == "TABLE_UNREACHABLE"
    (tmp_path / "away").rename(tmp_path / "t")
    assert not tables.current({"customers": ["id"]}, 2.0)["customers"].changed


def test_table_of_every_kind_that_is_not_there_is_missing(tmp_path: Path) -> None:
    place = str(tmp_path / "nothing")
    kinds: list[dict[str, Any]] = [
        {"type": "delta", "path": place},
        {"type": "iceberg", "table": "shop.customers", "warehouse": place},
        {"type": "parquet", "path": place},
        {"type": "csv", "path": place, "schema": "id BIGINT"},
        {"type": "json", "path": place, "schema": "id BIGINT"},
    ]
    for settings in kinds:
        with pytest.raises(MissingError) as raised:
            Tables({"customers": configured(**settings)}).current({"customers": ["id"]}, 0.0)
        assert raised.value.code == "TABLE_MISSING"


def test_database_that_cannot_be_reached_is_told_without_its_password() -> None:
    url = "postgresql://someone:s3cret%2Fword@127.0.0.1:1/shop"
    tables = Tables({"customers": configured(type="postgres", url=url, table="public.customers")})
    with pytest.raises(MissingError) as raised:
        tables.schema("customers")
    assert raised.value.code == "TABLE_UNREACHABLE"
    assert "127.0.0.1:1/shop" in str(raised.value)
    assert not any(word in str(raised.value) for word in ("s3cret", "someone"))


def test_tables_in_memory_need_no_spark(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    program = (
        "import sys; from penstock.assembly.tables import Tables; from penstock.config.tables import DeltaTableConfig\n"
        f"config = DeltaTableConfig(type='delta', path={str(tmp_path / 't')!r})\n"
        "assert Tables({'c': config}).current({'c': ['id']}, 0.0)['c'].rows.num_rows == 2\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))
