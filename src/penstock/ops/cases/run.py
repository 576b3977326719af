"""Runs the cases of a pipeline: messages through the pipeline's own parts, with the output compared with the file.

No broker, registry or table is accessed, and nothing is written. Spark starts only for a pipeline that needs it, and
once however many cases there are. If there is no case file yet, one is generated from the pipeline's own columns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import config as cfg
from penstock.assembly.build import Pipeline
from penstock.assembly.trial_registry import Given, build_offline, given_tables
from penstock.config.cases import AdvanceCase, Case, CaseFile, MessageCase, case_file_of, load_cases
from penstock.config.ddl import read_columns
from penstock.engine.trial import Batch, BatchResult, trial_of
from penstock.errors import DefinitionError, MissingError, PenstockError, one_line
from penstock.model import RAW_SCHEMA
from penstock.ops.cases.rows import TableDiff, compare, rows_of

_SAMPLES = {
    "BOOLEAN": "true",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), "1"),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL"), "1.5"),
    "STRING": "abc",
    "BINARY": "YWJj",
    "DATE": '"2026-01-31"',
    "TIMESTAMP": '"2026-01-31T08:00:00Z"',
    "TIMESTAMP_NTZ": '"2026-01-31T08:00:00"',
    "ARRAY": "[]",
    "STRUCT": "{}",
    "MAP": "{}",
}


def skeleton(config: cfg.PipelineConfig) -> str:
    """A skeleton of a case file, from the pipeline's columns."""
    columns: Sequence[str] = ()
    for flow in cfg.flows(config):
        if flow.decode is not None and (text := getattr(flow.decode, "columns", None)):
            columns = [f"{column.name}: {_SAMPLES.get(column.type.name, 'null')}" for column in read_columns(text)]
            break
    value = f"{{{', '.join(columns)}}}" if columns else '"..."'
    topics = config.source.named_topics
    topic = f", topic: {topics[0] if topics else 'TOPIC'}" if topics is None or len(topics) > 1 else ""
    return f"cases:\n  - name: a good message\n    messages:\n      - {{value: {value}{topic}}}\n"


FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The default time of the first message."""


@dataclass(frozen=True)
class Output:
    """What came out of a pipeline, over all batches."""

    sinks: Mapping[str, list[dict[str, Any]]]
    quarantine: list[dict[str, Any]]
    counts: Mapping[str, int] = field(default_factory=dict)
    state: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class CaseResult:
    """One case: what it expected, what was seen, and how they differ."""

    case: Case
    seconds: float
    tables: tuple[TableDiff, ...] = ()
    notes: tuple[str, ...] = ()
    """Problems other than row differences."""
    seen: Output | None = None
    error: PenstockError | None = None
    """The error that stopped the pipeline."""

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return not self.notes and all(table.passed for table in self.tables)


@dataclass(frozen=True)
class FileResult:
    """The cases of one pipeline."""

    pipeline: str
    lane: str
    lane_reason: str
    file: Path
    cases: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return all(case.passed for case in self.cases)


class SparkWhenNeeded:
    """Starts Spark on first use, and keeps it until `stop`. A given session is used and left open."""

    def __init__(self, session: Any = None) -> None:
        self._session, self._own = session, session is None
        self.settings: Mapping[str, str] = {}

    def __call__(self) -> Any:
        """The session."""
        if self._session is None:
            from penstock.spark.session import start_session

            own = {name: value for name, value in self.settings.items() if name != "spark.master"}
            settings = {"spark.sql.shuffle.partitions": "2", **own}
            self._session = start_session("penstock test", settings, preload=("penstock.engine.frame",))
        return self._session

    def stop(self) -> None:
        """Stop what was started here."""
        if self._session is not None and self._own:
            from penstock.spark.session import stop_session

            stop_session(self._session)
            self._session = None


def run_file(file: Path, session: SparkWhenNeeded, names: Sequence[str] = ()) -> FileResult:
    """Run the cases of a pipeline file, all or those with these names."""
    config = cfg.load(file)
    cases = _load(file, config)
    chosen = [case for case in cases.cases if not names or case.name in names]
    unknown = sorted(set(names) - {case.name for case in chosen})
    if unknown:
        raise MissingError(
            "CASE_MISSING",
            f"{cases.file}: no case named {', '.join(unknown)}",
            context={"cases": ", ".join(case.name for case in cases.cases)},
        )
    session.settings = cfg.reveal(config.spark)
    built: dict[str, tuple[Pipeline, Given]] = {}
    results = []
    for case in chosen:
        tables = {**cases.tables, **case.tables}
        key = repr(tables)
        if key not in built:
            built[key] = build_offline(config, cases.schemas, given_tables(config, tables))
        results.append(run_case(*built[key], case, session))
    lane = next(iter(built.values()))[0].lane
    return FileResult(config.name, lane.lane, lane.reason, cases.file, tuple(results))


def _load(file: Path, config: cfg.PipelineConfig) -> CaseFile:
    beside = case_file_of(file)
    if not beside.exists():
        raise MissingError(
            "CASE_FILE_MISSING",
            f"{beside}: no cases for {file.name}",
            hint=f"write some, such as:\n\n{skeleton(config)}\n"
            f"and let `penstock test {file} --update` record the results",
        )
    return load_cases(beside, config)


def run_case(pipeline: Pipeline, given: Given, case: Case, session: Callable[[], Any]) -> CaseResult:
    """Run one case and compare."""
    began = time.perf_counter()
    try:
        seen = see(pipeline, case, session, given)
    except PenstockError as error:
        expected = case.expect.error if case.expect else None
        wrong = () if error.code == expected else (f"the pipeline stopped: {one_line(error)}",)
        return CaseResult(case, time.perf_counter() - began, notes=wrong, error=error)
    tables, notes = _compare(case, seen)
    return CaseResult(case, time.perf_counter() - began, tables, notes, seen)


def see(pipeline: Pipeline, case: Case, session: Callable[[], Any], given: Given = Given()) -> Output:
    """What comes out of a pipeline for the messages of a case."""
    lane = trial_of(pipeline, session, given=given)
    return seen_in(lane.run(to_batches(case.all_batches, pipeline.config.source.named_topics)))


def seen_in(results: Sequence[BatchResult]) -> Output:
    """All batches together."""
    sinks: dict[str, list[dict[str, Any]]] = {}
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
        for name, table in result.sinks.items():
            sinks.setdefault(name, []).extend(rows_of(table))
    bad = [row for result in results for row in rows_of(result.quarantine)]
    last = results[-1].state if results else None
    return Output(sinks, bad, dict(counts), rows_of(last) if last is not None else None)


def to_batches(batches: Iterable[Sequence[MessageCase] | AdvanceCase], topics: Sequence[str] | None) -> list[Batch]:
    """Messages as records: offsets increase per partition, and time advances by a second for each."""
    made: list[Batch] = []
    clock, ends, used = FIRST_TIME, Counter[tuple[str, int]](), set[tuple[str, int, int]]()
    for batch in batches:
        if isinstance(batch, AdvanceCase):
            clock += batch.advance
            made.append(batch.advance)
            continue
        rows = []
        for message in batch:
            topic = message.topic or (topics[0] if topics else "")
            at = (topic, message.partition)
            offset = ends[at] if message.offset is None else message.offset
            if (*at, offset) in used:
                raise DefinitionError("CASE_OFFSET_TWICE", f"{topic}[{message.partition}] has offset {offset} twice")
            used.add((*at, offset))
            ends[at], clock = max(ends[at], offset + 1), message.time or clock
            rows.append(_record(message, topic, offset, clock))
            clock += timedelta(seconds=1)
        made.append(pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA))
    return made


def _record(message: MessageCase, topic: str, offset: int, clock: datetime) -> dict[str, Any]:
    headers = [{"key": k, "value": None if v is None else v.encode()} for k, v in message.headers.items()]
    return {
        "key": message.key_bytes(),
        "value": message.value_bytes(),
        "headers": headers or None,
        "topic": topic,
        "partition": message.partition,
        "offset": offset,
        "timestamp": clock,
    }


def _compare(case: Case, seen: Output) -> tuple[tuple[TableDiff, ...], tuple[str, ...]]:
    expect = case.expect
    if expect is None:
        return (), ("nothing is expected yet: --update records the actual results",)
    how: Any = {"ordered": case.ordered, "exact": case.exact}
    tables = [compare(f"sink {name}", rows, seen.sinks.get(name, []), **how) for name, rows in expect.sinks.items()]
    tables.append(compare("quarantine", expect.quarantine, seen.quarantine, ordered=case.ordered))
    notes = [
        f"count of {name}: expected {count:,}, seen {seen.counts.get(name, 0):,}"
        for name, count in expect.counts.items()
        if seen.counts.get(name, 0) != count
    ]
    if expect.error is not None:
        notes.append(f"expected the pipeline to stop with {expect.error}, but it did not")
    if isinstance(expect.state, tuple):
        tables.append(compare("state", expect.state, seen.state or []))
    elif expect.state is not None and expect.state != len(seen.state or ()):
        notes.append(f"rows of state: expected {expect.state:,}, seen {len(seen.state or ()):,}")
    return tuple(table for table in tables if table.rows), tuple(notes)
