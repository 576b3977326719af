"""What the state in a checkpoint depends on, stored at the first run and compared before every later one.

Spark detects such a change late, with a stack trace, or not at all: a window of another length continues with the old
rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.assembly.build import Flow, Pipeline, joined_schema
from penstock.assembly.transforming import step_output
from penstock.checkpoint import SparkCheckpoint
from penstock.config.arrow_types import arrow_to_ddl
from penstock.contracts import StatefulTransform
from penstock.errors import MissingError
from penstock.model import COORDINATES
from penstock.transforms import Join

STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # With it a restart of a query with state can fail in Spark 4.1: SPARK-56461.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Default Spark settings for a stateful query."""


def state_identity(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What the state of a pipeline depends on, step by step; empty if it is stateless."""
    return [one for flow in pipeline.flows for one in _identities(flow)]


def _identities(flow: Flow) -> Iterator[dict[str, Any]]:
    schema: pa.Schema | None = flow.decoder.schema if not flow.sides else None
    for step in flow.transforms:
        after = joined_schema(flow) if isinstance(step, Join) else None
        if schema is not None:
            after = step_output(schema, step)
        if isinstance(step, StatefulTransform):
            yield {**step.identity(), "columns": _kept(step, schema, after)}
        schema = after


def _kept(step: Any, entering: pa.Schema | None, leaving: pa.Schema | None) -> dict[str, str] | None:
    """The columns that are in the state, with their types; None where only Spark knows them."""
    keys = getattr(step, "keys", None)
    schema = entering if keys is not None else leaving
    if schema is None:
        return None
    wanted = {key.lower() for key in keys} if keys is not None else {name.lower() for name in schema.names}
    return {f.name: arrow_to_ddl(f.type) for f in schema if f.name.lower() in wanted and f.name != COORDINATES}


def check_state(pipeline: Pipeline, checkpoint: SparkCheckpoint) -> None:
    """Raise if the state in the checkpoint does not match the steps of the file."""
    if checkpoint.last_begun() is None:
        return
    noted, now = checkpoint.state_noted(), state_identity(pipeline)
    before = json.loads(noted) if noted is not None else []
    if before == json.loads(json.dumps(now)):
        return
    raise MissingError(
        "STATE_CHANGED",
        f"checkpoint {checkpoint.path} has the state of other steps than the file",
        context={"in the checkpoint": _shown(before), "in the file": _shown(now)},
        hint="revert the change, or start with a new checkpoint (and new tables, if they already have rows): the "
        "state cannot be converted for the new steps",
    )


def note_state(pipeline: Pipeline, checkpoint: SparkCheckpoint) -> None:
    """At a first run: note what the state depends on, in place of what a start noted that came to no batch."""
    identity = state_identity(pipeline)
    if checkpoint.last_begun() is None and (identity or checkpoint.state_noted() is not None):
        checkpoint.note_state(json.dumps(identity))


def _shown(steps: list[dict[str, Any]]) -> str:
    told = (", ".join(f"{kind} {json.dumps(about)}" for kind, about in step.items()) for step in steps)
    return "; ".join(told) or "no state"
