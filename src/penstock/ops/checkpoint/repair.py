"""What is wrong with a checkpoint, and a damaged one put right, as far as that is provably safe.

Verifying names every finding, with the way out of it. What a repair must not touch is left as it is, and why is said.
What is there is copied first. A note stands in the checkpoint from the first change to the last: a run refuses while
it does, and a repair that was broken off is begun again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock.assembly.reaching import storage_of
from penstock.checkpoint import checkpoint_lock, to_spark_json
from penstock.checkpoint.backup import save_aside
from penstock.checkpoint.findings import AFRESH, AFRESH_STATE, REPAIR, RESTORE, Finding, findings_in, from_error
from penstock.checkpoint.logs import TOPICS_NOTE
from penstock.checkpoint.manifest import Progress
from penstock.checkpoint.writing import (
    put_commit,
    put_initial,
    put_metadata,
    put_offsets,
    remove_file,
    restoring,
)
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.ops.checkpoint.backup import backup_place, backups_there
from penstock.ops.checkpoint.repair_rules import Change, Refused, RepairRules
from penstock.ops.snapshot import Snapshot, look
from penstock.preflight.agreement import compare_sinks
from penstock.preflight.loss import log_findings, partition_findings
from penstock.preflight.recreated import recreated_topics, topic_findings
from penstock.storage import Storage


@dataclass(frozen=True)
class RepairPlan:
    """What a repair would change, or has changed."""

    config: PipelineConfig
    changes: tuple[Change, ...]
    refused: tuple[Refused, ...]
    findings: tuple[Finding, ...]
    """Of the files and the sinks, before anything is changed."""
    live: str | None = None
    """Who runs on the checkpoint now, which a repair does not touch then."""
    backup: str | None = None
    """Where what was there is kept; known when it is done."""
    left: tuple[Finding, ...] = ()
    """What still blocks a run when it is done."""

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


def plan_repair(config: PipelineConfig) -> RepairPlan:
    """Look at the files and the sinks, and say what could be put right."""
    return plan_of(look(config, brokers=None))


def plan_of(seen: Snapshot) -> RepairPlan:
    """The same for what was looked at already."""
    steps = RepairRules(seen.files, seen.state, seen.standings).steps()
    return RepairPlan(
        seen.config,
        tuple(step for step in steps if isinstance(step, Change)),
        tuple(step for step in steps if isinstance(step, Refused)),
        tuple(own_findings(seen)),
        seen.live,
    )


def apply_repair(plan: RepairPlan, progress: Progress = lambda done, total: None) -> RepairPlan:
    """Copy what is there, make the changes, and look again. Refused while a run holds the checkpoint."""
    config, storage = plan.config, storage_of(plan.config)
    with checkpoint_lock(config.checkpoint, storage):
        now = plan_repair(config)
        if now.changes != plan.changes:
            raise MissingError(
                "CHECKPOINT_MOVED",
                f"checkpoint {config.checkpoint} is not what it was when the repair was planned",
                hint="nothing was changed; plan it again: penstock checkpoint repair FILE --dry-run",
            )
        if not now.changes:
            return plan
        saved = save_aside(config.checkpoint, backup_place(config), config.name, progress, storage)
        assert saved is not None, "a checkpoint that has something to change has files"
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        with restoring(config.checkpoint, f"repair at {begun}; what was there is kept in {saved.path}", storage):
            for change in now.changes:
                _make(config.checkpoint, change, storage)
        left = tuple(one for one in own_findings(look(config, brokers=None)) if one.blocks)
    return RepairPlan(config, now.changes, now.refused, now.findings, None, saved.path, left)


def own_findings(seen: Snapshot) -> list[Finding]:
    """What is wrong with the files, and where the sinks contradict them."""
    path, noted = seen.config.checkpoint, seen.checkpoint.sinks_noted()
    former = seen.former if seen.files.begun is not None else ()  # of a fresh checkpoint: `Snapshot.foreign`
    return [
        *findings_in(path, seen.files, seen.state, live=seen.live is not None),
        *compare_sinks(path, seen.files, seen.standings, seen.done_before, noted, former),
    ]


def _make(checkpoint: str, change: Change, storage: Storage) -> None:
    match change.act:
        case "remove":
            remove_file(checkpoint, change.name, storage)
        case "remove checksum":
            folder, slash, own = change.name.rpartition("/")
            remove_file(checkpoint, f"{folder}{slash}.{own}.crc", storage)
        case "write offsets":
            put_offsets(checkpoint, change.batch, change.ends, change.like, storage)
        case "write commit":
            put_commit(checkpoint, change.batch, storage=storage)
        case "write metadata":
            put_metadata(checkpoint, change.query_id or str(uuid4()), storage)
        case "write start":
            put_initial(checkpoint, [change.ends], storage)


@dataclass(frozen=True)
class Verification:
    """Everything that `penstock checkpoint verify` prints."""

    pipeline: str
    checkpoint: str
    state: str
    """What was looked at, in words."""
    findings: tuple[Finding, ...]

    @property
    def blocks(self) -> bool:
        """Whether a run must not start."""
        return any(one.blocks for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "blocks": self.blocks}


def verify_checkpoint(config: PipelineConfig) -> Verification:
    """Look at files, state, sinks and brokers; what cannot be reached is a finding, and hides no other."""
    return verify(look(config))


def verify(seen: Snapshot) -> Verification:
    """The same, from a snapshot."""
    config, repair = seen.config, plan_of(seen)
    backups = sum(1 for one in backups_there(config) if one.kind == "backup")
    findings = [_with_way(one, repair, backups) for one in repair.findings]
    findings += seen.foreign
    findings += [_with_way(one, repair, backups) for one in broker_findings(seen)]
    return Verification(
        config.name, config.checkpoint, _told(seen), tuple(sorted(findings, key=lambda f: not f.blocks))
    )


def _with_way(finding: Finding, repair: RepairPlan, backups: int) -> Finding:
    """Whether a repair is the way out, and whether there is a backup, is known here: only what works is said."""
    lines = finding.way_out.splitlines()
    if REPAIR in lines:
        refused = [one.why for one in repair.refused if one.code == finding.code]
        if not refused:
            return replace(finding, way_out="penstock checkpoint repair FILE")
        lines[lines.index(REPAIR)] = f"a repair is not safe: {refused[0]}"
    no_more = RESTORE if not backups else AFRESH_STATE if AFRESH_STATE in lines else AFRESH
    return replace(finding, way_out="\n".join(line for line in lines if line != no_more))


def broker_findings(seen: Snapshot) -> list[Finding]:
    """Where the brokers contradict the checkpoint."""
    brokers, loss = seen.brokers, seen.config.source.on_data_loss
    if brokers.error is not None:
        means = "Offsets and topics could not be held against the brokers. The rest was looked at."
        return [from_error(brokers.error, means=means)]
    assert brokers.bounds is not None
    begun, batch = seen.files.begun, seen.open_batch
    found: list[Finding] = []
    note = seen.files.notes.get(TOPICS_NOTE)
    noted = seen.checkpoint.topic_ids() if note is not None and note.problem is None else {}
    if begun is not None:
        found += topic_findings(noted, dict(brokers.topic_ids), loss, stateful=seen.state.kept)
    open_ends = seen.ends(batch)
    # With state every open batch is read again: the sinks have its rows, and the state has not.
    if batch is None or (seen.held_by_all and open_ends is not None and not seen.state.kept):
        position, open_ends = seen.ends(begun), None
    else:
        position = seen.starts(batch)
    if position is not None and not found:
        found += log_findings(position, brokers.bounds, loss, open_ends=open_ends)
    recreated = recreated_topics(noted, dict(brokers.topic_ids))
    return found + partition_findings(seen.config.checkpoint, seen.files, seen.standings, brokers.bounds, recreated)


def _told(seen: Snapshot) -> str:
    begun, done = seen.files.begun, seen.files.committed
    if begun is None and done is None:
        return "fresh: no batch has begun"
    told = f"batch {done} committed" if done is not None else "no batch committed"
    told = told if begun == done else f"{told}, batch {begun if begun is not None else 'none'} begun"
    if seen.files.newest != begun:
        told = f"{told}; a run goes through the batches to {seen.files.newest} again, for the state"
    return f"{told}; in use by {seen.live}" if seen.live is not None else told
