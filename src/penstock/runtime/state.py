"""What a checkpoint's state depends on, noted at its first run and compared before every other.

Spark finds such a change late, with a stack, or not at all: a window of another length goes on with the old one's rows.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.checkpoint import SparkCheckpoint
from penstock.contracts import StatefulTransform
from penstock.errors import MissingError
from penstock.runtime.build import Pipeline

STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # With it a restart of a query with state can fail in Spark 4.1: SPARK-56461.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Spark's settings for a query with state, where the file has none of its own."""


def state_identity(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What the state of a pipeline depends on, step by step; empty where it keeps none."""
    return [
        step.identity()
        for flow in pipeline.flows
        for step in (*(own for side in flow.sides for own in side.transforms), *flow.transforms)
        if isinstance(step, StatefulTransform)
    ]


def check_state(pipeline: Pipeline, checkpoint: SparkCheckpoint) -> None:
    """Raise where the checkpoint's state is not what the steps of the file would keep."""
    if checkpoint.last_begun() is None:
        return
    noted, now = checkpoint.state_noted(), state_identity(pipeline)
    before = json.loads(noted) if noted is not None else []
    if before == json.loads(json.dumps(now)):
        return
    raise MissingError(
        "STATE_CHANGED",
        f"checkpoint {checkpoint.path} holds the state of other steps than the file has now",
        context={"in the checkpoint": _shown(before), "in the file": _shown(now)},
        hint="take the change back, or start with a new checkpoint (and new tables, where they hold rows already): "
        "what is in the state cannot become what the new steps would have kept",
    )


def note_state(pipeline: Pipeline, checkpoint: SparkCheckpoint) -> None:
    """At a first run: note what the state depends on, in place of what a start noted that came to no batch."""
    identity = state_identity(pipeline)
    if checkpoint.last_begun() is None and (identity or checkpoint.state_noted() is not None):
        checkpoint.note_state(json.dumps(identity))


def _shown(steps: list[dict[str, Any]]) -> str:
    return "; ".join(f"{kind} {json.dumps(about)}" for step in steps for kind, about in step.items()) or "no state"
