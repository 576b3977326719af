"""A history: what operators do to one pipeline with every sink, against real targets, and what must hold at its end.

Each record is once in every target or once in the quarantine, or the run has stopped with a code whose ways out lead to
such a state. Targets are read by others than their writers.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.operators.local import LocalSession, run_local
from tests.tables import read_table

from penstock.config import load
from penstock.errors import PenstockError
from penstock.ops.quarantine_place import Selection
from penstock.ops.redrive import apply_redrive, plan_redrive
from penstock.runtime.options import RunOptions

SINKS = ("delta", "iceberg", "files", "pg", "out")
STRICT, LENIENT = "order_id BIGINT, amount DOUBLE NOT NULL", "order_id BIGINT, amount DOUBLE"
"""Under the first schema a record without an amount is bad, under the second it is good."""

Action = tuple[str, ...]
PHASES = ("stage", "commit", "commit:quarantine", *(f"commit:{sink}" for sink in SINKS), "spark commit")


class Killed(BaseException):
    """The driver is dead: nothing may catch this and go on."""


@dataclass
class World:
    """One pipeline, its targets and copies of them, and what was done so far."""

    folder: Path
    topics: Any
    topic: str
    clean: str
    database: Any
    name: str
    schema: str = STRICT
    checkpoint: int = 0
    sent: list[bool] = field(default_factory=list)
    """For each record whether it has an amount."""
    accepted: bool = False
    """Whether duplicates were accepted."""
    pointer: str | None = None
    log: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "orders.yaml"

    def write(self) -> None:
        """Write the pipeline file as it is now."""
        sinks = [
            {"name": "delta", "type": "delta", "path": "lake/delta"},
            {"name": "iceberg", "type": "iceberg", "table": "shop.orders", "warehouse": "lake/iceberg"},
            {"name": "files", "type": "parquet", "path": "lake/files"},
            {
                **{"name": "pg", "type": "postgres", "url": "${env:TEST_DB}", "table": "orders"},
                **{"create": True, "coordinates": True},
            },
            {"name": "out", "type": "kafka", "topic": self.clean, "key": "order_id", "slots": 2},
        ]
        body = {
            "name": self.name,
            "source": {
                **{"type": "kafka", "brokers": self.topics.brokers, "topics": [self.topic]},
                **{"start": "earliest", "max_offsets": 4},
            },
            "decode": {"format": "json", "schema": self.schema},
            "quarantine": {"table": "lake/quarantine"},
            "sinks": sinks,
            "checkpoint": f"checkpoints/{self.checkpoint}",
            "trigger": {"available_now": True},
        }
        self.file.write_text(yaml.safe_dump(body, sort_keys=False))

    def do(self, action: Action) -> None:
        """Carry one action out; an error that stops a run is noted."""
        what, *with_ = action
        try:
            getattr(self, f"_{what}")(*with_)
            self.log.append(" ".join(action))
        except Killed:
            self.log.append(f"{' '.join(action)}: killed")
        except PenstockError as error:
            self.log.append(f"{' '.join(action)}: {error.code}")

    def settle(self) -> None:
        """Take the ways out that errors name until a run drains the topic. Raises where none is left."""
        options = RunOptions()
        for _ in range(12):
            try:
                self._drain(options)
                return
            except PenstockError as error:
                self.log.append(f"way out of {error.code}: {error.line[:150]}")
                options = self._way_out(error.code, options)
        raise AssertionError(f"no way out: {self.log}")

    def check(self) -> list[str]:
        """What is wrong, where anything is."""
        wrong = []
        bad = self.quarantined()
        for sink in SINKS:
            held = Counter(self.ids(sink))
            for number in range(len(self.sent)):
                places = held[number] + (1 if bad[number] else 0)
                if places == 0:
                    wrong.append(f"record {number} is neither in {sink} nor in the quarantine")
                if not self.accepted and held[number] > 1:
                    wrong.append(f"record {number} is {held[number]} times in {sink}")
                if not self.accepted and held[number] and bad[number] and self._wanted(number, sink):
                    wrong.append(f"record {number} is in {sink} and in the quarantine")
        for number, count in bad.items():
            if count > 1 and not self.accepted:
                wrong.append(f"record {number} is {count} times in the quarantine")
        return wrong

    def quarantined(self) -> Counter[int]:
        """How often each record is in the quarantine and was not redriven, for the whole pipeline."""
        if not (self.folder / "lake/quarantine/_delta_log").is_dir():
            return Counter()
        waiting = plan_redrive(load(self.file), Selection(), include_parked=True)._records if self.sent else None
        rows = read_table(self.folder / "lake/quarantine").to_pylist()
        open_ = set(waiting["offset"].to_list()) if waiting is not None and waiting.height else set()
        return Counter(row["offset"] for row in rows if row["offset"] in open_)

    def _wanted(self, number: int, sink: str) -> bool:
        rows = read_table(self.folder / "lake/quarantine").to_pylist()
        stages = [row["stage"] for row in rows if row["offset"] == number]
        # A record that only some sinks refused is in the others.
        return all(" " not in stage or sink in stage.partition(" ")[2].split(",") for stage in stages)

    def ids(self, sink: str) -> list[int]:
        """The records in one target."""
        found: list[int] = getattr(self, f"_read_{sink}")()
        return found

    # --- actions ---

    def _send(self, good: str, bad: str) -> None:
        kinds = [True] * int(good) + [False] * int(bad)
        random.Random(len(self.sent)).shuffle(kinds)
        values = []
        for kind in kinds:
            values.append({"order_id": len(self.sent), **({"amount": 1.0} if kind else {})})
            self.sent.append(kind)
        self.topics.send(self.topic, values)

    def _run(self) -> None:
        self._drain(RunOptions())

    def _kill(self, phase: str, batch: str) -> None:
        """The driver dies when the n-th batch of its run enters a phase."""
        self._drain(RunOptions(), self._at(phase, int(batch), _die))

    def _take_over(self, phase: str, batch: str) -> None:
        """The driver hangs; another one resumes with a new checkpoint and drains; then the first wakes up."""

        def another() -> None:
            before = self.checkpoint
            self._lose_checkpoint()
            try:
                self._drain(RunOptions(resume_from_table=True))
            except PenstockError as error:
                self.log.append(f"  the second driver: {error.code}")
                self.checkpoint = before
                self.write()

        self._drain(RunOptions(), self._at(phase, int(batch), another))

    def _beside(self, phase: str, batch: str) -> None:
        """The driver hangs; another one with the same checkpoint drains; then the first wakes up."""
        self._drain(RunOptions(), self._at(phase, int(batch), lambda: self._drain(RunOptions())))

    def _edit(self) -> None:
        self.schema = LENIENT if self.schema == STRICT else STRICT
        self.write()

    def _save(self, target: str) -> None:
        self._copy(target, keep=True)

    def _put_back(self, target: str) -> None:
        self._copy(target, keep=False)

    def _lose_checkpoint(self) -> None:
        self.checkpoint += 1
        self.write()

    def _save_checkpoint(self) -> None:
        shutil.rmtree(self.folder / "kept-checkpoint", ignore_errors=True)
        here = self.folder / f"checkpoints/{self.checkpoint}"
        if here.is_dir():
            shutil.copytree(here, self.folder / "kept-checkpoint")

    def _put_back_checkpoint(self) -> None:
        here = self.folder / f"checkpoints/{self.checkpoint}"
        if (self.folder / "kept-checkpoint").is_dir():
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(self.folder / "kept-checkpoint", here)

    def _redrive(self) -> None:
        config = load(self.file)
        apply_redrive(plan_redrive(config, Selection()), session=LocalSession())

    def _resume(self) -> None:
        self._lose_checkpoint()
        self._drain(RunOptions(resume_from_table=True))

    # --- ways out ---

    def _way_out(self, code: str, before: RunOptions) -> RunOptions:
        match code:
            case "TARGET_WENT_BACK":
                return RunOptions(catch_up=True, resume_from_table=before.resume_from_table)
            case "SINK_HOLDS_OTHER_RUN":
                return RunOptions(resume_from_table=True)
            case "RESUME_SINKS_DISAGREE":
                return RunOptions(resume_from_table=True, catch_up=True)
            case "FENCED" | "CHECKPOINT_WENT_BACK" | "SINK_TOKEN_MISMATCH":
                self._lose_checkpoint()
                return RunOptions(resume_from_table=True)
            case "RESUME_NEEDS_FRESH_CHECKPOINT":
                self._lose_checkpoint()
                return before
            case "SINK_COMMIT_CONFLICT":
                return before
        raise AssertionError(f"{code} has no way out: {self.log}")

    # --- what the actions are made of ---

    def _drain(self, options: RunOptions, enter: Callable[[int, str], None] = lambda batch, phase: None) -> None:
        run_local(load(self.file), options, enter)

    def _at(self, phase: str, nth: int, do: Callable[[], None]) -> Callable[[int, str], None]:
        seen: list[int] = []
        done: list[bool] = []

        def enter(batch: int, now: str) -> None:
            if batch not in seen:
                seen.append(batch)
            if not done and now == phase and len(seen) > nth:
                done.append(True)
                do()

        return enter

    def _copy(self, target: str, *, keep: bool) -> None:
        if target == "pg":
            self._copy_database(keep=keep)
        elif target == "iceberg":
            self._copy_pointer(keep=keep)
        else:
            here, kept = self.folder / "lake" / target, self.folder / f"kept-{target}"
            source, goal = (here, kept) if keep else (kept, here)
            if source.is_dir():
                shutil.rmtree(goal, ignore_errors=True)
                shutil.copytree(source, goal)

    def _copy_database(self, *, keep: bool) -> None:
        run = self.database.execute
        if run("SELECT to_regclass('orders'), to_regclass('kept')").fetchone()[0 if keep else 1] is None:
            return
        if keep:
            run("DROP TABLE IF EXISTS kept, kept_commits; CREATE TABLE kept AS SELECT * FROM orders")
            run("CREATE TABLE kept_commits AS SELECT * FROM penstock.penstock_commits")
        else:
            run("TRUNCATE orders, penstock.penstock_commits; INSERT INTO orders SELECT * FROM kept")
            run("INSERT INTO penstock.penstock_commits SELECT * FROM kept_commits")

    def _copy_pointer(self, *, keep: bool) -> None:
        catalog = self.folder / "lake/iceberg/catalog.db"
        if not catalog.exists():
            return
        with sqlite3.connect(catalog) as connection:
            if keep:
                row = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
                self.pointer = row[0] if row else None
            elif self.pointer is not None:
                connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (self.pointer,))

    # --- readers ---

    def _read_delta(self) -> list[int]:
        return list(read_table(self.folder / "lake/delta").column("order_id").to_pylist())

    def _read_iceberg(self) -> list[int]:
        warehouse = self.folder / "lake/iceberg"
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        return list(catalog.load_table("shop.orders").scan().to_arrow().column("order_id").to_pylist())

    def _read_files(self) -> list[int]:
        found = ds.dataset(self.folder / "lake/files", partitioning="hive").to_table(use_threads=False)
        return list(found.column("order_id").to_pylist())

    def _read_pg(self) -> list[int]:
        return [row[0] for row in self.database.execute("SELECT order_id FROM orders").fetchall()]

    def _read_out(self) -> list[int]:
        return [json.loads(m.value())["order_id"] for m in committed(self.topics.brokers, self.clean)]


def _die() -> None:
    raise Killed


def draw(seed: int, length: int) -> list[Action]:
    """A history at random, always the same for a seed."""
    chance = random.Random(seed)
    targets = ("delta", "iceberg", "files", "pg", "quarantine")
    kinds: list[tuple[int, Callable[[], Action]]] = [
        (5, lambda: ("send", str(chance.randint(0, 5)), str(chance.randint(0, 2)))),
        (4, lambda: ("run",)),
        (5, lambda: ("kill", chance.choice(PHASES), str(chance.randint(0, 1)))),
        (3, lambda: ("take_over", chance.choice(PHASES), str(chance.randint(0, 1)))),
        (2, lambda: ("beside", chance.choice(PHASES), str(chance.randint(0, 1)))),
        (4, lambda: ("edit",)),
        (3, lambda: ("save", chance.choice(targets))),
        (3, lambda: ("put_back", chance.choice(targets))),
        (1, lambda: ("lose_checkpoint",)),
        (1, lambda: ("save_checkpoint",)),
        (1, lambda: ("put_back_checkpoint",)),
        (2, lambda: ("redrive",)),
        (1, lambda: ("resume",)),
    ]
    makers = [make for weight, make in kinds for _ in range(weight)]
    return [("send", "3", "1"), ("run",), *(chance.choice(makers)() for _ in range(length))]


def play(world: World, actions: Sequence[Action]) -> list[str]:
    """Play a history to its end; what is wrong then."""
    world.write()
    for action in actions:
        world.do(action)
    world.do(("send", "1", "1"))
    world.settle()
    return world.check()
