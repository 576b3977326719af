"""What a running pipeline does for itself between batches: copies of its checkpoint, care of its tables."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from penstock.config.fields import Count, Duration, Location, Section, wrong

_EVERY = re.compile(r"\s*every\s+(.+)", re.IGNORECASE)


class CheckpointBackupConfig(Section):
    """A copy of the checkpoint on a schedule, while the pipeline runs."""

    every: Duration = Field(description="How often a copy is made.")
    keep: Count = Field(default=10, description="How many copies are kept; the oldest go.")
    to: Location | None = Field(
        default=None, description="Where the copies go. Left out, the folder `<checkpoint>-backups`."
    )


class MaintenanceConfig(Section):
    """Compaction and clean-up of the pipeline's own tables, between batches of the running pipeline."""

    every: Duration = Field(description="How often the tables are looked after.")
    within: Duration = Field(
        default=timedelta(minutes=1), description="The time after which the next batch waits no longer for it."
    )
    keep: Duration = Field(
        default=timedelta(days=7),
        description="How long files that no version of a table names any more, and old versions, stay for readers.",
    )


def _spelled_out(value: Any) -> Any:
    """`every 6 hours` is short for `{every: 6 hours}`."""
    if not isinstance(value, str):
        return value
    found = _EVERY.fullmatch(value)
    if found is None:
        raise wrong("expected `every` and a duration, such as every 6 hours, or the keys every, keep and to")
    return {"every": found[1]}


CheckpointBackup = Annotated[CheckpointBackupConfig, BeforeValidator(_spelled_out)]
