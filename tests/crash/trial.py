"""One crash run: events in, a pipeline killed again and again and run to its end, every target judged by its reader."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import NewTopic
from tests.conftest import COLUMNS, Topics
from tests.crash.checker import Verdict, compare, out_of_order, ranges_in_order
from tests.crash.events import PARTITIONS, Events
from tests.crash.figures import Figures, HostFigures
from tests.crash.harness import Crashes, wait_for
from tests.crash.readers import (
    CommittedReader,
    commit_ranges,
    read_by_spark,
    read_delta,
    read_lines,
    read_parquet,
    read_postgres,
)
from tests.crash.targets import DATABASE, Target
from tests.tables import read_table

POINTS = ["offsets", "staged", "checked", "write", "between", "committed"]
TASK_POINTS = ["finish", "finishing", "finished"]
QUARANTINE = "quarantine"
_OUTPUT_PARTITIONS = 3
_numbers = itertools.count()


@dataclass(frozen=True)
class Cut:
    """What happened between hosts: batches that were committed meanwhile, seconds to the first one afterwards."""

    fault: str
    meanwhile: int
    first: float | None


@dataclass
class Trial:
    """What a test of this folder works with. Its name in the figures is that of the test."""

    name: str
    pipeline: str
    folder: Path
    brokers: str
    events: Events
    output: str
    targets: Sequence[Target]
    crashes: Crashes
    reader: CommittedReader | None
    database: str | None
    figures: Callable[[Figures | HostFigures], None] = field(repr=False)
    by_spark: bool = True
    """Whether Spark reads the Delta tables, which costs a start of it, or delta-rs."""
    began: float = field(default_factory=time.monotonic)

    def kill(self, points: Sequence[str]) -> None:
        """Run and die, once for each point."""
        for number, point in enumerate(points):
            self.crashes.kill(point, number)

    def take(self, max_offsets: int) -> None:
        """Write another size of batches into the file, for the next run."""
        body = yaml.safe_load(self.crashes.file.read_text())
        body["source"]["max_offsets"] = max_offsets
        self.crashes.file.write_text(yaml.safe_dump(body, sort_keys=False))

    def prove(self, last: float, kills: int | None = None, cuts: Sequence[Cut] = ()) -> None:
        """Every target holds what it must; `last` is how long the run took that went to the end."""
        wrong = {name: str(verdict) for name, verdict in self.judge(last, kills, cuts).items() if not verdict.clean}
        assert not wrong, wrong
        if self.reader is not None:
            assert out_of_order(self.reader.records()) == []
        for target in self.targets:
            if target.type == "delta" and not target.merges:
                assert ranges_in_order(commit_ranges(self.folder / target.settings["path"]))
        wait_for(lambda: not self.crashes.processes(), 60, "no process of the runs is left")

    def judge(self, last: float, kills: int | None = None, cuts: Sequence[Cut] = ()) -> dict[str, Verdict]:
        """What each target and the quarantine hold against what the events say; noted in the figures."""
        found = self._found()
        merged = any(target.merges for target in self.targets)
        expected: dict[str, Any] = {QUARANTINE: self.events.bad(merged)}
        for target in self.targets:
            expected[target.name] = self.events.folded() if target.merges else self.events.good()
        verdicts = {name: compare(rows, expected[name]) for name, rows in found.items()}
        rows, in_all = self.events.rows, time.monotonic() - self.began
        lost = sum(len(verdict.lost) for verdict in verdicts.values())
        twice = sum(len(verdict.twice) for verdict in verdicts.values())
        for cut in cuts:
            self.figures(HostFigures(cut.fault, cut.meanwhile, cut.first, rows, lost, twice))
        if not cuts:
            kills = len(self.crashes.kills) if kills is None else kills
            self.figures(Figures(self.name, kills, rows, lost, twice, last, in_all))
        return verdicts

    def _found(self) -> dict[str, list[Any]]:
        columns = ["topic", "partition", "offset"]
        tables = {QUARANTINE: (f"delta.`{self.folder / 'lake/quarantine'}`", columns)}
        found: dict[str, list[Any]] = {}
        if not self.by_spark:
            delta = [target for target in self.targets if target.type == "delta"]
            assert delta == list(self.targets) and not any(target.merges for target in delta)
            bad = read_table(self.folder / "lake/quarantine", columns).to_pylist()
            found[QUARANTINE] = [tuple(row.values()) for row in bad]
            return found | {target.name: read_delta(self.folder / target.settings["path"]) for target in delta}
        for target in self.targets:
            match target.type:
                case "kafka":
                    assert self.reader is not None
                    found[target.name] = [at for _, _, at in self.reader.records()]
                case "postgres":
                    assert self.database is not None
                    found[target.name] = list(read_postgres(self.database, target.settings["table"], target.columns))
                case "jsonl":
                    found[target.name] = list(read_lines(self.folder / target.settings["path"]))
                case "parquet":
                    found[target.name] = list(read_parquet(self.folder / target.settings["path"]))
                case _:
                    tables[target.name] = (target.relation(self.folder), target.columns)
        return found | read_by_spark(tables, self.folder / "lake/ice", self.folder / "reader.log")


def new_trial(
    name: str,
    folder: Path,
    topics: Topics,
    targets: Sequence[Target],
    figures: Callable[[Figures | HostFigures], None],
    *,
    rows: int,
    max_offsets: int = 1_000,
    replicas: int = 1,
    database: str | None = None,
    within: Sequence[str] = (),
    values: Callable[[Events], Iterable[Any]] = Events.values,
    by_spark: bool = True,
    **keys: Any,
) -> Trial:
    """Send the events, as `values` writes them, and write the pipeline file; `keys` are added to it."""
    number = f"{os.getpid()}-{next(_numbers)}"
    events, output = Events(f"crash-{number}", rows), f"crash-{number}-out"
    made = [NewTopic(events.topic, PARTITIONS, replicas), NewTopic(output, _OUTPUT_PARTITIONS, replicas)]
    for future in topics.admin.create_topics(made).values():
        future.result(30)
    topics.wait_for(events.topic, PARTITIONS)
    topics.wait_for(output, _OUTPUT_PARTITIONS)
    topics.send(events.topic, list(values(events)))
    source = {"type": "kafka", "brokers": topics.brokers, "topics": [events.topic], "max_offsets": max_offsets}
    body = {
        "name": f"crash-{number}",
        "source": source,
        "decode": {"format": "json", "schema": COLUMNS},
        "quarantine": {"table": "lake/quarantine"},
        "sinks": [target.definition(output) for target in targets],
        "checkpoint": "checkpoints/orders",
        "trigger": {"available_now": True},
        **keys,
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    reads = any(target.type == "kafka" for target in targets)
    return Trial(
        name=name,
        pipeline=str(body["name"]),
        folder=folder,
        brokers=topics.brokers,
        events=events,
        output=output,
        targets=targets,
        crashes=Crashes(file, {} if database is None else {DATABASE: database}, within),
        reader=CommittedReader(topics.brokers, output) if reads else None,
        database=database,
        figures=figures,
        by_spark=by_spark,
    )
