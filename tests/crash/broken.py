"""A pipeline that is looked at, refused and put right through the command line, as a person would."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cli.command import command, penstock
from tests.orders import order
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.ops.gaps import find_gaps
from penstock.preflight.options import RunOptions, RunSummary
from penstock.supervision.run import run

TWO_SINKS = [{"name": name, "type": "delta", "path": f"lake/{name}"} for name in ("out", "more")]


@dataclass
class Verified:
    """What `penstock checkpoint verify` said."""

    status: int
    state: str
    findings: list[dict[str, Any]]

    @property
    def blocking(self) -> set[str]:
        return {one["code"] for one in self.findings if one["blocks"]}

    @property
    def told(self) -> set[str]:
        """What was seen that blocks nothing."""
        return {one["code"] for one in self.findings if not one["blocks"]}

    def way_out(self, code: str) -> str:
        return "\n".join(one["way_out"] for one in self.findings if one["code"] == code)


@dataclass
class Case:
    """One pipeline over one topic, whose orders are numbered from 0 as they are sent."""

    topics: Any
    spark: Any
    topic: str
    write: Callable[..., Path]
    keys: dict[str, Any]
    sent: int = 0
    file: Path = field(init=False)

    def __post_init__(self) -> None:
        self.file = self.write(self.topic, **self.keys)

    def change(self, **keys: Any) -> None:
        """Another word in the pipeline file; one of `source` is put beside the others."""
        source = {**self.keys.get("source", {}), **keys.pop("source", {})}
        self.keys = {**self.keys, **keys, "source": source}
        self.file = self.write(self.topic, **self.keys)

    @property
    def root(self) -> Path:
        return Path(load(self.file).checkpoint)

    @property
    def checkpoint(self) -> SparkCheckpoint:
        return SparkCheckpoint(str(self.root))

    @property
    def last(self) -> int:
        found = self.checkpoint.last_committed()
        assert found is not None
        return found

    def send(self, count: int = 10) -> range:
        numbers = range(self.sent, self.sent + count)
        self.topics.send(self.topic, [order(number) for number in numbers])
        self.sent += count
        return numbers

    def drain(self, **options: Any) -> RunSummary:
        return run(load(self.file), RunOptions(**options), session=self.spark)

    def go_on(self, batches: int = 1) -> None:
        """New orders, a batch each."""
        for _ in range(batches):
            self.send()
            self.drain()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command, FILE standing for the pipeline file."""
        named = [self.file.name if word == "FILE" else word for word in words]
        if words[0] == "checkpoint":
            return command(*named, folder=self.file.parent)
        return penstock(*named, folder=self.file.parent, timeout=150)

    def done(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that must succeed."""
        ended = self.command(*words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    def follow(self, way_out: str) -> None:
        """Run every command that a way out names, as it is printed."""
        commands = re.findall(r"penstock ([^\n(;]+)", way_out)
        assert commands, way_out
        for one in commands:
            self.done(*one.split())

    def verify(self) -> Verified:
        ended = self.command("checkpoint", "verify", "--json", "FILE")
        assert ended.returncode in (0, 3), ended.stdout + ended.stderr
        body = json.loads(ended.stdout)
        assert body["blocks"] == (ended.returncode == 3)
        return Verified(ended.returncode, body["state"], body["findings"])

    def refused(self, code: str, *words: str) -> str:
        """What `penstock run` says when it must not start: the code, and words of the way out."""
        ended = self.command("run", "--available-now", "--log-format", "text", "FILE")
        said = ended.stdout + ended.stderr
        assert ended.returncode in (3, 4), said
        assert code in said, said
        assert "Traceback" not in said, said
        for word in words:
            assert word in said, said
        return said

    def blocked(self, code: str, *words: str) -> Verified:
        """`verify` and `run` both say it, and neither changes anything."""
        before = self.ids() if (self.root.parents[1] / "lake/out").exists() else []
        found = self.verify()
        assert code in found.blocking, found
        self.refused(code, *words)
        after = self.ids() if before else []
        assert before == after
        return found

    def ids(self, table: str = "lake/out") -> list[int]:
        return sorted(read_table(self.file.parent / table, ["order_id"]).column(0).to_pylist())

    def right(self, *tables: str) -> None:
        """Every order that was sent is there, once."""
        for table in tables or ("lake/out",):
            assert self.ids(table) == list(range(self.sent)), table

    def gaps(self) -> list[tuple[int, int, int | None]]:
        return [(gap.partition, gap.start, gap.end) for gap in find_gaps(load(self.file)).gaps]
