"""A redrive on disk: its plan and its records, written before the first batch and never changed afterwards.

`<checkpoint>-redrives/<run>/` has `plan.json`, a folder for each pass with its records and how far it is, and at the
end `done.json`. A folder without that is a redrive that was killed or stopped: it goes on as planned. Where the folder
is lost, the records still wait, and the next redrive takes them: what a target holds of them it is asked itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Self
from uuid import uuid4

import polars as pl
import pyarrow as pa
from pydantic import Field

from penstock.model import RAW_SCHEMA, OffsetRange
from penstock.quarantine.marks import IDENTITIES
from penstock.quarantine.records import PLACE, raw_records
from penstock.supervision.job_folder import Folder, Ranges, StoredJob

STORED_SCHEMA = pa.schema([*RAW_SCHEMA, pa.field(IDENTITIES, pa.list_(pa.string()))])
_RECORDS = "records.parquet"
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class StoredPass:
    """One pass of a redrive: the records that go the same way."""

    query_id: str
    sinks: tuple[str, ...] | None
    """The target sinks; empty for all sinks of the pipeline."""
    records: int
    batches: tuple[Ranges, ...]
    folder: Folder
    names: tuple[str, ...] = ()
    """The sinks of the pipeline at the start: a target stores its records by sink name."""

    @property
    def file(self) -> Path:
        """Its records."""
        return self.folder / _RECORDS


@dataclass(frozen=True)
class StoredRun(StoredJob):
    """A redrive on disk."""

    END = "done.json"

    name: Annotated[str, Field(alias="run")]
    accept_duplicates: bool = False
    """Whether records go into targets that already have some of their rows."""
    passes: tuple[StoredPass, ...] = ()

    @classmethod
    def from_plan(cls, body: Mapping[str, Any], folder: Path) -> Self:
        """The redrive of a plan; each pass has its own folder in it."""
        passes = [{**one, "folder": folder / str(number)} for number, one in enumerate(body["passes"])]
        return super().from_plan({**body, "passes": passes}, folder)

    @property
    def records(self) -> int:
        """How many records it has."""
        return sum(one.records for one in self.passes)

    def places(self) -> pl.DataFrame:
        """The places of all its records."""
        return pl.concat([pl.read_parquet(one.file, columns=list(PLACE)) for one in self.passes])

    def finish(self, outcomes: Mapping[str, int]) -> None:
        """Note that it is done, and let its copies of the records go: the quarantine has them."""
        self.note_end({"outcomes": dict(outcomes)})
        for one in self.passes:
            one.file.unlink(missing_ok=True)


def runs_in(folder: str) -> list[StoredRun]:
    """The redrives that were started there, oldest first."""
    return StoredRun.all_in(Path(folder.removeprefix("file://")))


def unfinished_records(folder: str) -> pl.DataFrame:
    """The places of the records of redrives that are not finished."""
    none = pl.DataFrame(schema={"topic": pl.String, "partition": pl.Int32, "offset": pl.Int64})
    return pl.concat([none, *(run.places() for run in runs_in(folder) if not run.finished)])


def write_run(
    folder: str,
    ways: Sequence[tuple[tuple[str, ...] | None, pl.DataFrame]],
    most: int,
    *,
    names: tuple[str, ...] = (),
    accept_duplicates: bool = False,
) -> StoredRun:
    """Write a redrive, completely or not at all: the sinks and the records (with `identities`) of each pass."""
    from penstock.readers.stored import store

    root = Path(folder.removeprefix("file://"))
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
    fresh = root / f".{name}"
    for stale in root.glob(".*-*-*"):
        shutil.rmtree(stale, ignore_errors=True)
    passes = []
    for number, (sinks, records) in enumerate(ways):
        cut = in_batches(records, most)
        path = fresh / str(number) / _RECORDS
        path.parent.mkdir(parents=True)
        store(path, STORED_SCHEMA, _groups(cut))
        _sync(path)
        batches, place = ranges_of_batches(cut), root / name / str(number)
        passes.append(StoredPass(uuid4().hex, sinks, cut.height, batches, place, names))
    made = StoredRun(root / name, name, accept_duplicates, tuple(passes))
    made.write_plan(fresh)
    fresh.rename(root / name)
    _sync(root)
    return made


def in_batches(records: pl.DataFrame, most: int) -> pl.DataFrame:
    """The records in the order of their batches, numbered in the column `batch`: every batch has a piece of each
    partition, and the pieces of a partition follow each other."""
    size = int(records["value"].bin.size().sum() or 0)
    count = max(1, ceil(records.height / most), ceil(size / _MOST_BYTES))
    partition = ("topic", "partition")
    rank = pl.col("offset").rank("ordinal").over(partition) - 1
    piece = (rank.cast(pl.Int64) * count) // pl.len().over(partition)
    return records.with_columns(batch=piece.rank("dense").cast(pl.Int64) - 1).sort("batch", *PLACE)


def ranges_of_batches(records: pl.DataFrame) -> tuple[tuple[OffsetRange, ...], ...]:
    """For each batch the ranges that hold its records."""
    ends = records.group_by("batch", "topic", "partition").agg(
        pl.col("offset").min().alias("start"), (pl.col("offset").max() + 1).alias("end")
    )
    found: dict[int, list[OffsetRange]] = {}
    for batch, *parts in ends.sort("batch", "topic", "partition").iter_rows():
        found.setdefault(batch, []).append(OffsetRange(*parts))
    return tuple(tuple(ranges) for ranges in found.values())


def _groups(records: pl.DataFrame) -> Iterator[pa.Table]:
    for part in records.partition_by("batch", "topic", "partition", maintain_order=True):
        identities = part.select(IDENTITIES).to_arrow(compat_level=pl.CompatLevel.oldest()).column(0)
        table = raw_records(part).append_column(IDENTITIES, identities.cast(STORED_SCHEMA.field(IDENTITIES).type))
        yield table.cast(STORED_SCHEMA)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
