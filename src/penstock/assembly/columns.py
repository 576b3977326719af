"""The columns that a pipeline names, held against those that its decoders give.

A file with a `schema:` is checked when it is loaded. Where a registry gives the columns, it is checked here, with the
same words and places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock import config as cfg
from penstock.config.arrow_types import columns_of
from penstock.config.flow_checks import follow
from penstock.config.problems import Path
from penstock.contracts import Transform
from penstock.model import COORDINATES
from penstock.transforms.streaming import Streaming


def refuse_missing_columns(config: cfg.PipelineConfig, flow: cfg.Flow, decoded: pa.Schema) -> None:
    """Raise `InvalidDefinition` with everything that the steps of a flow name and that is not there."""
    problems: list[cfg.Problem] = []

    def report(path: Path, message: str, **about: Any) -> None:
        problems.append(config.positions.problem(path, message, **about))

    columns = columns_of(pa.schema([field for field in decoded if field.name != COORDINATES]))
    follow({flow.decode_path: columns}, flow, report)
    if problems:
        raise cfg.InvalidDefinition(problems)


def step_output(schema: pa.Schema, step: Transform) -> pa.Schema | None:
    """The columns that leave a step, or None where only Spark can say."""
    if step.no_arrow_form(schema) is None:
        return step.output(schema)
    return step.known_output(schema) if isinstance(step, Streaming) else None


def steps_output(schema: pa.Schema, steps: Sequence[Transform]) -> pa.Schema | None:
    """The columns that leave some steps, or None where only Spark can say."""
    found: pa.Schema | None = schema
    for step in steps:
        found = step_output(found, step) if found is not None else None
    return found
