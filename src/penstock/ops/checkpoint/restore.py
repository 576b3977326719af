"""Restores a checkpoint from a backup and reconciles it with the sinks: no row lost or duplicated.

The backup is checked before any change, and the old files are saved first. A note stays in the checkpoint from the
first change to the last; a run refuses to start until then, and the restore can be restarted. The query id comes last:
without it there is no checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.assembly.build import build
from penstock.assembly.reaching import backup_place_of, checkpoint_of, storage_of
from penstock.checkpoint import Offsets, SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.backup import (
    Backup,
    CopiedFile,
    Progress,
    belongs,
    check_files,
    copy_files,
    read_backup,
    save_aside,
)
from penstock.checkpoint.logs import RESTORING, describe_batches
from penstock.config import PipelineConfig
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model import BatchToken, Guarantee
from penstock.ops.checkpoint.backup import backups_there, newest_backup
from penstock.preflight.loss import ranges_of_batch
from penstock.preflight.standings import Standing, standings

_SAVED = "the old files are in "


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would write, or has written."""

    config: PipelineConfig
    backup: Backup
    present: str
    """What is in the checkpoint now, for people."""
    reconciled: Reconciled
    saved: str | None = None
    """Where the old files are kept; known when done, or from an interrupted restore."""

    @property
    def checkpoint(self) -> str:
        """The folder that is written."""
        return self.config.checkpoint

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        forward = self.reconciled.forward
        return {
            "pipeline": self.config.name,
            "checkpoint": self.checkpoint,
            "backup": self.backup.facts(),
            "present": self.present,
            "saved": self.saved,
            "forward": json.loads(forward.to_json()) if forward is not None else None,
            "runs_again": forward is not None and not self.reconciled.done,
            "notes": list(self.reconciled.notes),
        }


def plan_restore(
    config: PipelineConfig, source: str | None = None, progress: Progress = lambda done, total: None
) -> RestorePlan:
    """Check the backup, its checksums, the checkpoint and the sinks; raise if a restore cannot be correct."""
    backup = _named(config, source) if source is not None else newest_backup(config)
    check_files(backup, progress, storage_of(config))
    return _planned(config, backup)


def apply_restore(plan: RestorePlan, progress: Progress = lambda done, total: None) -> RestorePlan:
    """Restore, under the checkpoint's lock. The sinks are read again first. Returns the executed plan."""
    config, checkpoint = plan.config, checkpoint_of(plan.config)
    with checkpoint_lock(checkpoint.path, checkpoint.storage):
        plan = _planned(config, plan.backup)
        if plan.saved is None:
            aside = save_aside(checkpoint, backup_place_of(config), config.name)
            plan = replace(plan, saved=aside.path if aside is not None else None)
        with checkpoint.restoring(f"restore of {plan.backup.path}\n{_SAVED}{plan.saved or 'nothing'}"):
            _write(plan, checkpoint, progress)
    return plan


def _named(config: PipelineConfig, source: str) -> Backup:
    """A backup by its path, or by its name among those of the pipeline."""
    return read_backup(source if "/" in source else f"{backup_place_of(config)}/{source}", storage_of(config))


def _planned(config: PipelineConfig, backup: Backup) -> RestorePlan:
    pipeline = build(config)
    copy, present = SparkCheckpoint(backup.path, pipeline.storage), checkpoint_of(config)
    batch, query_id = copy.last_committed(), copy.query_id()
    if backup.pipeline != config.name or batch is None or query_id is None:
        raise TerminalError(
            "BACKUP_UNUSABLE",
            f"backup {backup.path} cannot be used by pipeline {config.name}",
            context={"of pipeline": backup.pipeline, "query": query_id, "last batch committed": batch},
            hint="choose another one: penstock checkpoint backup FILE --list",
        )
    saved = _saved_before(present)
    stateful = pipeline.stateful or any(file.name.startswith("state/") for file in backup.files)
    at = CheckpointPlace(config.name, query_id, batch, copy.ends(batch), stateful)
    found = reconcile(at, standings(pipeline.targets), _later_batches(config, saved, at) if stateful else None)
    return RestorePlan(config, backup, _in_words(present), found, saved)


def _write(plan: RestorePlan, checkpoint: SparkCheckpoint, progress: Progress) -> None:
    backup, storage = plan.backup, checkpoint.storage
    last = SparkCheckpoint(backup.path, storage).last_committed()
    assert last is not None, "planned"
    for name in sorted(checkpoint.sizes(), key=lambda name: name != "metadata"):
        checkpoint.remove(name)
    # An open batch in a plain copy is left out: whether it is run again is for the sinks' tokens to say.
    expected = {file.name: file for file in backup.files if belongs(file.name, last)}
    done = 0

    def check(file: CopiedFile) -> None:
        nonlocal done
        if file != expected[file.name]:
            raise TransientError(
                "BACKUP_CHANGED",
                f"backup {backup.path}: {file.name} changed while it was restored",
                hint="start the restore again",
            )
        done += file.size_bytes
        progress(done, backup.size_bytes)

    identity = {"metadata", ".metadata.crc"}
    copy_files(backup.path, checkpoint.path, [name for name in expected if name not in identity], check, storage)
    _bring_forward(plan, checkpoint, last)
    copy_files(backup.path, checkpoint.path, [".metadata.crc", "metadata"], check, storage)


def _bring_forward(plan: RestorePlan, checkpoint: SparkCheckpoint, last: int) -> None:
    found = plan.reconciled
    before = SparkCheckpoint(plan.saved, checkpoint.storage) if plan.saved is not None else None
    checkpoint.note_again(found.again if len(found.again) > 1 else ())
    token = found.again[0] if found.again else found.forward
    if token is None:
        return
    if before is not None:
        _note_topics(checkpoint, before, token)
    if token.batch_id - 1 != last:
        checkpoint.put_offsets(token.batch_id - 1, token.starts, like=last)
        checkpoint.put_commit(token.batch_id - 1, like=last)
    written = _as_it_was(before, token) if before is not None else None
    if written is not None:
        checkpoint.put(f"offsets/{token.batch_id}", written)
    else:
        checkpoint.put_offsets(token.batch_id, token.ends, like=last)
    if found.done:
        checkpoint.put_commit(token.batch_id, like=last)
    if token.batch_id - 1 != last:
        # The batches in between are not known: without the older files the log has no hole that could raise questions.
        for name in checkpoint.sizes():
            if name.startswith(("offsets/", "commits/")) and belongs(name, last):
                checkpoint.remove(name)


def _note_topics(checkpoint: SparkCheckpoint, before: SparkCheckpoint, token: BatchToken) -> None:
    """Offsets of a later batch belong to the topics that were known then; one may have been re-created since."""
    with suppress(PenstockError):
        if before.query_id() == token.query_id and (ids := before.topic_ids()):
            checkpoint.note_topic_ids(checkpoint.topic_ids() | ids)


def _as_it_was(before: SparkCheckpoint, token: BatchToken) -> str | None:
    """The file of a batch's offsets in what was there before, with its time and watermark, if it is that batch."""
    try:
        if (before.query_id(), before.ends(token.batch_id)) != (token.query_id, token.ends):
            return None
        return before.text(f"offsets/{token.batch_id}")
    except PenstockError:
        return None


def _saved_before(checkpoint: SparkCheckpoint) -> str | None:
    """Where an interrupted restore has saved the old files."""
    try:
        lines = (checkpoint.text(RESTORING) or "").splitlines()
        saved = next((line.removeprefix(_SAVED) for line in lines if line.startswith(_SAVED)), None)
        return read_backup(saved, checkpoint.storage).path if saved is not None else None
    except PenstockError:
        return None


def _later_batches(config: PipelineConfig, saved: str | None, at: CheckpointPlace) -> dict[int, Offsets]:
    """Where the batches after the backup ended, from the replaced checkpoint and newer backups."""
    known: dict[int, Offsets] = {}
    newer = [one.path for one in backups_there(config) if one.query_id == at.query_id]
    for path in (*newer, config.checkpoint, *((saved,) if saved is not None else ())):
        log = SparkCheckpoint(path, storage_of(config))
        with suppress(PenstockError):
            if log.query_id() != at.query_id:
                continue
            known |= {token.batch_id: token.ends for token in log.again()}
            for later in range(at.batch + 1, (log.last_begun() or at.batch) + 1):
                with suppress(PenstockError):
                    known[later] = log.ends(later)
    return known


def _in_words(present: SparkCheckpoint) -> str:
    try:
        begun, done, query_id = present.last_begun(), present.last_committed(), present.query_id()
    except PenstockError as error:
        return f"damaged: {error.line}"
    if begun is None and query_id is None:
        return "nothing"
    query = f"query {query_id[:8]}" if query_id is not None else "no query id"
    return f"{query}, {describe_batches(begun, done)}"


# How the next batch of a checkpoint that goes back becomes the right one, by what the sinks hold. Pure.
#
# A sink calls a batch seen that it holds under the same id. So a checkpoint of batch B, restored while the sinks are
# at N, must not run B+1 with offsets of its own: they would be skipped, and lost. The sinks' tokens say what batch N
# was. The checkpoint is brought forward to it, without the batches between, which Spark does not need; where some sink
# is one batch behind the others, batch N is left open, so that Spark runs it again with exactly those offsets. State
# cannot be brought forward so: it has to be run again, batch by batch.


@dataclass(frozen=True)
class CheckpointPlace:
    """The progress of the checkpoint that is to be put in place."""

    pipeline: str
    query_id: str
    batch: int
    """Its newest batch, which is committed."""
    ends: Offsets
    stateful: bool


@dataclass(frozen=True)
class Reconciled:
    """What must be written so that the checkpoint agrees with the sinks."""

    forward: BatchToken | None = None
    """The batch that the checkpoint is advanced to; None if it already agrees."""
    done: bool = True
    """Whether every sink has that batch; otherwise Spark repeats it."""
    again: tuple[BatchToken, ...] = ()
    """With state: the batches to repeat, one by one, with exactly their offsets. The sinks have most of them."""
    notes: tuple[str, ...] = ()

    @property
    def next_batch(self) -> str:
        """What a run does first, in words."""
        if self.again:
            return f"batches {self.again[0].batch_id} to {self.again[-1].batch_id} are repeated to rebuild the state"
        if self.forward is None:
            return "the sinks and the checkpoint agree: a run continues from there"
        if self.done:
            return f"advanced to batch {self.forward.batch_id}, which every sink has"
        return f"advanced to batch {self.forward.batch_id}, which a run repeats: not every sink has it"


def reconcile(
    at: CheckpointPlace, standings: Sequence[Standing], known: Mapping[int, Offsets] | None = None
) -> Reconciled:
    """What to write so that no row is lost or duplicated; raises if no checkpoint can agree with the sinks.

    `known` has the ends of the batches after `at`, from another copy of the log.
    """
    _refuse_unknown(standings)
    notes = _notes(standings)
    exact = [s for s in standings if s.guarantee is Guarantee.EXACTLY_ONCE]
    targets = {s.sink: s.token for s in exact if s.token is not None and not s.sparse}
    foreign = {name: token for name, token in targets.items() if token.query_id != at.query_id}
    if foreign:
        raise _disagree("SINK_HOLDS_OTHER_RUN", "a sink was continued from another checkpoint", at, foreign, _FRESH)
    # The newest batch may have begun in a torn sink, or in one that has no commit for most batches.
    partial = {s.sink: s.newest for s in exact if s.newest is not None and (s.sparse or s.begun is not None)}
    partial = {name: token for name, token in partial.items() if token.query_id == at.query_id}
    newest = max((token.batch_id for token in (*targets.values(), *partial.values())), default=at.batch)
    behind = {name: token for name, token in targets.items() if token.batch_id < at.batch}
    if behind:
        raise _disagree(
            "TARGET_WENT_BACK", "a sink is behind the backup: rows between would be lost", at, behind, _OLDER
        )
    if any(token.batch_id < newest - 1 for token in targets.values()):
        raise _disagree("SINKS_APART", "the sinks are more than one batch apart", at, targets | partial, _VERIFY)
    for name, token in (*targets.items(), *partial.items()):
        if token.batch_id == at.batch and token.ends != at.ends:
            raise _disagree("SINK_TOKEN_MISMATCH", f"batch {at.batch} ended elsewhere", at, {name: token}, _FRESH)
    if newest <= at.batch:
        return Reconciled(notes=notes)
    forward = _newest(at, newest, [*targets.items(), *partial.items()])
    if at.stateful:
        return Reconciled(forward, False, _again(at, forward, known or {}), notes)
    torn = any(s.torn is not None for s in exact)
    done = not torn and bool(targets) and all(token.batch_id == newest for token in targets.values())
    return Reconciled(forward, done, (), notes)


_FRESH = (
    "nothing was changed. To continue where the table ends, point `checkpoint:` at an empty folder and run\n"
    "  penstock run FILE --resume-from-table"
)
_OLDER = (
    "nothing was changed. Was the table restored too? Restore a backup that is not newer than the table:\n"
    "  penstock checkpoint backup FILE --list, then penstock checkpoint restore FILE --from BACKUP"
)
_VERIFY = "nothing was changed; penstock checkpoint verify FILE shows the state of each"


def _newest(at: CheckpointPlace, batch: int, tokens: Sequence[tuple[str, BatchToken]]) -> BatchToken:
    """The newest batch, on which its holders must agree, and which must follow what the others hold."""
    holders = {name: token for name, token in tokens if token.batch_id == batch}
    first = next(iter(holders.values()))
    if any(token.ranges != first.ranges for token in holders.values()):
        raise _disagree("SINK_TOKEN_MISMATCH", f"the sinks have batch {batch} with other offsets", at, holders, _FRESH)
    before = [(name, token) for name, token in tokens if token.batch_id == batch - 1]
    ends = [token.ends for _, token in before] + ([at.ends] if batch - 1 == at.batch else [])
    # Partitions that are new in the batch begin at 0; where a log moved back, the batch begins there too.
    if any(start not in (held.get(place, 0), 0) for held in ends for place, start in first.starts.items()):
        sides = {**dict(before), **holders}
        raise _disagree("SINK_TOKEN_MISMATCH", f"batch {batch} does not follow batch {batch - 1}", at, sides, _FRESH)
    return first


def _again(at: CheckpointPlace, last: BatchToken, known: Mapping[int, Offsets]) -> tuple[BatchToken, ...]:
    """Every batch from the backup to the last, where their offsets are known."""
    tokens, starts = [], at.ends
    for batch in range(at.batch + 1, last.batch_id):
        if batch not in known:
            raise TerminalError(
                "RESTORE_STATE_BEHIND",
                f"the state in the backup is that of batch {at.batch}, but the offsets of batch {batch} are unknown",
                context={"backup": _place(at), "sinks": f"batch {last.batch_id}, {last.describe_ranges()}"},
                hint="nothing was changed. State cannot be advanced without repeating each batch; use a newer "
                "backup, or start over with a new checkpoint and new tables",
            )
        tokens.append(BatchToken(at.pipeline, at.query_id, batch, ranges_of_batch(starts, known[batch]).ranges))
        starts = known[batch]
    return (*tokens, last)


def _refuse_unknown(standings: Sequence[Standing]) -> None:
    unknown = {s.sink: s.error for s in standings if s.error is not None and s.guarantee is Guarantee.EXACTLY_ONCE}
    if unknown:
        raise MissingError(
            "SINK_UNREACHABLE",
            "the position of a sink cannot be read, and without it the checkpoint must not be set back",
            context=unknown,
            hint="nothing was changed; retry when the sink is reachable",
        )


def _notes(standings: Sequence[Standing]) -> tuple[str, ...]:
    found = []
    for one in standings:
        if one.guarantee is Guarantee.AT_LEAST_ONCE:
            found.append(f"sink {one.sink} stores no token: it may get duplicate rows")
        elif one.newest is None and not one.sparse:
            found.append(f"sink {one.sink} has no batch of this pipeline: it gets rows from here on")
    return tuple(found)


def _place(at: CheckpointPlace) -> str:
    shown = ", ".join(f"{place} {end}" for place, end in sorted(at.ends.items())[:8])
    return f"query {at.query_id[:8]}, batch {at.batch}, up to {shown}"


def _disagree(
    code: str, summary: str, at: CheckpointPlace, tokens: Mapping[str, BatchToken], hint: str
) -> PenstockError:
    sides = {
        f"sink {name}": f"query {token.query_id[:8]}, batch {token.batch_id}, {token.describe_ranges()}"
        for name, token in tokens.items()
    }
    return TerminalError(code, f"restoring: {summary}", context={"backup": _place(at), **sides}, hint=hint)
