"""Taking over from a Structured Streaming job that Penstock did not write: its offsets become a new checkpoint's start.

The old checkpoint is only read. Its source must match the pipeline's, partition for partition, and its last batch must
be committed, unless the user chooses whether to repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from penstock.assembly.build import build
from penstock.assembly.reaching import checkpoint_of, storage_of
from penstock.checkpoint import Offsets, SparkCheckpoint, checkpoint_lock
from penstock.config import PipelineConfig
from penstock.errors import MissingError, PenstockError, TerminalError
from penstock.kafka import Cluster, LogBounds
from penstock.model import TopicPartition
from penstock.ops.checkpoint.fork import by_source, refuse_outside, starts_json, write_fresh
from penstock.preflight.checks import check_brokers

OpenBatch = Literal["again", "skip"]
_BY_KEY = {"reservoirId": "a Delta table", "logOffset": "files", "rampUpTimeSeconds": "rate", "shardId": "Kinesis"}


@dataclass(frozen=True)
class AdoptPlan:
    """What would be taken over."""

    config: PipelineConfig
    source: str
    """The checkpoint of the other job."""
    after: int | None
    """Its last batch that counts as done; None if it is taken over before its first."""
    query_id: str
    starts: tuple[Offsets, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.config.name,
            "from": self.source,
            "checkpoint": self.config.checkpoint,
            "after_batch": self.after,
            "query_id": self.query_id,
            "starts": starts_json(self.starts),
            "notes": list(self.notes),
        }


def plan_adopt(config: PipelineConfig, source: str, open_batch: OpenBatch | None = None) -> AdoptPlan:
    """Read the other job's checkpoint and compare it with the pipeline and the log; nothing is written."""
    _refuse_used(config)
    pipeline, old = build(config), SparkCheckpoint(source, storage_of(config))
    after = _last_batch(old, open_batch)
    starts = _kafka_offsets(old, after)
    bounds = check_brokers(Cluster(pipeline.settings), pipeline)
    new = _refuse_other_source(starts, bounds, pipeline.subscription.describe())
    refuse_outside(starts, bounds, f"batch {after} ended at" if after is not None else "the job began at")
    notes = ["the old job must have stopped: Penstock cannot see whether it runs"]
    if new:
        notes.append(f"partitions that the old job has not read yet are read from their start: {', '.join(new)}")
    if pipeline.stateful:
        notes.append("stateful steps start with empty state")
    return AdoptPlan(config, source, after, str(uuid4()), tuple(by_source(pipeline, starts)), tuple(notes))


def apply_adopt(plan: AdoptPlan, open_batch: OpenBatch | None = None) -> None:
    """Write the pipeline's own checkpoint; the other job's is read again first."""
    config = plan.config
    with checkpoint_lock(config.checkpoint, storage_of(config)):
        _refuse_used(config)
        old = SparkCheckpoint(plan.source, storage_of(config))
        now = _kafka_offsets(old, _last_batch(old, open_batch))
        if now != {at: offset for one in plan.starts for at, offset in one.items()}:
            raise TerminalError(
                "ADOPT_OVERTAKEN",
                f"checkpoint {plan.source} changed while it was read: its job still runs",
                hint="stop that job, then adopt again",
            )
        write_fresh(checkpoint_of(config), plan.query_id, plan.starts, {})


def _refuse_used(config: PipelineConfig) -> None:
    own = checkpoint_of(config)
    used = own.sizes()
    if used:
        raise MissingError(
            "CHECKPOINT_OCCUPIED",
            f"the pipeline's own checkpoint {config.checkpoint} is not fresh",
            context={"last batch begun": own.last_begun(), "files": len(used)},
            hint="point `checkpoint:` at an empty or new folder",
        )


def _last_batch(old: SparkCheckpoint, open_batch: OpenBatch | None) -> int | None:
    begun, done = old.last_begun(), old.last_committed()
    if begun is None:
        raise MissingError(
            "ADOPT_NOTHING_THERE",
            f"{old.path} is not the checkpoint of a job that has started a batch",
            context={"query": old.query_id() or "no metadata file", "last batch begun": "none"},
            hint="use the checkpointLocation of the job",
        )
    if any(name.startswith("state/") for name in old.sizes()):
        raise MissingError(
            "ADOPT_HAS_STATE",
            f"the job of {old.path} keeps state, which cannot be taken over",
            context={"last batch committed": done},
            hint="let it finish, or start with empty state at chosen offsets: penstock checkpoint fork",
        )
    if done is not None and done >= begun:
        return begun
    if open_batch is None:
        raise MissingError(
            "ADOPT_BATCH_OPEN",
            f"the last batch of {old.path} is not committed: it is unknown whether its sink has it",
            context={"last batch begun": begun, "last batch committed": done if done is not None else "none"},
            hint="it is best to let the old job finish it. Otherwise check its sink:\n"
            "  the rows are missing:  --open-batch again   (starts before it)\n"
            "  the rows are there:    --open-batch skip    (starts after it)",
        )
    return begun if open_batch == "skip" else (begun - 1 if begun > 0 else None)


def _kafka_offsets(old: SparkCheckpoint, after: int | None) -> Offsets:
    """The job's offsets, read only from what is certainly Kafka's."""
    name = f"offsets/{after}" if after is not None else "sources/0/0"
    text = old.text(name) or ""
    lines = text.splitlines()[2 if after is not None else 1 :]
    kinds = [_source_named(line) for line in lines]
    if len(lines) != 1 or kinds != ["Kafka"]:
        raise MissingError(
            "ADOPT_OTHER_SOURCE" if len(lines) == 1 else "ADOPT_SEVERAL_SOURCES",
            f"the job of {old.path} does not read exactly one Kafka source",
            context={
                "its sources": ", ".join(kinds) or f"none: {name} cannot be read",
                "can be adopted": "one, of Kafka",
            },
            hint="create a pipeline for each source, with `start:` at the offsets of the job",
        )
    found = old.ends(after) if after is not None else old.initial()
    assert found is not None, "its file was read above"
    return found


def _source_named(line: str) -> str:
    """What kind of source a line of an offsets file is of, going by its shape."""
    try:
        body = json.loads(line)
    except ValueError:
        return "one that has given nothing yet" if line == "-" else "an unknown one"
    if isinstance(body, dict) and body and all(_is_partitions(part) for part in body.values()):
        return "Kafka"
    keys = body.keys() if isinstance(body, dict) else ()
    return next((kind for key, kind in _BY_KEY.items() if key in keys), "an unknown one")


def _is_partitions(body: Any) -> bool:
    return isinstance(body, dict) and all(p.isdigit() and isinstance(offset, int) for p, offset in body.items())


def _refuse_other_source(starts: Offsets, bounds: Mapping[TopicPartition, LogBounds], pipeline: str) -> list[str]:
    """Raise if the two read different partitions; otherwise return the partitions that are newer than the job's last
    batch."""
    theirs, ours = {at.topic for at in starts}, {at.topic for at in bounds}
    gone = sorted(starts.keys() - bounds.keys())
    new = sorted(bounds.keys() - starts.keys())
    # A topic grows at its end: a partition below one that the job read is one that it left out.
    left_out = [at for at in new if at.topic in theirs and any(p.topic == at.topic and p > at for p in starts)]
    if theirs == ours and not gone and not left_out:
        return [str(at) for at in new]
    raise _other(theirs, ours, pipeline, [*gone, *left_out])


def _other(theirs: set[str], ours: set[str], pipeline: str, partitions: list[TopicPartition]) -> PenstockError:
    context = {"the old job reads": ", ".join(sorted(theirs)), "the pipeline reads": pipeline}
    if theirs == ours:
        context["only one of them reads"] = ", ".join(map(str, partitions[:8]))
    return MissingError(
        "ADOPT_OTHER_TOPICS",
        "the old job and the pipeline do not read the same partitions",
        context=context,
        hint="set source.topics (or assign) to those of the job; other topics would be read from their start",
    )
