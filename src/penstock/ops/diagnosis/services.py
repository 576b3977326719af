"""Causes outside the pipeline: a sink, brokers or a schema registry that batches wait for, and records that do not
match the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock.config import (
    DeltaSinkConfig,
    IcebergSinkConfig,
    KafkaSinkConfig,
    PipelineConfig,
    PostgresSinkConfig,
    WatermarkConfig,
    flows,
    show_duration,
)
from penstock.metrics import BatchMetrics
from penstock.ops.diagnosis.evidence import Cause, Evidence, sink_seconds, wall_seconds
from penstock.wording import percent, size, span

_LAST = 5
_SHARE = 0.1
_FEWEST = 20


def quarantine_storm(evidence: Evidence) -> Cause | None:
    """Of the records of the last batches a good part is bad."""
    last = evidence.batches[-_LAST:]
    count, share = sum(batch.quarantined for batch in last), _share(last)
    if count < _FEWEST or share < _SHARE:
        return None
    codes: Counter[str] = Counter()
    for batch in last:
        codes.update(batch.codes)
    facts = [f"{count:,} of the last {sum(batch.rows_in for batch in last):,} records went there: {percent(share)}"]
    earlier = (*evidence.before, *evidence.batches[: -len(last)])
    if earlier:
        facts.append(f"of the records before it was {percent(_share(earlier))}")
    if codes:
        facts.append("codes: " + ", ".join(f"{code} {number:,}" for code, number in codes.most_common(3)))
    if (first := _beginning((*earlier, *last))) is not None:
        facts.append(f"it started with batch {first.batch_id} at {first.finished_at:%Y-%m-%d %H:%M:%S} UTC")
    code = codes.most_common(1)[0][0] if codes else None
    return Cause(
        "QUARANTINE_STORM",
        0.6 + 0.35 * share,
        f"{percent(share)} of the records go to quarantine",
        tuple(facts),
        _change(evidence, code),
    )


def _share(batches: Sequence[BatchMetrics]) -> float:
    records = sum(batch.rows_in for batch in batches)
    return min(1.0, sum(batch.quarantined for batch in batches) / records) if records else 0.0


def _beginning(batches: Sequence[BatchMetrics]) -> BatchMetrics | None:
    """The first of the bad batches that have not ended since."""
    found = None
    for batch in reversed(batches):
        if batch.rows_in and _share([batch]) < _SHARE:
            break
        found = batch
    return found


def _change(evidence: Evidence, code: str | None) -> str:
    if code == "LATE" and (delay := _delay(evidence.config)) is not None:
        return (
            f"watermark.delay: {show_duration(delay.watermark.delay * 2)} (now {show_duration(delay.watermark.delay)})"
        )
    only = f" --code {code}" if code is not None else ""
    return (
        f"penstock quarantine list {evidence.file}{only} --records 5 lists them; fix decode or the producer, "
        f"then penstock quarantine redrive {evidence.file}"
    )


def _delay(config: PipelineConfig) -> WatermarkConfig | None:
    steps = (
        step for flow in flows(config) for step in (*flow.transforms, *(s for o in flow.sides for s in o.transforms))
    )
    return next((step for step in steps if isinstance(step, WatermarkConfig)), None)


_HALF = 0.5
_LONG = 0.5
"""Batches shorter than this many seconds are never slow."""
_QUICK_ROWS = 50_000
"""Rows per second above which a sink or broker is fast, whatever its share."""
_SLOW_ANSWER = 0.5
_REGISTRY_SHARE = 0.3

_FEW_BYTES = ("fetch.max.bytes", "fetch.message.max.bytes", "max.partition.fetch.bytes", "receive.message.max.bytes")
_AT_MOST = {
    "fetch.min.bytes": 100_000,
    "fetch.wait.max.ms": 500,
    "fetch.max.wait.ms": 500,
    "fetch.queue.backoff.ms": 200,
    "fetch.error.backoff.ms": 1000,
}
_AT_LEAST = {
    **dict.fromkeys(_FEW_BYTES, 1_000_000),
    "queued.min.messages": 1000,
    "queued.max.messages.kbytes": 1024,
    "max.poll.records": 500,
}


def slow_sink(evidence: Evidence) -> Cause | None:
    """Most of the batches' time goes to one sink, and it takes few rows for that."""
    if not evidence.slow:
        return None
    took = {
        name: sum(sink_seconds(batch, name, evidence.cores) for batch in evidence.batches) for name in _sinks(evidence)
    }
    name = max(took, key=lambda one: took[one], default=None)
    if name is None:
        return None
    spent, count = took[name], len(evidence.batches)
    rate = sum(batch.rows_out for batch in evidence.batches) / spent if spent else _QUICK_ROWS
    if spent < _HALF * evidence.seconds or spent < _LONG * count or rate >= _QUICK_ROWS:
        return None
    committed = sum(batch.phases.get(f"commit:{name}", 0.0) for batch in evidence.batches)
    others = [f"{other} {span(took[other] / count)}" for other in took if other != name]
    return Cause(
        "SLOW_SINK",
        _weight(spent, evidence),
        f"sink {name} takes {percent(min(1.0, spent / evidence.seconds))} of every batch",
        (
            f"{evidence.last_batches}: sink {name} {span(spent / count)} of {span(evidence.seconds / count)} a batch",
            f"{span(committed / count)} of it is the commit; {rate:,.0f} rows per second",
            *([f"the other sinks: {', '.join(others)}"] if others else ()),
        ),
        _faster_sink(evidence, name),
    )


def slow_broker(evidence: Evidence) -> Cause | None:
    """Most of the batches' time goes to waiting for records or offsets, and few bytes come."""
    if not evidence.slow:
        return None
    batches, count = evidence.batches, len(evidence.batches)
    read = sum(wall_seconds(batch, "task_read", evidence.cores) for batch in batches)
    asked = sum(batch.phases.get("offsets", 0.0) for batch in batches)
    answer = evidence.brokers.seconds if evidence.brokers is not None else 0.0
    spent = read + asked
    rate = sum(batch.rows_in for batch in batches) / spent if spent else _QUICK_ROWS
    waits = spent >= _HALF * evidence.seconds and spent >= _LONG * count and rate < _QUICK_ROWS
    if not waits and answer < _SLOW_ANSWER:
        return None
    bytes_in = sum(batch.bytes_in for batch in batches)
    setting = _odd_setting(evidence)
    facts = [
        f"{evidence.last_batches}: reading takes {span(read / count)} and asking for offsets {span(asked / count)} of "
        f"{span(evidence.seconds / count)} a batch",
        f"{size(bytes_in / spent if spent else 0)} and {rate:,.0f} records per second arrive while it reads",
    ]
    if evidence.brokers is not None:
        facts.append(f"the brokers take {answer * 1000:.0f} ms to respond now")
    if setting is not None:
        facts.append(f"source.options has {setting[0]}: {setting[1]}")
    change = (
        f"remove {setting[0]} from source.options"
        if setting is not None
        else f"run the pipeline closer to {evidence.config.source.brokers}, or check what keeps these brokers busy"
    )
    return Cause("SLOW_BROKER", _weight(spent, evidence), _reading(evidence, spent, answer), tuple(facts), change)


def slow_registry(evidence: Evidence) -> Cause | None:
    """A good part of the batches' time goes to questions to a schema registry."""
    if not evidence.slow:
        return None
    batches, count = evidence.batches, len(evidence.batches)
    before = sum(batch.phases.get("registry", 0.0) for batch in batches)
    within = sum(wall_seconds(batch, "task_registry", evidence.cores) for batch in batches)
    spent = before + within
    if spent < _REGISTRY_SHARE * evidence.seconds or spent < _LONG * count:
        return None
    slowest = max(evidence.registries, key=lambda one: one.seconds, default=None)
    facts = [
        f"{evidence.last_batches}: {span(spent / count)} of {span(evidence.seconds / count)} a batch are spent waiting "
        f"for its responses",
        f"{span(before / count)} before the tasks, for the newest version; {span(within / count)} in them, for schemas",
    ]
    if slowest is not None:
        facts.append(f"{slowest.url} takes {slowest.seconds * 1000:.0f} ms to respond now")
    pinned = before > within
    return Cause(
        "SLOW_REGISTRY",
        _weight(spent, evidence),
        f"the schema registry takes {percent(min(1.0, spent / evidence.seconds))} of every batch",
        tuple(facts),
        "decode.version: the number of the version in use, instead of latest: it is then not requested in every batch"
        if pinned
        else "decode.registry.url: the URL of a registry or replica closer to the pipeline",
    )


def _weight(spent: float, evidence: Evidence) -> float:
    return 0.5 + 0.4 * min(1.0, spent / evidence.cycle) if evidence.cycle else 0.5


def _sinks(evidence: Evidence) -> set[str]:
    phases: Iterable[str] = (phase for batch in evidence.batches for phase in batch.phases)
    return {phase.partition(":")[2] for phase in phases if phase.startswith(("commit:", "task_stage:"))}


def _reading(evidence: Evidence, spent: float, answer: float) -> str:
    if spent >= _HALF * evidence.seconds:
        return f"{percent(min(1.0, spent / evidence.seconds))} of every batch is spent waiting for the brokers"
    return f"the brokers take {span(answer)} to answer"


def _odd_setting(evidence: Evidence) -> tuple[str, str] | None:
    """A fetch setting of the file that is known to slow a reader down."""
    for name, value in evidence.config.source.options.items():
        if not isinstance(value, str):
            continue  # What a reference gave is not shown.
        try:
            number = float(value)
        except ValueError:
            continue
        if number > _AT_MOST.get(name, number) or number < _AT_LEAST.get(name, number):
            return name, value
    return None


def _faster_sink(evidence: Evidence, name: str) -> str:
    at = next((i for i, sink in enumerate(evidence.config.sinks) if sink.name == name), None)
    sink = evidence.config.sinks[at] if at is not None else None
    match sink:
        case PostgresSinkConfig():
            return (
                f"in the database, see what every row of {sink.table} costs: SELECT tgname, "
                f"pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = '{sink.table}'::regclass AND NOT tgisinternal"
            )
        case DeltaSinkConfig() | IcebergSinkConfig() if sink.mode == "merge" and not sink.prune_by:
            return f"sinks[{at}].prune_by: [a column that recent rows share]: a merge then reads less of the table"
        case DeltaSinkConfig() | IcebergSinkConfig():
            return f"penstock compact {evidence.file} --sink {name}; or closer storage for {name}"
        case KafkaSinkConfig():
            return f"sinks[{at}].options: {{compression.type: lz4, linger.ms: 50}}"
        case _:
            return f"closer storage for {name}, or a separate pipeline for it, so that the others do not wait"
