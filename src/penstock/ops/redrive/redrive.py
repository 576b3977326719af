"""Redrive: process quarantined records with the current pipeline, into the same sinks, exactly once, and mark them.

The selection is stored before the first batch; then it is a bounded run with marks as its last sink. A killed one is
first finished by the next, as planned. Before every batch each target is queried for records that it already has. The
live pipeline can keep running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa

from penstock import config as cfg
from penstock.contracts import Sink
from penstock.engine.listener import Listener, Notice
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError
from penstock.model import COORDINATES, RAW_SCHEMA, Rule, redrives_of
from penstock.ops.quarantine.place import (
    QuarantinePlace,
    Selection,
    chosen,
    columns_for,
    marked_by,
    quarantine_of,
    try_records,
)
from penstock.ops.redrive.runs import StoredPass, StoredRun, runs_in, unfinished_records, write_run
from penstock.ops.redrive.targets import (
    appending,
    excluded_from,
    find_ways,
    former_sinks,
    held_by_targets,
    narrowed,
    reached_by,
    reached_records,
    taken_back,
)
from penstock.quarantine.marks import IDENTITIES, RedriveMarks, State, as_marks, commit_numbers
from penstock.quarantine.records import PLACE, Place, frame_of, read_records

MOST_RECORDS = 200_000
"""The default number of records per batch, unless `max_offsets` of the source is set."""
_RESTORED = "restored"
_CLOSED = (State.REDRIVEN.value, State.DROPPED.value)
_WHY_LEFT = {
    State.PARKED.value: "parked: failed too often (--include-parked)",
    State.REDRIVEN.value: "redriven before",
    State.DROPPED.value: "dropped",
}
_OF_A_REPLAY = (
    "rejected by a replay of version 0.7 or older, not by the pipeline: its targets may have it (--accept-duplicates)"
)


@dataclass(frozen=True)
class RedrivePlan:
    """What a redrive would do."""

    config: cfg.PipelineConfig
    selection: Selection
    include_parked: bool
    accept_duplicates: bool
    target: str
    ways: Mapping[tuple[str, ...], int]
    """The number of records per set of sinks."""
    codes: Mapping[str, int]
    left_out: Mapping[str, int]
    """The number of selected records that stay in quarantine, by reason."""
    unfinished: tuple[StoredRun, ...] = ()
    """Unfinished redrives: they are completed first."""
    notices: tuple[str, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    """For each appending sink: how many of the records its target already has. They are not written again."""
    taken_back: int = 0
    """How many records wait again: the targets were restored to before their redrive."""
    marks: int = 0
    """The number of marks when planned: there may be more when it is applied."""
    _held: Mapping[str, set[Place]] = field(default_factory=dict, repr=False, compare=False)
    _records: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False, compare=False)

    @property
    def records(self) -> int:
        """How many records would be redriven."""
        return sum(self.ways.values())

    def held_by(self, sink: str) -> set[Place]:
        """The records of the plan that a target has a row of already."""
        return self._held.get(sink, set())

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.config.name,
            "quarantine": self.target,
            "records": self.records,
            "codes": self.codes,
            "ways": [{"sinks": list(way), "records": count} for way, count in self.ways.items()],
            "left_out": self.left_out,
            "held": self.held,
            "taken_back": self.taken_back,
            "unfinished": [{"run": run.name, "records": run.records} for run in self.unfinished],
            "notices": list(self.notices),
        }


@dataclass(frozen=True)
class RedriveResult:
    """What a redrive did. `runs` are in the order in which they went; those of an earlier command come first."""

    runs: tuple[str, ...]
    redriven: int
    failed: int
    parked: int
    """How many of the failed records are not retried automatically."""
    finished: bool
    left: int = 0
    """The number of remaining records."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.__dict__, "runs": list(self.runs)}


def plan_redrive(
    config: cfg.PipelineConfig, selection: Selection, *, include_parked: bool = False, accept_duplicates: bool = False
) -> RedrivePlan:
    """Which records would be redriven, and to which sinks. Nothing is written.

    Records of an unfinished redrive are left to it. Raises if a target cannot report which of the records it has.
    """
    _refuse_state(config)
    place = quarantine_of(config)
    return _plan(place, selection, unfinished_records(place.folder), include_parked, accept_duplicates)


def _plan(
    place: QuarantinePlace, selection: Selection, tried: pl.DataFrame, include_parked: bool, accept_duplicates: bool
) -> RedrivePlan:
    config = place.config
    marks = place.read_marks()
    returned = _returned(config, marks)
    every = place.read(columns_for(selection), marks=pl.concat([marks, returned]))
    meant = chosen(every, replace(selection, limit=None))
    states = {State.WAITING.value, State.FAILED.value} | ({State.PARKED.value} if include_parked else set())
    left_out = {
        why: count
        for state, why in _WHY_LEFT.items()
        if state not in states and (count := meant.filter(pl.col("state") == state).height)
    }
    waiting = meant.filter(pl.col("state").is_in(sorted(states)))
    foreign = waiting.filter(pl.col("pipeline") != config.name)
    if foreign.height and not accept_duplicates:
        left_out[_OF_A_REPLAY] = foreign.height
        waiting = waiting.filter(pl.col("pipeline") == config.name)
    waiting = waiting.join(tried, on=PLACE, how="anti", maintain_order="left")
    waiting = waiting if selection.limit is None else waiting.head(selection.limit)
    # A record's other rows go with it: they would take it to the same sinks again.
    mine = pl.lit(True) if accept_duplicates else pl.col("pipeline") == config.name
    together = every.filter(~pl.col("state").is_in(_CLOSED), mine).join(
        waiting, on=PLACE, how="semi", maintain_order="left"
    )
    ways = find_ways(config, together, accept_duplicates=accept_duplicates)
    if not accept_duplicates:
        reached = reached_records(config, ways.records)
        ways = replace(
            ways, records=reached, left_out={**ways.left_out, **_still_open(ways.records.height - reached.height)}
        )
    held = held_by_targets(config, ways.records, accept_duplicates=accept_duplicates)
    counts = ways.records.group_by("way", maintain_order=True).len().iter_rows()
    return RedrivePlan(
        config,
        selection,
        include_parked,
        accept_duplicates,
        place.records.target,
        {tuple(way.split(",")): count for way, count in counts},
        dict(ways.records.group_by("code").len().sort("len", descending=True).iter_rows()),
        {**left_out, **ways.left_out},
        tuple(run for run in runs_in(place.folder) if not run.finished),
        tuple(_notices(config)),
        {name: len(some) for name, some in held.items() if some},
        returned.height,
        marks.height,
        held,
        ways.records,
    )


def _still_open(count: int) -> dict[str, int]:
    return {"its batch is still open: the next run ends it": count} if count else {}


def _returned(config: cfg.PipelineConfig, marks: pl.DataFrame) -> pl.DataFrame:
    """Changes missing in the marks: records were lost when their targets were restored."""
    found = taken_back(config, marks)
    return frame_of(as_marks(marked_by(config.name, _RESTORED, found)))


def apply_redrive(
    plan: RedrivePlan,
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
    log: Path | None = None,
) -> RedriveResult:
    """Finish unfinished redrives, then redrive what the plan selects, in the current state of the records."""
    place, stop = quarantine_of(plan.config), stop or StopRequest()
    done: list[StoredRun] = []
    with place.alone():
        _mark_returned(place, listener)
        tried = unfinished_records(place.folder)
        for run in (run for run in runs_in(place.folder) if not run.finished):
            done.append(run)
            if not _carry(place, run, listener, stop, session, log):
                return _result(place, done, finished=False)
        now = plan
        if tried.height or place.read_marks().height != plan.marks:
            now = _plan(place, plan.selection, tried, plan.include_parked, plan.accept_duplicates)
        if not now.records:
            return _result(place, done, finished=True)
        if stop.asked():
            return replace(_result(place, done, finished=False), left=now.records)
        most = plan.config.source.max_offsets or MOST_RECORDS
        names = tuple(sink.name for sink in plan.config.sinks)
        run = write_run(
            place.folder, bodies_of(place, now), most, names=names, accept_duplicates=plan.accept_duplicates
        )
        return _result(place, [*done, run], finished=_carry(place, run, listener, stop, session, log))


def _mark_returned(place: QuarantinePlace, listener: Listener) -> None:
    """Note that records wait again, before new commits make the targets look as if these had never been restored."""
    returned = _returned(place.config, place.read_marks())
    if not returned.is_empty():
        place.mark("returns", returned, run=_RESTORED, query_id=uuid4().hex)
        listener(Notice(f"{returned.height:,} records wait again: their targets were restored to before their redrive"))


def bodies_of(place: QuarantinePlace, plan: RedrivePlan) -> list[tuple[tuple[str, ...] | None, pl.DataFrame]]:
    """The records of each way, with their bytes. A way to every sink is the whole pipeline, whatever it has then."""
    whole = read_records(place.records, plan.config.name, RAW_SCHEMA.names).unique(PLACE, keep="first")
    records = whole.select(RAW_SCHEMA.names).join(plan._records, on=PLACE, how="inner")
    every = tuple(sink.name for sink in plan.config.sinks)
    found = []
    for way in plan.ways:
        mine = records.filter(pl.col("way") == ",".join(way)).select(*RAW_SCHEMA.names, IDENTITIES)
        found.append((None if way == every else way, mine))
    return found


def _carry(
    place: QuarantinePlace, run: StoredRun, listener: Listener, stop: StopRequest, session: Any, log: Path | None
) -> bool:
    """Run the rest of a redrive; false if a stop was requested before its end."""
    from penstock.supervision.bounded import run_bounded

    for one in run.passes:
        bounded = _bounded(place, run, one)
        if not bounded.finished:
            run_bounded(bounded, listener, stop, session, log)
        if not bounded.finished:
            return False
    outcomes = place.read_marks().filter(pl.col("run") == run.name).group_by("outcome").len()
    run.finish(dict(outcomes.iter_rows()))
    return True


def _bounded(place: QuarantinePlace, run: StoredRun, one: StoredPass) -> Any:
    from penstock.assembly.build import build
    from penstock.readers.stored import StoredReader
    from penstock.supervision.bounded import BoundedRun

    name, reader = redrives_of(place.config.name), StoredReader(str(one.file))
    narrowed(place.config, one.names if one.sinks is None else one.sinks)  # refuses sinks that are gone
    config = narrowed(place.config, one.sinks, name=name, checkpoint=str(one.folder))
    merging = {sink.name for sink in config.sinks if sink.merges}

    def late(sink: Sink) -> Sink:
        """An old record must not undo what a newer one has written since."""
        return sink.by_position() or sink if sink.name in merging else sink

    pipeline = build(config).with_sinks(late)
    asked = set[str]() if run.accept_duplicates else appending(config)
    marks = RedriveMarks(
        place.marking("redrives"),
        place.config.name,
        run.name,
        partial(reader.columns, names=(*PLACE, IDENTITIES)),
        reached_by(config),
        one.batches,
        everywhere=one.sinks is None,
        numbers=partial(commit_numbers, pipeline.sinks),
    )
    return BoundedRun(
        replace(pipeline, targets=replace(pipeline.targets, gaps=None)),
        one.query_id,
        one.batches,
        one.folder,
        reader,
        marks,
        rule=Rule.RECORDS,
        excluded=partial(excluded_from, reader, asked, former_sinks(place.config, asked)),
        check_log=False,
    )


def _result(place: QuarantinePlace, runs: list[StoredRun], *, finished: bool) -> RedriveResult:
    names = [run.name for run in runs]
    marks = place.read_marks().filter(pl.col("run").is_in(names)).unique((*PLACE, "run"))
    counts = dict(marks.group_by("outcome").len().iter_rows())
    redriven, failed = counts.get("redriven", 0), counts.get("failed", 0)
    parked = 0
    if failed:
        now_parked = place.read().filter(pl.col("state") == State.PARKED.value)
        parked = now_parked.join(marks, on=PLACE, how="semi").unique(PLACE).height
    left = sum(run.records for run in runs) - redriven - failed
    return RedriveResult(tuple(names), redriven, failed, parked, finished, left)


def _notices(config: cfg.PipelineConfig) -> Iterator[str]:
    for sink in config.sinks:
        if sink.merges and not sink.coordinates and getattr(sink, "when_newer", None) is None:
            yield (f"sink {sink.name} merges and stores no coordinates: an old record may overwrite a newer one")
        if getattr(sink, "guarantee", None) == "at_least_once":
            yield f"sink {sink.name} is at least once: a killed redrive may write duplicates"


def _refuse_state(config: cfg.PipelineConfig) -> None:
    step = next((step for flow in cfg.flows(config) for step in flow.transforms if cfg.remembers(step)), None)
    if step is not None or config.sources:
        what = f"the step {step.kind}" if step is not None else "the join of its sources"
        raise MissingError(
            "REDRIVE_HAS_STATE",
            f"pipeline {config.name}: {what} is stateful, and a late record would change its earlier results",
            hint="write the corrected records to the source topic again; they are then processed as new records",
        )


# What a redrive would give, tried in this process: the records are decoded and transformed, and nothing is written.

_AT_ONCE = 20_000


@dataclass(frozen=True)
class RedriveTrial:
    """What would become of the records of a plan. A target may still refuse a row at its commit."""

    redriven: int = 0
    failed: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)
    """Why records would fail again."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows each sink would get, without records that its target already has."""
    unknown: str | None = None
    """Why it was not tried."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.__dict__}


def try_redrive(plan: RedrivePlan) -> RedriveTrial:
    """Run the records of a plan through the current pipeline. For the frame lane only Spark can do so."""
    from penstock.assembly.build import build

    failed: dict[Place, str] = {}
    rows: Counter[str] = Counter()
    for sinks, records in bodies_of(quarantine_of(plan.config), plan):
        pipeline = build(narrowed(plan.config, sinks))
        if pipeline.lane.lane != "direct":
            return RedriveTrial(unknown=f"only Spark can run this pipeline: {pipeline.lane.reason}")
        for some in records.sort("topic", "partition", "offset").iter_slices(_AT_ONCE):
            result = try_records(pipeline, some)
            bad = result.quarantine.select(["topic", "partition", "offset", "code"]).to_pylist()
            for one in reversed(bad):
                failed[one["topic"], one["partition"], one["offset"]] = one["code"]
            for name, table in result.sinks.items():
                rows[name] += _new_rows(table, plan.held_by(name))
    return RedriveTrial(plan.records - len(failed), len(failed), dict(Counter(failed.values()).most_common()), rows)


def _new_rows(table: pa.Table, held: set[Place]) -> int:
    if not held or COORDINATES not in table.column_names:
        return int(table.num_rows)
    places = table.column(COORDINATES).to_pylist()
    return sum((at["topic"], at["partition"], at["offset"]) not in held for at in places)
