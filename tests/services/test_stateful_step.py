from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from penstock.config.arrow_types import parse_columns
from penstock.errors import from_wire
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import PythonFrame, Stateful

pytestmark = pytest.mark.services

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("user.id", pa.int64()),
        pa.field("class", pa.int64()),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        COORDINATES_FIELD,
    ]
)
OUT = parse_columns("user BIGINT, n BIGINT NOT NULL, what STRING")

COUNTS = """\
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Counts(StatefulProcessor):
    \"\"\"Counts for each user; 19 minutes of event time after the first row the count is given and begins anew.\"\"\"

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n BIGINT")

    def give(self, **values):
        return pd.DataFrame([values])

    def seen(self, rows):
        frame = pd.concat(rows)
        assert list(frame.columns) == ["user.id", "class", "event_time"], frame.columns
        assert frame["event_time"].is_monotonic_increasing
        if (frame["class"] == -1).any():
            raise ValueError("no such class")
        return len(frame), frame["event_time"].iloc[0].timestamp()

    def handleInputRows(self, key, rows, timerValues):
        count, first = self.seen(rows)
        known = self.n.get()
        if known is None and self.expires:
            self.handle.registerTimer(int(first * 1000) + 19 * 60_000)
        n = count + (0 if known is None else known[0])
        self.n.update((n,))
        yield self.give(user=key[0], n=n, what="so far")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        [n] = self.n.get()
        self.n.clear()
        yield self.give(user=key[0], n=n, what="in all")

    def close(self):
        pass

    expires = True


class Rows(Counts):
    expires = False

    def give(self, **values):
        return Row(**values)

    def seen(self, rows):
        rows = list(rows)
        assert list(rows[0].__fields__) == ["user.id", "class", "event_time"]
        if any(row["class"] == -1 for row in rows):
            raise ValueError("no such class")
        return len(rows), rows[0]["event_time"].timestamp()


def first_half(frame):
    from pyspark.sql.functions import udf

    return frame.where(udf(is_early, "boolean")("event_time"))


def is_early(time):
    return time.minute < 30
"""


RAISING = COUNTS[: COUNTS.rindex("raise ValueError")].count("\n") + 1


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "steps.py").write_text(COUNTS)
    return str(tmp_path)


@pytest.fixture
def session(spark: Any) -> Iterator[Any]:
    session = spark.newSession()
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    session.conf.set("spark.sql.shuffle.partitions", "1")
    yield session
    for query in session.streams.active:
        query.stop()


def write(folder: Path, number: int, users: list[int | None], *, bad: bool = False) -> None:
    """One file for one batch: a row for every five minutes, the newest first."""
    folder.mkdir(exist_ok=True)
    rows = []
    for i, user in enumerate(users):
        at = number * len(users) + i
        time = BEGIN + timedelta(minutes=5 * at)
        place = {"topic": "t", "partition": 0, "offset": at, "timestamp": time}
        rows.append({"user.id": user, "class": -1 if bad else 1, "event_time": time, COORDINATES: place})
    file = folder / f"{number}.parquet"
    pq.write_table(pa.Table.from_pylist(rows[::-1], schema=SCHEMA), file)
    os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))


def run(session: Any, step: Stateful, files: Path, checkpoint: Path) -> list[tuple[Any, ...]]:
    """Drain the files, one a batch; the rows that came out, with the offset that they carry."""
    from pyspark.sql.pandas.types import from_arrow_schema

    seen: list[tuple[Any, ...]] = []

    def keep(frame: Any, batch: int) -> None:
        seen.extend((batch, r.user, r.n, r.what, r[COORDINATES].offset) for r in frame.collect())

    source = session.readStream.schema(from_arrow_schema(SCHEMA)).option("maxFilesPerTrigger", 1).parquet(str(files))
    if step.time_mode == "event":
        source = source.withWatermark("event_time", "5 minutes")
    query = (
        step.frame(source)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return seen


USERS: list[list[int | None]] = [[1, 2, None, 1], [2, 3, 3, 3], [1, None, 7, 7]]


@pytest.mark.long
def test_stateful_killed_and_restarted_gives_what_one_run_gives(session: Any, folder: str, tmp_path: Path) -> None:
    step = Stateful(folder, "steps.Counts", ["user.id"], OUT, "event")
    for number, users in enumerate(USERS):
        write(tmp_path / "whole", number, users)
    whole = run(session, step, tmp_path / "whole", tmp_path / "one")
    totals = {user: (n, offset) for _, user, n, what, offset in whole if what == "in all"}
    assert totals == {1: (3, 8), 2: (2, 4), None: (2, 9), 3: (3, 7)}
    assert len(whole) == 8 + len(totals)
    # Of the users whose timer has gone nothing is left, and no coordinates either.
    for name in ("n", COORDINATES):
        state = session.read.format("statestore").option("stateVarName", name).load(str(tmp_path / "one"))
        assert [tuple(row.key) for row in state.collect()] == [(7,)]

    write(tmp_path / "parts", 0, USERS[0])
    run(session, step, tmp_path / "parts", tmp_path / "two")
    # As if the driver had died at the end of its first batch: it is run again.
    for gone in ("commits/0", "commits/.0.crc", "commits/1", "commits/.1.crc", "offsets/1", "offsets/.1.crc"):
        (tmp_path / "two" / gone).unlink(missing_ok=True)
    for number in range(1, 3):
        write(tmp_path / "parts", number, USERS[number])
    parts = run(session, step, tmp_path / "parts", tmp_path / "two")
    assert sorted(map(str, parts)) == sorted(map(str, whole))


def test_stateful_ttl_ends_state_by_processing_time(session: Any, folder: str, tmp_path: Path) -> None:
    # With it Spark would go on with batches without rows for ever, and `availableNow` never come to its end.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    for number in range(2):
        write(tmp_path / "in", number, [1, 1])
    ttl = timedelta(milliseconds=1)
    step = Stateful(folder, "steps.Rows", ["user.id"], OUT, "processing", ttl, rows="python")
    assert [one[1:4] for one in run(session, step, tmp_path / "in", tmp_path / "checkpoint")] == [
        (1, 2, "so far"),
        (1, 2, "so far"),
    ]


def test_stateful_class_that_raises_told_in_our_terms(session: Any, folder: str, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, [1], bad=True)
    step = Stateful(folder, "steps.Rows", ["user.id"], OUT, "none", rows="python")
    with pytest.raises(StreamingQueryException) as caught:
        run(session, step, tmp_path / "in", tmp_path / "checkpoint")
    error = from_wire(f"{caught.value}\n{getattr(caught.value, '_stackTrace', '')}")
    assert error is not None
    assert error.code == "STEP_FAILED"
    assert error.context == {"raised": "ValueError: no such class", "at": f"steps.py:{RAISING}"}


def test_python_frame_function_with_a_udf_of_its_module_runs_in_workers(
    session: Any, folder: str, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, [1] * 60)
    frame = PythonFrame(folder, "steps.first_half").frame(session.read.parquet(str(tmp_path / "in")))
    assert frame.count() == 30
