"""What is in a checkpoint: batches, offsets with their lag, watermark, state, and what each sink's own token says.

Read-only, no JVM. Unreachable brokers or sinks are shown as such.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.checkpoint.state_stores import StateStore
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.model import TopicPartition, lag_of
from penstock.ops.snapshot import Snapshot, take_snapshot
from penstock.preflight.standings import Standing


@dataclass(frozen=True)
class ShownPartition:
    """One partition: its committed offset, the end of the open batch, and the log."""

    topic: str
    partition: int
    committed: int | None
    begun: int | None
    log_start: int | None
    log_end: int | None

    @property
    def lag(self) -> int | None:
        """The number of uncommitted offsets; None if the brokers or the checkpoint are unknown."""
        at = self.committed
        return None if at is None or self.log_end is None else lag_of(self.log_end, at)


@dataclass(frozen=True)
class ShownSink:
    """The token of a sink, and whether the checkpoint agrees."""

    name: str
    guarantee: str
    batch: int | None
    query_id: str | None
    ranges: str | None
    torn: str | None
    error: str | None
    agrees: bool | None
    """None if the sink stores no token, has one of another query, or cannot be read."""
    says: str


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has started and has not committed."""

    batch: int
    began_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long ago it started."""
        return None if self.began_at is None else (datetime.now(UTC) - self.began_at).total_seconds()


@dataclass(frozen=True)
class CheckpointView:
    """Everything that `penstock checkpoint show` prints."""

    pipeline: str
    checkpoint: str
    query_id: str | None
    formats: dict[str, str]
    begun: int | None
    committed: int | None
    open: OpenBatch | None
    running: str | None
    watermark: str | None
    partitions: tuple[ShownPartition, ...]
    brokers: str | None
    """Why the brokers could not be read, if so."""
    state_version: int | None
    state: tuple[StateStore, ...]
    sinks: tuple[ShownSink, ...]
    problems: tuple[str, ...]
    """What blocks a run, one line each."""

    @property
    def agree(self) -> bool | None:
        """Whether the checkpoint and every sink agree; None if one could not be read."""
        said = [one.agrees for one in self.sinks if one.agrees is not None]
        if not all(said) or self.problems:
            return False
        return None if any(one.error is not None for one in self.sinks) else True

    @property
    def lag(self) -> int | None:
        """All offsets that are not committed yet."""
        known = [one.lag for one in self.partitions]
        return sum(lag for lag in known if lag is not None) if any(lag is not None for lag in known) else None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        body = asdict(self)
        for shown, one in zip(body["partitions"], self.partitions, strict=True):
            shown["lag"] = one.lag
        if self.open is not None:
            body["open"]["seconds"] = self.open.seconds
        return {**body, "lag": self.lag, "agree": self.agree}


@dataclass(frozen=True)
class BatchView:
    """One batch of a checkpoint."""

    pipeline: str
    checkpoint: str
    batch: int
    committed: bool
    began_at: datetime | None
    committed_at: datetime | None
    watermark: str | None
    ranges: tuple[dict[str, Any], ...]
    sinks: tuple[str, ...]
    """The sinks whose newest batch it is."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def show_checkpoint(snapshot: Snapshot) -> CheckpointView:
    """Show a checkpoint with its sinks and brokers."""
    config, files = snapshot.config, snapshot.files
    findings = [*snapshot.file_findings, *snapshot.foreign]
    batch = snapshot.open_batch
    watermark = files.offsets[files.begun].facts.get("batchWatermarkMs") if files.begun is not None else None
    return CheckpointView(
        pipeline=config.name,
        checkpoint=config.checkpoint,
        query_id=files.query_id,
        formats=_formats(snapshot),
        begun=files.begun,
        committed=files.committed,
        open=OpenBatch(batch, snapshot.written_at(f"offsets/{batch}")) if batch is not None else None,
        running=snapshot.live,
        watermark=_time(watermark),
        partitions=_partitions(snapshot),
        brokers=snapshot.brokers.error.line if snapshot.brokers.error is not None else None,
        state_version=snapshot.state.newest if snapshot.state.kept else None,
        state=snapshot.state.stores,
        sinks=tuple(_sink(snapshot, one) for one in snapshot.standings),
        problems=tuple(f"{one.code} {one.summary}" for one in findings if one.blocks),
    )


def show_batch(config: PipelineConfig, batch: int) -> BatchView:
    """Show one batch, as far as Spark still keeps it."""
    snapshot = take_snapshot(config, brokers=None)
    ends = snapshot.files.ends(batch)
    if ends is None:
        there = sorted(snapshot.files.offsets)
        raise MissingError(
            "BATCH_UNKNOWN",
            f"checkpoint {config.checkpoint} has no readable batch {batch}",
            context={"batches there": f"{there[0]} to {there[-1]}" if there else "none"},
            hint="Spark keeps the newest 100 batches by default",
        )
    starts = snapshot.starts(batch)
    return BatchView(
        pipeline=config.name,
        checkpoint=config.checkpoint,
        batch=batch,
        committed=batch in snapshot.files.commits,
        began_at=snapshot.written_at(f"offsets/{batch}"),
        committed_at=snapshot.written_at(f"commits/{batch}") if batch in snapshot.files.commits else None,
        watermark=_time(snapshot.files.offsets[batch].facts.get("batchWatermarkMs")),
        ranges=tuple(
            {
                "topic": at.topic,
                "partition": at.partition,
                "start": starts.get(at, 0) if starts is not None else None,
                "end": end,
            }
            for at, end in sorted(ends.items())
        ),
        sinks=tuple(one.sink for one in snapshot.standings if one.token is not None and _is(one, snapshot, batch)),
    )


def _is(one: Standing, snapshot: Snapshot, batch: int) -> bool:
    token = one.token
    return token is not None and (token.query_id, token.batch_id) == (snapshot.files.query_id, batch)


def _partitions(snapshot: Snapshot) -> tuple[ShownPartition, ...]:
    files, bounds = snapshot.files, snapshot.brokers.bounds or {}
    done = files.ends(files.committed) if files.committed is not None else snapshot.starts(0)
    begun = files.ends(snapshot.open_batch) or {}

    def shown(at: TopicPartition) -> ShownPartition:
        log = bounds.get(at)
        # A partition that the checkpoint does not have yet is read from its beginning.
        committed = done.get(at, log.start if log is not None else None) if done else None
        return ShownPartition(
            at.topic,
            at.partition,
            committed,
            begun.get(at),
            log.start if log is not None else None,
            log.end if log is not None else None,
        )

    return tuple(shown(at) for at in sorted({*(done or {}), *begun, *bounds}))


def _sink(snapshot: Snapshot, one: Standing) -> ShownSink:
    found = snapshot.sink_findings([one])
    token = one.token
    foreign = token is not None and token.query_id != snapshot.files.query_id
    unknown = one.error is not None or foreign or (token is None and one.torn is None)
    return ShownSink(
        name=one.sink,
        guarantee=one.guarantee.value,
        batch=token.batch_id if token is not None else None,
        query_id=token.query_id if token is not None else None,
        ranges=token.describe_ranges() if token is not None else None,
        torn=one.torn,
        error=one.error,
        agrees=None if unknown else not any(finding.blocks for finding in found),
        says=_says(snapshot, one, [finding.code for finding in found]),
    )


def _says(snapshot: Snapshot, one: Standing, codes: list[str]) -> str:
    token = one.token
    if one.error is not None:
        return f"cannot be read: {one.error}"
    if one.guarantee.name == "AT_LEAST_ONCE":
        return "stores no token"
    if token is None:
        return "no batch yet" if one.torn is None else f"batch 0 is incomplete: {one.torn}"
    text = f"batch {token.batch_id}"
    if token.query_id != snapshot.files.query_id:
        text += f" of another query, {token.query_id[:8]}"
    if one.torn is not None:
        text += f", and the next is incomplete: {one.torn}"
    if one.sparse and not codes:
        return f"{text}, the last one with rows for it"
    return ", ".join([text, *codes])


def _formats(snapshot: Snapshot) -> dict[str, str]:
    files, found = snapshot.files, {}
    if files.begun is not None:
        found["offsets"] = files.offsets[files.begun].version
    if files.committed is not None:
        found["commits"] = files.commits[files.committed].version
    if files.sources:
        found["sources"] = next(iter(files.sources.values())).version
    conf = files.offsets[files.begun].facts.get("conf", {}) if files.begun is not None else {}
    provider = conf.get("spark.sql.streaming.stateStore.providerClass", "").rpartition(".")[2]
    if snapshot.state.kept and provider:
        version = conf.get("spark.sql.streaming.stateStore.rocksdb.formatVersion")
        name = provider.removesuffix("StateStoreProvider")
        found["state"] = f"{name} {version}" if name == "RocksDB" and version else name
    return {name: version for name, version in found.items() if version}


def _time(milliseconds: object) -> str | None:
    """Spark's watermark before there is one is the beginning of 1970."""
    if not isinstance(milliseconds, int) or milliseconds <= 0:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat().replace("+00:00", "Z")
