"""Is a checkpoint sound, and do the brokers and the sinks agree with it? Every finding, with the way out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.checkpoint.findings import AFRESH, AFRESH_STATE, REPAIR, RESTORE, Finding, from_error
from penstock.checkpoint.log_file import TOPICS_NOTE
from penstock.config import PipelineConfig
from penstock.ops.checkpoint.backup import backups_there
from penstock.ops.checkpoint.repair import RepairPlan, plan_of
from penstock.ops.snapshot import Snapshot, look
from penstock.preflight.recreated import recreated_topics
from penstock.preflight.source_agreement import log_findings, partition_findings, topic_findings


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
