"""A batch on the driver without Spark: a stand-in for the lane's pass, and sinks that collect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.engine.slots import SCHEMA, Collected, Numbers

from penstock.assembly.inlet import Inlet
from penstock.assembly.targets import Targets
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import Bounds, GivenBatches
from penstock.engine.committer import Committer
from penstock.engine.work import SlotReport, SlotWork, StagedFlow
from penstock.errors import TerminalError, TransientError
from penstock.kafka import LogBounds
from penstock.model import BatchToken, OffsetRange, Position, TopicPartition

ORDERS = TopicPartition("orders", 0)
NO_READER: Any = None


@dataclass
class Log:
    """Stands in for the brokers: where the log ends, answer after answer; the last one again and again."""

    ends: list[int]
    asked: int = 0

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        self.asked += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return {at: LogBounds(0, end) for at in partitions}


@dataclass
class Pass:
    """Stands in for the lane: keeps what it was asked to read."""

    reports: list[SlotReport] = field(default_factory=list)
    read: list[list[OffsetRange]] = field(default_factory=list)

    def __call__(self, frame: Any, works: Sequence[SlotWork], slots: Sequence[tuple[OffsetRange, ...]]) -> Any:
        self.read.append([one for slot in slots for one in slot])
        return [replace(self.reports.pop(0))] if self.reports else [SlotReport(0)]


def runner(log: Log, lane: Pass, sink: Collected, **more: Any) -> BatchRunner:
    token = BatchToken("orders", "q", 0, ())
    work = SlotWork(token, NO_READER, Numbers(), (), (Inlet(sink),), (), schema=SCHEMA)
    batches = GivenBatches([(OffsetRange("orders", 0, 0, 10),)], log)  # type: ignore[arg-type]
    flows: Any = SimpleNamespace(now=lambda: (StagedFlow(lane, (work,), direct=True),), tell=print)
    return BatchRunner(token, flows, batches, Committer(Targets((sink,), (), None)), lambda: 1, **more)


def test_batch_beyond_the_end_of_the_log_waits_until_it_is_there() -> None:
    log, lane, waited = Log([4, 4, 7, 10]), Pass(), list[float]()
    runner(log, lane, Collected("out"), stopped=lambda seconds: bool(waited.append(seconds))).run(None, 0)
    assert lane.read == [[OffsetRange("orders", 0, 0, 10)]]
    assert (log.asked, len(waited)) == (4, 3)


def test_batch_beyond_the_end_of_the_log_ends_when_the_run_is_asked_to_stop() -> None:
    log, lane = Log([4]), Pass()
    with pytest.raises(TransientError) as raised:
        runner(log, lane, Collected("out"), stopped=lambda seconds: True).run(None, 0)
    assert (raised.value.code, raised.value.context) == ("LOG_ENDS_EARLY", {"orders[0]": "ends at 4, the batch at 10"})
    assert lane.read == []


def test_batch_whose_passes_never_agree_on_the_bad_records_stops() -> None:
    lane = Pass([SlotReport(0, deferred=["out"], bad=[("", ("orders", 0, n), "decode")]) for n in range(20)])
    landed: list[Position] = []
    sink = Collected("out")
    sink.land = lambda position, manifests, onto: landed.append(position)  # type: ignore[method-assign]
    with pytest.raises(TerminalError) as raised:
        runner(Log([10]), lane, sink).run(None, 0)
    assert raised.value.code == "BATCH_UNSTABLE"
    assert (len(lane.read), landed) == (6, []), "the first pass and five more, and no commit"


def test_batch_whose_second_pass_finds_no_other_bad_records_is_committed() -> None:
    lane = Pass([SlotReport(0, deferred=["out"]), SlotReport(0)])
    landed: list[Position] = []
    sink = Collected("out")
    sink.land = lambda position, manifests, onto: landed.append(position)  # type: ignore[method-assign]
    runner(Log([10]), lane, sink).run(None, 0)
    assert (len(lane.read), [position.next for position in landed]) == (2, [{ORDERS: 10}])
