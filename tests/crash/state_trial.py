"""One crash run with state: events in parts, the pipeline killed in between, every target judged in the end."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import yaml
from tests.committed import committed
from tests.conftest import Topics
from tests.crash.checker import compare
from tests.crash.events import PARTITIONS
from tests.crash.figures import Figures
from tests.crash.harness import Crashes, wait_for
from tests.crash.readers import read_by_spark, read_postgres
from tests.crash.state_cases import StateCase, broken
from tests.crash.targets import DATABASE, DELTA, ICEBERG, KAFKA, PARQUET, POSTGRES

TARGETS = (DELTA, ICEBERG, KAFKA, POSTGRES, PARQUET)
MAX_OFFSETS = 300
_numbers = itertools.count()


@dataclass
class StateTrial:
    """What a test works with. Its name in the figures is that of the test."""

    name: str
    folder: Path
    case: StateCase
    topics: Topics
    inputs: dict[str, str]
    output: str
    crashes: Crashes
    database: str
    figures: Callable[[Figures], None] = field(repr=False)
    sent: int = 0
    ended: bool = False
    began: float = field(default_factory=time.monotonic)

    def send(self, rows: int) -> None:
        """More events."""
        assert rows % PARTITIONS == 0, "a customer's events stay in one partition"
        for side, topic in self.inputs.items():
            values = (self.case.sent(side, number) for number in range(self.sent, self.sent + rows))
            self.topics.send(topic, [value for value in values if value is not None])
        self.sent += rows

    def kill(self, points: Sequence[str], rows: int) -> None:
        """Run and die, once for each point, with more events each time."""
        for number, point in enumerate(points):
            self.send(rows)
            self.crashes.kill(point, number)

    def end(self) -> None:
        """Let all event time pass. The second batch of the run has no new records: it is where the rows come out."""
        self.crashes.finish()
        for side, topic in self.inputs.items():
            self.topics.send(topic, [self.case.last(side)], partition=0)
        self.ended = True

    def prove(self, last: float) -> None:
        """Every target holds what it must; `last` is how long the run took that went to the end."""
        numbers = range(self.sent)
        rows = self.case.expected(numbers, self.ended)
        assert len(rows) > 1
        bad = {(self.inputs["orders"], n % PARTITIONS, n // PARTITIONS) for n in numbers if broken(n)}
        expected = {"quarantine": bad, **{target.name: rows for target in TARGETS}}
        verdicts = {name: compare(found, expected[name]) for name, found in self._found().items()}
        self.figures(
            Figures(
                run=self.name,
                kills=len(self.crashes.kills),
                rows=self.sent,
                lost=sum(len(verdict.lost) for verdict in verdicts.values()),
                twice=sum(len(verdict.twice) for verdict in verdicts.values()),
                last=last,
                in_all=time.monotonic() - self.began,
            )
        )
        wrong = {name: str(verdict) for name, verdict in verdicts.items() if not verdict.clean}
        assert not wrong, wrong
        assert verdicts.keys() == expected.keys()
        wait_for(lambda: not self.crashes.processes(), 60, "no process of the runs is left")

    def _found(self) -> dict[str, list[tuple[Any, ...]]]:
        columns = self.case.columns
        tables = {target.name: (target.relation(self.folder), columns) for target in (DELTA, ICEBERG)}
        tables["quarantine"] = (f"delta.`{self.folder / 'lake/quarantine'}`", ["topic", "partition", "offset"])
        messages = [json.loads(message.value()) for message in committed(self.topics.brokers, self.output)]
        files = ds.dataset(self.folder / PARQUET.settings["path"], format="parquet").to_table(
            columns, use_threads=False
        )
        return {
            KAFKA.name: [tuple(message[name] for name in columns) for message in messages],
            POSTGRES.name: read_postgres(self.database, POSTGRES.settings["table"], columns),
            PARQUET.name: list(zip(*(files.column(name).to_pylist() for name in columns), strict=True)),
            **read_by_spark(tables, self.folder / "lake/ice", self.folder / "reader.log"),
        }


def new_state_trial(
    name: str, folder: Path, topics: Topics, case: StateCase, database: str, figures: Callable[[Figures], None]
) -> StateTrial:
    """Make the topics and write the pipeline file, into one sink of every kind."""
    number = f"{os.getpid()}-{next(_numbers)}"
    inputs = {side: topics.create(PARTITIONS, prefix=f"state-{side}") for side in case.sides}
    output = topics.create(3, prefix="state-out")
    sources = {
        side: {"type": "kafka", "brokers": topics.brokers, "topics": [topic], "max_offsets": MAX_OFFSETS}
        for side, topic in inputs.items()
    }
    body = {
        "name": f"state-{number}",
        **case.pipeline(sources, folder),
        "quarantine": {"table": "lake/quarantine"},
        "sinks": [target.definition(output) for target in TARGETS],
        "checkpoint": "checkpoints/orders",
        "trigger": {"available_now": True},
        "spark": {"spark.sql.shuffle.partitions": "3"},
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    crashes = Crashes(file, {DATABASE: database})
    return StateTrial(name, folder, case, topics, inputs, output, crashes, database, figures)
