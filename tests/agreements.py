"""The targets' positions against a checkpoint as it is in its folder."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.findings import Finding
from penstock.checkpoint.logs import read_files
from penstock.preflight.agreement import compare_sinks
from penstock.preflight.standings import Standing


def sink_findings(
    checkpoint: SparkCheckpoint, standings: Sequence[Standing], *, committed: int | None = None
) -> list[Finding]:
    """Under a running stream `committed` is the last batch committed before the targets were asked; -1 for none."""
    files = read_files(checkpoint.path, checkpoint.storage)
    done = files.committed if committed is None else committed if committed >= 0 else None
    return compare_sinks(checkpoint.path, files, standings, done, checkpoint.sinks_noted())
