"""Copies of a checkpoint: where they go, which there are, and one more."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.assembly.reaching import checkpoint_of, storage_of
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import backups_of, belongs, files_of, make_backup
from penstock.checkpoint.manifest import Backup, Progress, list_backups
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.storage import Storage


@dataclass(frozen=True)
class BackupPlan:
    """What a backup would copy, and which older ones would go."""

    pipeline: str
    checkpoint: str
    place: str
    batch: int | None
    """The newest committed batch; none where there is nothing to copy yet."""
    files: int
    keep: int | None
    removes: tuple[str, ...]


def backup_place(config: PipelineConfig, to: str | None = None) -> str:
    """Where the copies of a pipeline's checkpoint go: as asked, as the file says, or beside the checkpoint."""
    written = config.checkpoint_backup.to if config.checkpoint_backup is not None else None
    return to or written or backups_of(config.checkpoint)


def backups_there(config: PipelineConfig, to: str | None = None) -> list[Backup]:
    """The whole copies of this pipeline's checkpoint, newest first."""
    there = list_backups(backup_place(config, to), storage_of(config))
    found = [one for one in there if one.checkpoint == config.checkpoint]
    return found[::-1]


def plan_backup(config: PipelineConfig, to: str | None = None, keep: int | None = None) -> BackupPlan:
    """Look at what a backup would do now."""
    checkpoint = checkpoint_of(config)
    batch, there = checkpoint.last_committed(), files_of(checkpoint.path, checkpoint.storage)
    names = [name for name in there if batch is not None and belongs(name, batch)]
    older = [one.path for one in backups_there(config, to) if one.kind == "backup"]
    return BackupPlan(
        pipeline=config.name,
        checkpoint=config.checkpoint,
        place=backup_place(config, to),
        batch=batch,
        files=len(names),
        keep=keep,
        removes=tuple(older[keep - 1 :]) if keep is not None else (),
    )


def apply_backup(
    plan: BackupPlan, progress: Progress = lambda done, total: None, storage: Storage = Storage()
) -> Backup:
    """Make the copy; the checkpoint may be in use."""
    return make_backup(SparkCheckpoint(plan.checkpoint, storage), plan.place, plan.pipeline, plan.keep, progress)


def newest_backup(config: PipelineConfig) -> Backup:
    """The newest whole backup; what a restore put aside is not one."""
    found = next((one for one in backups_there(config) if one.kind == "backup"), None)
    if found is None:
        raise MissingError(
            "BACKUP_MISSING",
            f"there is no backup of checkpoint {config.checkpoint}",
            context={"looked in": backup_place(config)},
            hint="name one with --from; to have some: penstock checkpoint backup FILE, or `checkpoint_backup:` in it",
        )
    return found
