"""Backups of a checkpoint: their location, the list, and creating one."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.assembly.reaching import backup_place_of, checkpoint_of, storage_of
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import Backup, Progress, belongs, list_backups, make_backup
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
    """The newest committed batch; None if there is nothing to copy yet."""
    files: int
    keep: int | None
    removes: tuple[str, ...]


def backups_there(config: PipelineConfig, to: str | None = None) -> list[Backup]:
    """The complete copies of this pipeline's checkpoint, newest first."""
    every = list_backups(to or backup_place_of(config), storage_of(config))
    return [one for one in reversed(every) if one.checkpoint == config.checkpoint]


def plan_backup(config: PipelineConfig, to: str | None = None, keep: int | None = None) -> BackupPlan:
    """What a backup would do now."""
    checkpoint = checkpoint_of(config)
    batch = checkpoint.last_committed()
    names = [name for name in checkpoint.sizes() if batch is not None and belongs(name, batch)]
    older = [one.path for one in backups_there(config, to) if one.kind == "backup"]
    return BackupPlan(
        pipeline=config.name,
        checkpoint=config.checkpoint,
        place=to or backup_place_of(config),
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
    """The newest complete backup; what a restore saved is not one."""
    found = next((one for one in backups_there(config) if one.kind == "backup"), None)
    if found is None:
        raise MissingError(
            "BACKUP_MISSING",
            f"there is no backup of checkpoint {config.checkpoint}",
            context={"looked in": backup_place_of(config)},
            hint="choose one with --from; to create one: penstock checkpoint backup FILE, or `checkpoint_backup:` "
            "in it",
        )
    return found
