"""Findings on a checkpoint, and the repair of a damaged one if that is provably safe.

Verification lists every finding, with its remedy. What a repair must not touch is left unchanged, with the reason. The
old files are copied first. A note stays in the checkpoint from the first change to the last: a run refuses to start
until then, and an interrupted repair can be restarted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock.assembly.reaching import backup_place_of, checkpoint_of
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock, to_spark_json
from penstock.checkpoint.backup import Progress, save_aside
from penstock.checkpoint.findings import AFRESH, AFRESH_STATE, REPAIR, RESTORE, Finding, from_error
from penstock.checkpoint.logs import checksum_name, describe_batches
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.ops.checkpoint.backup import backups_there
from penstock.ops.checkpoint.repair_rules import Change, NotRepaired, RepairRules
from penstock.ops.snapshot import Snapshot, take_snapshot
from penstock.preflight.loss import log_findings, partition_findings
from penstock.preflight.recreated import recreated_topics, topic_findings


@dataclass(frozen=True)
class RepairPlan:
    """What a repair would change, or has changed."""

    config: PipelineConfig
    changes: tuple[Change, ...]
    refused: tuple[NotRepaired, ...]
    findings: tuple[Finding, ...]
    """Findings on files and sinks, before any change."""
    live: str | None = None
    """Who runs on the checkpoint now; it is not repaired then."""
    backup: str | None = None
    """Where the old files are kept; known when done."""
    left: tuple[Finding, ...] = ()
    """What still blocks a run afterwards."""

    @property
    def done(self) -> bool:
        """Whether the changes were made."""
        return self.backup is not None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.config.name,
            "checkpoint": self.config.checkpoint,
            "changes": [
                {"act": one.act, "file": one.name, "why": one.why}
                | ({"offsets": to_spark_json(one.ends)} if one.ends else {})
                for one in self.changes
            ],
            "refused": [{"code": one.code, "why": one.why} for one in self.refused],
            "done": self.done,
            "backup": self.backup,
            "left": [{"code": one.code, "summary": one.summary} for one in self.left],
        }


def plan_repair(snapshot: Snapshot) -> RepairPlan:
    """What could be repaired, by the files and the sinks; the brokers need not be asked."""
    steps = RepairRules(snapshot.files, snapshot.state, snapshot.standings).steps()
    return RepairPlan(
        snapshot.config,
        tuple(step for step in steps if isinstance(step, Change)),
        tuple(step for step in steps if isinstance(step, NotRepaired)),
        tuple(own_findings(snapshot)),
        snapshot.live,
    )


def apply_repair(plan: RepairPlan, progress: Progress = lambda done, total: None) -> RepairPlan:
    """Copy what is there, make the changes, and look again. NotRepaired while a run holds the checkpoint."""
    config, checkpoint = plan.config, checkpoint_of(plan.config)
    with checkpoint_lock(checkpoint.path, checkpoint.storage):
        now = plan_repair(take_snapshot(config, brokers=None))
        if now.changes != plan.changes:
            raise MissingError(
                "CHECKPOINT_MOVED",
                f"checkpoint {config.checkpoint} has changed since the repair was planned",
                hint="nothing was changed; plan it again: penstock checkpoint repair FILE --dry-run",
            )
        if not now.changes:
            return plan
        saved = save_aside(checkpoint, backup_place_of(config), config.name, progress)
        assert saved is not None, "a checkpoint that has something to change has files"
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        with checkpoint.restoring(f"repair at {begun}; the old files are kept in {saved.path}"):
            for change in now.changes:
                _make(checkpoint, change)
        left = tuple(one for one in own_findings(take_snapshot(config, brokers=None)) if one.blocks)
    return RepairPlan(config, now.changes, now.refused, now.findings, None, saved.path, left)


def own_findings(snapshot: Snapshot) -> list[Finding]:
    """Problems of the files, and contradictions with the sinks."""
    former = snapshot.former if snapshot.files.begun is not None else ()  # of a fresh checkpoint: `Snapshot.foreign`
    return [*snapshot.file_findings, *snapshot.sink_findings(snapshot.standings, former)]


def _make(checkpoint: SparkCheckpoint, change: Change) -> None:
    match change.act:
        case "remove":
            checkpoint.remove(change.name)
        case "remove checksum":
            checkpoint.remove(checksum_name(change.name))
        case "write offsets":
            checkpoint.put_offsets(change.batch, change.ends, change.like)
        case "write commit":
            checkpoint.put_commit(change.batch)
        case "write metadata":
            checkpoint.put_metadata(change.query_id or str(uuid4()))
        case "write start":
            checkpoint.put_initial([change.ends])


@dataclass(frozen=True)
class Verification:
    """Everything that `penstock checkpoint verify` prints."""

    pipeline: str
    checkpoint: str
    state: str
    """The progress of the checkpoint, for people."""
    findings: tuple[Finding, ...]

    @property
    def blocks(self) -> bool:
        """Whether a run must not start."""
        return any(one.blocks for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "blocks": self.blocks}


def verify_checkpoint(snapshot: Snapshot) -> Verification:
    """Check files, state, sinks and brokers; what cannot be reached is a finding, and hides no other."""
    config, repair = snapshot.config, plan_repair(snapshot)
    backups = sum(1 for one in backups_there(config) if one.kind == "backup")
    findings = [_with_way(one, repair, backups) for one in repair.findings]
    findings += snapshot.foreign
    findings += [_with_way(one, repair, backups) for one in broker_findings(snapshot)]
    return Verification(
        config.name, config.checkpoint, _describe(snapshot), tuple(sorted(findings, key=lambda f: not f.blocks))
    )


def _with_way(finding: Finding, repair: RepairPlan, backups: int) -> Finding:
    """Whether a repair or a backup can help is known here: only hints that work are given."""
    lines = finding.way_out.splitlines()
    if REPAIR in lines:
        refused = [one.why for one in repair.refused if one.code == finding.code]
        if not refused:
            return replace(finding, way_out="penstock checkpoint repair FILE")
        lines[lines.index(REPAIR)] = f"a repair is not safe: {refused[0]}"
    no_more = RESTORE if not backups else AFRESH_STATE if AFRESH_STATE in lines else AFRESH
    return replace(finding, way_out="\n".join(line for line in lines if line != no_more))


def broker_findings(snapshot: Snapshot) -> list[Finding]:
    """Contradictions between the brokers and the checkpoint."""
    brokers, loss = snapshot.brokers, snapshot.config.source.on_data_loss
    if brokers.error is not None:
        means = "Offsets and topics could not be checked against the brokers. Everything else was checked."
        return [from_error(brokers.error, means=means)]
    assert brokers.bounds is not None
    begun, batch = snapshot.files.begun, snapshot.open_batch
    found: list[Finding] = []
    noted = dict(snapshot.files.topic_ids)
    if begun is not None:
        found += topic_findings(noted, dict(brokers.topic_ids), loss, stateful=snapshot.state.kept)
    open_ends = snapshot.files.ends(batch)
    # With state every open batch is read again: the sinks have its rows, and the state has not.
    if batch is None or (snapshot.committed_by_all and open_ends is not None and not snapshot.state.kept):
        position, open_ends = snapshot.files.ends(begun), None
    else:
        position = snapshot.starts(batch)
    if position is not None and not found:
        found += log_findings(position, brokers.bounds, loss, open_ends=open_ends)
    recreated = recreated_topics(noted, dict(brokers.topic_ids))
    return found + partition_findings(
        snapshot.config.checkpoint, snapshot.files, snapshot.standings, brokers.bounds, recreated
    )


def _describe(snapshot: Snapshot) -> str:
    files = snapshot.files
    if files.begun is None and files.committed is None:
        return "fresh: no batch has started"
    text = describe_batches(files.begun, files.committed)
    if files.newest != files.begun:
        text = f"{text}; a run repeats the batches to {files.newest}, for the state"
    return f"{text}; in use by {snapshot.live}" if snapshot.live is not None else text
