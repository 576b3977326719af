"""The columns that a pipeline names, held against those that its decoders give.

A file with a `schema:` is checked when it is loaded. Where a registry gives the columns, it is checked here, with the
same words and places.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock import config as cfg
from penstock.config.arrow_types import columns_of
from penstock.config.problems import Path
from penstock.config.stages import follow
from penstock.model import COORDINATES


def refuse_missing_columns(config: cfg.PipelineConfig, flow: cfg.Flow, decoded: pa.Schema) -> None:
    """Raise `InvalidDefinition` with everything that the steps of a flow name and that is not there."""
    problems: list[cfg.Problem] = []

    def report(path: Path, message: str, **about: Any) -> None:
        problems.append(config.positions.problem(path, message, **about))

    follow(columns_of(pa.schema([field for field in decoded if field.name != COORDINATES])), flow, report)
    if problems:
        raise cfg.InvalidDefinition(problems)
