"""What costs more than a look at a file: the lag by the sinks and the brokers, the checkpoint against the tables, the
diagnosis, the quarantine. Each gives its part of the page; nothing is changed, no JVM is started.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.assembly.reaching import checkpoint_of
from penstock.checkpoint.findings import file_findings
from penstock.config import PipelineConfig
from penstock.dashboard.facts import Looked
from penstock.dashboard.recent import in_utc
from penstock.errors import PenstockError

Found = dict[str, Any]


def attempt(look: Callable[[], Found]) -> Looked:
    """Collect one part. A failure is reported in one line; of an unexpected exception only the type, since its text
    may contain anything."""
    try:
        found, problem = look(), None
    except PenstockError as error:
        found, problem = None, f"{error.code} {error.line}"
    except Exception as error:
        found, problem = None, f"UNEXPECTED {type(error).__name__}"
    return Looked(in_utc(datetime.now(UTC)), found, problem)


def look_at_files(config: PipelineConfig) -> Found:
    """Whether the checkpoint's own files would keep a run from starting."""
    blocking = [one for one in file_findings(checkpoint_of(config)) if one.blocks]
    return {"blocking": f"{blocking[0].code} {blocking[0].summary}" if blocking else None}


class LagLook:
    """Looks at the lag again and again: how it grows is told by the look before."""

    def __init__(self) -> None:
        self._before: Any = None

    def __call__(self, config: PipelineConfig) -> Found:
        """The report; `places` and `ages` are for the heat strip."""
        from penstock.ops.lag.lag import find_lag

        same = self._before is not None and self._before.pipeline == config.name
        report = self._before = find_lag(config, before=self._before if same else None)
        return {
            "behind_seconds": report.behind_seconds,
            "growth": report.growth,
            "catch_up_seconds": report.catch_up_seconds,
            "group_note": report.group_note,
            "ages": {(one.topic, one.partition): one.seconds_behind for one in report.partitions},
            "places": [(one.topic, one.partition, one.end - one.lag, one.end) for one in report.partitions],
        }


def look_at_checkpoint(config: PipelineConfig) -> Found:
    """The checkpoint against the tables, and what `checkpoint verify` finds."""
    from penstock.ops.checkpoint.show import show_checkpoint
    from penstock.ops.checkpoint.verify import verify_checkpoint

    view, verified = show_checkpoint(config), verify_checkpoint(config)
    return {
        "committed": view.committed,
        "begun": view.begun,
        "sinks": [
            {"name": one.name, "batch_id": one.batch, "agrees": one.agrees, "note": one.says} for one in view.sinks
        ],
        "findings": [{"code": one.code, "summary": one.summary, "way_out": one.way_out} for one in verified.findings],
    }


def look_for_causes(config: PipelineConfig) -> Found:
    """The diagnosis in words."""
    from penstock.ops.diagnosis import diagnose

    found = diagnose(config)
    causes = [
        {"code": one.code, "summary": one.summary, "evidence": list(one.evidence), "change": one.change}
        for one in found.causes
    ]
    return {"at": in_utc(found.at), "causes": causes, "idle": found.idle, "notes": list(found.notes)}
