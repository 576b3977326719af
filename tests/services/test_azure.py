"""A pipeline whose tables, quarantine and backups are in Azure's blobs, and what is told where that cannot be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from tests.orders import order
from tests.services.lakes import every_table

from penstock.config import load
from penstock.errors import MissingError
from penstock.ops.checkpoint.backup import apply_backup, backups_there, plan_backup
from penstock.ops.plan import plan_run
from penstock.storage.reaching import check_reachable
from penstock.supervision.run import run

pytestmark = [pytest.mark.services, pytest.mark.long]


def test_tables_quarantine_and_backups_on_azure_run_twice_are_there_once(
    azure: Any, spark: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    bucket = azure.bucket()

    def at(path: str) -> str:
        return str(azure.uri(bucket, path))

    database = f"sqlite:///{tmp_path}/catalog.db"
    topic = topics.create(2)
    file = pipeline_file(
        topic,
        storage=azure.section,
        quarantine={"table": at("lake/quarantine")},
        checkpoint_backup={"every": "1 hour", "to": at("backups")},
        sinks=every_table(at, database),
    )
    config = load(file)
    assert plan_run(config).problems == ()
    topics.send(topic, [*(order(n) for n in range(40)), b"bad"])
    assert run(config, session=spark).rows_out == 40
    topics.send(topic, [order(n) for n in range(30, 60)])
    assert run(config, session=spark).rows_in == 30

    def held(table: str) -> pa.Table:
        rows = DeltaTable(at(f"lake/{table}"), storage_options=azure.storage.for_delta())
        found = QueryBuilder().register("held", rows).execute("SELECT * FROM held")
        return pa.RecordBatchReader.from_stream(found).read_all()

    catalog = SqlCatalog("penstock", uri=database, warehouse=at("lake/ice"), **azure.storage.for_iceberg(at("lake")))
    files = ds.dataset(f"{bucket}/lake/files", format="parquet", partitioning="hive", filesystem=azure.arrow())
    twice = sorted([*range(60), *range(30, 40)])
    assert sorted(held("out")["order_id"].to_pylist()) == twice
    assert sorted(held("merged")["order_id"].to_pylist()) == list(range(60))
    assert sorted(files.to_table(["order_id"])["order_id"].to_pylist()) == twice
    assert sorted(catalog.load_table("shop.orders").scan().to_arrow()["order_id"].to_pylist()) == twice
    assert held("quarantine").num_rows == 1
    copy = apply_backup(plan_backup(config), storage=azure.storage)
    assert copy.batch in [one.batch for one in backups_there(config)]


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("azure_storage_account_key", "d3Jvbmc=", "STORAGE_REFUSED"),
        ("azure_storage_endpoint", "http://127.0.0.1:9/devstoreaccount1", "STORAGE_UNAVAILABLE"),
        (None, "", "STORAGE_BUCKET_MISSING"),
    ],
)
def test_check_reachable_tells_the_cause_soon(azure: Any, option: str | None, value: str, code: str) -> None:
    bucket = azure.bucket() if option else "no-such-bucket"
    told = dict(azure.storage.options) | ({option: value} if option else {})
    began = time.monotonic()
    with pytest.raises(MissingError) as raised:
        check_reachable(replace(azure.storage, options=tuple(told.items())), [azure.uri(bucket, "a")])
    assert (raised.value.code, raised.value.exit_code) == (code, 3)
    assert time.monotonic() - began < 20
