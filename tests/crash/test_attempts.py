"""Tasks on a cluster that run more than once: retried, speculated, lost with their executor. Every row is once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tests.crash.targets import (
    DELTA,
    DELTA_MERGE,
    ICEBERG,
    ICEBERG_MERGE,
    KAFKA,
    PARQUET,
    POSTGRES,
    POSTGRES_UPSERT,
)
from tests.crash.trial import Trial

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]

RETRIES = {"spark.task.maxFailures": "4"}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "50ms",
}
# Two slots a batch: a slot has 5,000 offsets at least.
SIZES = {"rows": 24_000, "max_offsets": 8_000}


def run_with(one: Trial, kind: str, times: int) -> Path:
    """Run to the end, with so many attempts trapped; where these left word."""
    folder = one.folder / "attempts"
    folder.mkdir()
    driver = one.crashes.start(attempts=f"{kind}:{times}", attempts_in=str(folder))
    assert driver.wait(300) == 0, one.crashes.log.read_text()[-4000:]
    return folder


def strays(one: Trial) -> list[str]:
    """Parquet files that no table names, and staging tables that are left."""
    lake = one.folder / "lake"
    known = {
        uri.removeprefix("file://") for log in lake.rglob("_delta_log") for uri in DeltaTable(log.parent).file_uris()
    }
    if (lake / "ice").exists():
        catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{lake / 'ice/catalog.db'}")
        named = catalog.load_table("shop.orders").inspect.all_files().column("file_path").to_pylist()
        known |= {name.removeprefix("file://") for name in named}
    # What a listing of the folder shows of a Parquet sink is committed.
    shown = [path for path in lake.rglob("*.parquet") if "_delta_log" not in path.parts]
    shown = [path for path in shown if not path.is_relative_to(lake / "files")]
    # A merge writes files anew, and those of the versions before stay: of its own only what is staged can be a stray.
    merged = [one.folder / target.settings.get("path", "lake/ice") for target in one.targets if target.merges]
    shown = [path for path in shown if "_penstock" in path.parts or not any(map(path.is_relative_to, merged))]
    left = [str(path) for path in shown if str(path) not in known]
    if one.database is not None:
        with psycopg.connect(one.database) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staged%'").fetchall()
        left += [name for (name,) in tables]
    return left


def test_attempts_speculated_and_both_run_to_the_end_every_row_is_once(trial: Any, cluster: Any) -> None:
    settings = {"spark.master": cluster.url, **SPECULATION}
    one = trial(DELTA, ICEBERG, POSTGRES_UPSERT, PARQUET, spark=settings, **SIZES)
    word = run_with(one, "twice", 2)
    both = [path for path in word.glob("*.first") if path.with_suffix(".second").exists()]
    assert both, "no second attempt ran beside the first"
    assert strays(one) == []
    one.prove(0.0, kills=len(both))


def test_attempts_that_fail_when_all_is_staged_are_retried_every_row_is_once(trial: Any, cluster: Any) -> None:
    """The Kafka sink has committed in the attempt that fails; and speculation, which it cannot stand, is turned off."""
    settings = {"spark.master": cluster.url, **RETRIES, **SPECULATION}
    one = trial(DELTA, KAFKA, POSTGRES, PARQUET, spark=settings, **SIZES)
    word = run_with(one, "raise", 2)
    assert len(list(word.glob("*.second"))) == 2
    assert "spark.speculation is turned off" in one.crashes.log.read_text()
    assert strays(one) == []
    one.prove(0.0, kills=2)
    assert "terminate called" not in cluster.executor_logs(), "a client was left open in a worker"


@pytest.mark.parametrize("kind", ["raise", "worker", "executor"])
def test_attempts_lost_with_every_kind_of_sink_every_row_is_once(trial: Any, cluster: Any, kind: str) -> None:
    one = trial(
        DELTA, ICEBERG, KAFKA, POSTGRES_UPSERT, PARQUET, spark={"spark.master": cluster.url, **RETRIES}, **SIZES
    )
    word = run_with(one, kind, 2)
    assert len(list(word.glob("*.second"))) == 2
    assert strays(one) == []
    one.prove(0.0, kills=2)


@pytest.mark.parametrize("kind", ["twice", "late"])
def test_attempts_speculated_with_sinks_that_merge_every_row_is_once(trial: Any, cluster: Any, kind: str) -> None:
    settings = {"spark.master": cluster.url, **SPECULATION}
    one = trial(DELTA_MERGE, ICEBERG_MERGE, POSTGRES_UPSERT, spark=settings, **SIZES)
    word = run_with(one, kind, 2)
    assert list(word.glob("*.second"))
    assert strays(one) == []
    one.prove(0.0, kills=2)


@pytest.mark.parametrize("lane", ["direct", "frame"])
def test_attempts_speculated_late_leave_nothing_behind(trial: Any, cluster: Any, lane: str) -> None:
    settings = {"spark.master": cluster.url, **SPECULATION}
    one = trial(DELTA, ICEBERG, POSTGRES, PARQUET, spark=settings, lane=lane, **SIZES)
    word = run_with(one, "late", 3)
    assert list(word.glob("*.second"))
    assert strays(one) == []
    one.prove(0.0, kills=3)
