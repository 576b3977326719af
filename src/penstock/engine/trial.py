"""A trial: given messages through a pipeline's own parts, and nothing written anywhere.

Enters: batches of records in `RAW_SCHEMA`. Leaves, for each batch: the rows that would reach each sink, the bad
records, what was counted. The reader and the sinks are in memory; all between them is what a run has. The direct lane
needs no Spark, and loads none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import translate_error
from penstock.assembly.targets import merge_rules
from penstock.assembly.trial_registry import Given
from penstock.contracts import Reader, Sink
from penstock.engine.direct import run_slot, share_slot, stage_direct
from penstock.engine.flows import CurrentFlows
from penstock.engine.memory import CollectingSink, MemoryReader, ranges_of
from penstock.engine.outlet import StagedFlow
from penstock.engine.slot import SlotReport
from penstock.errors import from_wire
from penstock.model import (
    BAD_SCHEMA,
    RAW_SCHEMA,
    BatchToken,
    OffsetRange,
)
from penstock.quarantine import RefusingQuarantine

QUARANTINE = "quarantine"

Batch: TypeAlias = pa.RecordBatch | timedelta
"""Records in `RAW_SCHEMA`, or the time that passes before the next ones."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch gave."""

    sinks: Mapping[str, pa.Table]
    quarantine: pa.Table
    """In `BAD_SCHEMA`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    notices: frozenset[str] = frozenset()
    state: pa.Table | None = None
    """The rows of state that are left; none where the pipeline keeps no state."""


@dataclass(frozen=True)
class Trial:
    """A pipeline whose reader and sinks are in memory."""

    pipeline: Pipeline
    given: Given
    session: Any
    """None where it needs no Spark: everything is in this process, in one slot."""

    def run(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Carry the batches one after another; time that passes gives no result of its own unless rows come of it."""
        if self.session is None:
            return _run(self.pipeline, self.given, None, batches)
        try:
            if self.pipeline.stateful:
                from penstock.engine.trial_stream import run_stream

                return run_stream(self.pipeline, self.given, self.session, batches)
            return _run(self.pipeline, self.given, self.session, batches)
        except Exception as error:
            raise translate_error(error) from error


def trial_of(pipeline: Pipeline, session: Callable[[], Any], *, given: Given = Given(), preview: bool = False) -> Trial:
    """The trial of a pipeline. Spark is asked for only where the pipeline needs it.

    A test asks no registry, and a pipeline without a quarantine stops at a bad record, as in a run. In a `preview`
    registries are asked, and bad records are collected all the same.
    """
    needs_spark = pipeline.stateful or pipeline.lane.lane != "direct"
    return Trial(_collecting(pipeline, preview), given, session() if needs_spark else None)


def _collecting(pipeline: Pipeline, preview: bool) -> Pipeline:
    """The same pipeline with sinks that collect."""
    refuses = isinstance(pipeline.quarantines[0], RefusingQuarantine) and not preview
    quarantines: tuple[Sink, ...] = pipeline.quarantines if refuses else (CollectingSink(QUARANTINE),)
    sinks = tuple(CollectingSink(sink.name, merge_rules(sink)) for sink in pipeline.config.sinks)
    targets = replace(pipeline.targets, sinks=sinks, quarantines=quarantines, gaps=None)
    return replace(pipeline, targets=targets).reading(pipeline.schemas, frozen=not preview)


def _run(pipeline: Pipeline, given: Given, session: Any, batches: Sequence[Batch]) -> list[BatchResult]:
    records = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
    every = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA), *records])
    reader: Reader = MemoryReader(every, given)
    notices: list[str] = []
    flows = CurrentFlows(replace(pipeline, reader=reader), session, notices.append)
    flows.prepare()
    return [_batch(pipeline, flows.staged, session, number, batch) for number, batch in enumerate(records)]


def _batch(
    pipeline: Pipeline, flows: Sequence[StagedFlow], session: Any, number: int, records: pa.RecordBatch
) -> BatchResult:
    token = BatchToken(pipeline.config.name, "trial", number, tuple(ranges_of(records)))
    reports: list[SlotReport] = []
    for flow in flows:
        current = flow.of_batch(token, pipeline.sinks)
        reports += _staged(current, session, current.of(token.ranges))
    return collected(pipeline, reports)


def collected(pipeline: Pipeline, reports: Sequence[SlotReport]) -> BatchResult:
    """What some slots gave."""
    manifests = [manifest for report in reports for manifest in report.manifests]
    sinks = {sink.name: sink.rows(manifests) for sink in pipeline.sinks if isinstance(sink, CollectingSink)}
    bad = [sink.rows(manifests) for sink in pipeline.quarantines if isinstance(sink, CollectingSink)]
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return BatchResult(
        sinks,
        bad[0] if bad else BAD_SCHEMA.empty_table(),
        counts,
        frozenset().union(*(report.notices for report in reports)),
    )


def _staged(flow: StagedFlow, session: Any, ranges: Sequence[OffsetRange]) -> list[SlotReport]:
    if flow.stage is not stage_direct:
        return flow.stage(session.range(0), flow.works, [tuple(ranges)])
    try:
        return [share_slot(flow.works, 0, ranges) if len(flow.works) > 1 else run_slot(flow.works[0], 0, ranges)]
    except RuntimeError as error:
        # Tasks send Penstock's errors in a form that Spark keeps.
        told = from_wire(str(error))
        if told is None:
            raise
        raise told from error
