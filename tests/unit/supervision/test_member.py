from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config import PipelineConfig, load
from penstock.engine.listener import BatchDone
from penstock.engine.patience import StopRequest
from penstock.errors import DefinitionError, MissingError, PenstockError, TerminalError, TransientError
from penstock.preflight.options import RunOptions, RunSummary
from penstock.supervision import member as member_module
from penstock.supervision.fleet_events import Ended, FleetEvent, FleetOptions, FleetSummary, Outcome, Waiting
from penstock.supervision.member import NEVER, Member

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders]}
decode: {format: json, schema: "id BIGINT"}
sinks: [{name: out, type: delta, path: lake}]
checkpoint: checkpoint
"""
Script = Callable[[Callable[[Any], None], StopRequest], RunSummary]


class Scripted:
    """A member whose runs do what a list says, one after another."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *runs: Script, **options: Any) -> None:
        (folder / "orders.yaml").write_text(FILE)
        self.config = load(folder / "orders.yaml")
        self.events: list[FleetEvent] = []
        self.ran: list[PipelineConfig] = []
        left = list(runs)

        def run(config: PipelineConfig, options: RunOptions, listener: Any, stop: StopRequest, session: Any) -> Any:
            self.ran.append(config)
            return left.pop(0)(listener, stop)

        monkeypatch.setattr(member_module, "run", run)
        monkeypatch.setattr(member_module, "own_session", lambda session, settings, pool: session)
        asked = FleetOptions(**{"first_delay": 10.0, "longest_delay": 300.0, **options})
        self.member = Member(self.config.file or folder, asked, lambda name, event: self.events.append(event))
        self.member.take(self.config, 0.0)

    def until_settled(self, now: float) -> None:
        self.member.start(None, 1)
        assert self.member.join(10)
        assert self.member.settle(now)


def failing(error: PenstockError, batches: int = 0) -> Script:
    def run(listener: Callable[[Any], None], stop: StopRequest) -> RunSummary:
        for _ in range(batches):
            listener(BatchDone(None))  # type: ignore[arg-type]
        raise error

    return run


def waits(events: list[FleetEvent]) -> list[float | None]:
    return [event.delay for event in events if isinstance(event, Waiting)]


def test_member_that_fails_again_and_again_waits_longer_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MissingError("TOPIC_MISSING", "no such topic")
    one = Scripted(tmp_path, monkeypatch, *[failing(error)] * 7)
    for _ in range(7):
        one.until_settled(100.0)
    assert waits(one.events) == [10, 20, 40, 80, 160, 300, 300]
    assert one.member.due == 400.0
    assert [event.again for event in one.events if isinstance(event, Waiting)] == [False, *[True] * 6]


class Client:
    """What a run has open, in a cycle, as clients with callbacks are."""

    def __init__(self) -> None:
        self.calls_back = self.close

    def close(self) -> None:
        """Nothing."""


def test_member_that_waits_keeps_its_error_and_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[Client]] = []

    def run(listener: Callable[[Any], None], stop: StopRequest) -> RunSummary:
        client = Client()
        opened.append(weakref.ref(client))
        try:
            raise OSError(28, "No space left on device")
        except OSError as cause:
            raise TerminalError("SINK_FAILED", "the disk is full") from cause

    one = Scripted(tmp_path, monkeypatch, run)
    one.until_settled(0.0)
    assert one.member.outcome.error is not None and one.member.outcome.error.__traceback__ is not None
    assert [kept() for kept in opened] == [None]


def test_member_that_had_a_batch_waits_anew_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = TerminalError("BATCH_FAILED", "the Spark job failed")
    one = Scripted(tmp_path, monkeypatch, failing(error), failing(error), failing(error, batches=1), failing(error))
    for _ in range(4):
        one.until_settled(0.0)
    assert waits(one.events) == [10, 20, 10, 20]
    # After a batch the same fault is news again.
    assert [event.again for event in one.events if isinstance(event, Waiting)] == [False, True, False, True]


@pytest.mark.parametrize(
    "error", [TransientError("A", "a"), MissingError("B", "b"), TerminalError("C", "c"), OSError()]
)
def test_member_is_tried_again_whatever_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one = Scripted(tmp_path, monkeypatch, failing(error))  # type: ignore[arg-type]
    one.until_settled(0.0)
    assert waits(one.events) == [10]


def test_member_whose_run_ends_by_a_fault_of_ours_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Scripted(tmp_path, monkeypatch, failing(ValueError("no such slot\nand more")))  # type: ignore[arg-type]
    one.until_settled(0.0)
    error = one.member.outcome.error
    assert error is not None
    assert (error.code, error.summary) == ("UNEXPECTED", "ValueError: no such slot")


def test_member_with_a_wrong_definition_is_tried_again_only_where_files_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DefinitionError("STEP_NOT_FOUND", "there is no module")
    alone = Scripted(tmp_path, monkeypatch, failing(error))
    alone.until_settled(0.0)
    assert waits(alone.events) == [None] and alone.member.due == NEVER
    watched = Scripted(tmp_path, monkeypatch, failing(error), watch=True)
    watched.until_settled(0.0)
    assert waits(watched.events) == [10]


def test_member_of_a_fleet_that_drains_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = TransientError("BROKER_UNREACHABLE", "no answer")
    one = Scripted(tmp_path, monkeypatch, failing(error), run=RunOptions(available_now=True))
    one.until_settled(0.0)
    assert waits(one.events) == [None] and one.member.outcome.error is error


def test_member_that_ends_well_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = RunSummary(batches=3)
    one = Scripted(tmp_path, monkeypatch, lambda listener, stop: done)
    one.until_settled(0.0)
    assert one.events == [Ended(done)] and one.member.due == NEVER and one.member.outcome == Outcome()


def test_member_with_a_new_definition_stops_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_stopped(listener: Any, stop: StopRequest) -> RunSummary:
        assert stop.asked(10)
        return RunSummary()

    one = Scripted(tmp_path, monkeypatch, until_stopped, lambda listener, stop: RunSummary())
    changed = one.config.model_copy(update={"lane": "frame"})
    one.member.start(None, 1)
    one.member.take(changed, 5.0)
    assert one.member.config is one.config
    assert one.member.join(10) and one.member.settle(6.0)
    assert one.member.due == 6.0 and one.member.config is changed and one.events == []
    one.until_settled(7.0)
    assert [config.lane for config in one.ran] == [None, "frame"]


def test_member_that_is_asked_to_stop_while_it_waits_stays_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MissingError("TOPIC_MISSING", "no such topic")
    one = Scripted(tmp_path, monkeypatch, failing(error))
    one.until_settled(0.0)
    one.member.ask_stop()
    assert one.member.due == NEVER and one.member.outcome.error is error


@pytest.mark.parametrize(("codes", "worst"), [((), 0), ((75,), 75), ((2, 75), 2), ((3, 2), 3), ((3, 4, 2), 4)])
def test_summary_of_a_fleet_exits_with_the_worst(codes: tuple[int, ...], worst: int) -> None:
    kinds = {kind.exit_code: kind for kind in (DefinitionError, MissingError, TerminalError, TransientError)}
    outcomes = {str(code): Outcome(kinds[code]("CODE", "text")) for code in codes}
    assert FleetSummary({**outcomes, "well": Outcome()}).exit_code == worst
