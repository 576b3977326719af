"""The pipelines of the soak: one that appends and one that merges, into every kind of sink, in one driver.

Each has a folder, tables and a checkpoint of its own, and is judged as a crash run is; the table on S3 is read by
delta-rs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable
from tests.conftest import COLUMNS
from tests.crash.checker import Verdict, out_of_order, ranges_in_order
from tests.crash.events import PARTITIONS, Events
from tests.crash.harness import Crashes
from tests.crash.readers import CommittedReader, commit_ranges
from tests.crash.targets import (
    DATABASE,
    DELTA,
    DELTA_MERGE,
    ICEBERG,
    ICEBERG_MERGE,
    KAFKA,
    PARQUET,
    POSTGRES,
    POSTGRES_UPSERT,
    Target,
)
from tests.crash.trial import Trial
from tests.s3_server import ACCESS_KEY, REGION, SECRET_KEY
from tests.soak.world import World

from penstock.checkpoint import SparkCheckpoint
from penstock.model import TopicPartition

SOURCE, OUTPUT = "soak", "soak-out"
_EVERY = "2 seconds"
_MAINTENANCE = {"every": "5 minutes", "within": "30 seconds", "keep": "1 hour"}
"""Else the tables of a soak of hours would fill their disks."""
_ON_S3 = "on_s3"
_SPARK = {
    "spark.executor.memory": "600m",
    "spark.driver.memory": "1g",
    # The whole heap is there from the start: what grows then is what a JVM has beside it.
    "spark.executor.extraJavaOptions": "-Xms600m -XX:+AlwaysPreTouch",
    "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Pipeline:
    """One of them, by its name."""

    name: str
    folder: Path
    targets: Sequence[Target]

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def disks(self) -> tuple[Path, Path]:
        """The tables, and the checkpoint."""
        return self.folder / "lake", self.folder / "checkpoints"

    @property
    def checkpoint(self) -> SparkCheckpoint:
        return SparkCheckpoint(str(self.folder / "checkpoints/orders"))

    @property
    def batches(self) -> int:
        """How many are committed."""
        newest = self.checkpoint.last_committed()
        return 0 if newest is None else newest + 1

    def has(self, events: Events) -> bool:
        """Whether all of the events are committed."""
        newest = self.checkpoint.last_committed()
        ends = {TopicPartition(events.topic, p): _count(events.rows, p) for p in range(PARTITIONS)}
        return newest is not None and self.checkpoint.ends(newest) == ends

    def write(self, world: World) -> None:
        """The pipeline file."""
        body: dict[str, Any] = {
            "name": self.name,
            "source": {"type": "kafka", "brokers": world.stack.bootstrap, "topics": [SOURCE], "max_offsets": 20_000},
            "decode": {"format": "json", "schema": COLUMNS},
            "quarantine": {"table": "lake/quarantine"},
            "sinks": [target.definition(OUTPUT) for target in self._on(world)],
            "checkpoint": "checkpoints/orders",
            "trigger": {"every": _EVERY},
            "maintenance": _MAINTENANCE,
            "cluster": {
                "shared_paths": [str(world.folder)],
                "environment": "installed",
                "python": sys.executable,
            },
            "spark": {"spark.master": world.cluster.url, **_SPARK},
        }
        if any(target.name == _ON_S3 for target in self.targets):
            body["storage"] = world.s3.section
        self.file.write_text(yaml.safe_dump(body, sort_keys=False))

    def judge(self, world: World, events: Events, reader: CommittedReader) -> tuple[dict[str, Verdict], list[str]]:
        """What each target holds against what the events say, and what is out of order."""
        trial = _SoakTrial(
            name=self.name,
            pipeline=self.name,
            folder=self.folder,
            brokers=world.stack.bootstrap,
            events=events,
            output=OUTPUT,
            targets=self._on(world),
            crashes=Crashes(self.file),
            reader=reader,
            database=world.database_url,
            figures=lambda figures: None,
        )
        verdicts, wrong = trial.judge(0.0), list[str]()
        if KAFKA in self.targets and (keys := out_of_order(reader.records())):
            wrong.append(f"{self.name}: {len(keys)} keys of {OUTPUT} are out of order, {keys[:3]}")
        if DELTA in self.targets and not ranges_in_order(commit_ranges(self.folder / DELTA.settings["path"])):
            wrong.append(f"{self.name}: the batches in the history of the Delta table do not follow each other")
        return verdicts, wrong

    def _on(self, world: World) -> list[Target]:
        """The targets, with the place of the one on S3."""
        place = {"path": f"s3://{world.bucket}/orders"}
        return [replace(one, settings=place) if one.name == _ON_S3 else one for one in self.targets]


def pipelines(folder: Path) -> list[Pipeline]:
    """All sinks in two pipelines, their folders made."""
    on_s3, pg = Target(_ON_S3, "delta"), {**POSTGRES_UPSERT.settings, "table": "public.customers"}
    appends = (DELTA, ICEBERG, PARQUET, KAFKA, POSTGRES, on_s3)
    merges = (DELTA_MERGE, ICEBERG_MERGE, replace(POSTGRES_UPSERT, settings=pg))
    made = [Pipeline("appends", folder / "appends", appends), Pipeline("merges", folder / "merges", merges)]
    for one in made:
        one.folder.mkdir(parents=True)
    return made


def environment(world: World) -> dict[str, str]:
    """What the pipeline files take from the environment."""
    return {DATABASE: world.database_url}


class _SoakTrial(Trial):
    """A crash run of which a table may be on S3."""

    def _found(self) -> dict[str, list[Any]]:
        here = [target for target in self.targets if target.name != _ON_S3]
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found = Trial(**{**fields, "targets": here})._found()
        for target in self.targets:
            if target.name == _ON_S3:
                found[target.name] = _read_s3(target.settings["path"], self.endpoint)
        return found

    @property
    def endpoint(self) -> str:
        body = yaml.safe_load(self.crashes.file.read_text())
        return str(body["storage"]["endpoint"])


def _read_s3(path: str, endpoint: str) -> list[Any]:
    options = {
        "aws_endpoint_url": endpoint,
        "aws_region": REGION,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_allow_http": "true",
    }
    rows = DeltaTable(path, storage_options=options).to_pyarrow_table(columns=["_penstock"]).column(0)
    return [(at["topic"], at["partition"], at["offset"]) for at in rows.to_pylist()]


def _count(rows: int, partition: int) -> int:
    """How many of so many events are in a partition."""
    return len(range(partition, rows, PARTITIONS))
