"""Whether a pipeline runs, and where: the lock and the run's own note together.

On this host the lock decides, since the kernel frees it when its holder dies. Of a run on another host, whose lock may
not show here, the note decides by its age.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.checkpoint.lock import held_by
from penstock.checkpoint.presence import Presence, RunNote
from penstock.storage import Storage

_SILENCE = timedelta(seconds=30)
"""How old the note of a run on another host may be while it counts as running: three beats."""

State = Literal["running", "stopped", "failed", "killed", "silent", "none"]
"""`silent`: on another host, and not heard of; killed there, or cut off. `none`: no run was ever noted."""


@dataclass(frozen=True)
class RunStatus:
    """The run of a checkpoint, if there is or was one."""

    state: State
    holder: str | None
    """Who runs, or holds the lock for something else."""
    note: RunNote | None
    """What that run tells, or the last one told; none of a holder that tells nothing."""

    @property
    def running(self) -> bool:
        """Whether somebody has the checkpoint now."""
        return self.state == "running"


def find_run(checkpoint: str, storage: Storage = Storage()) -> RunStatus:
    """Look for the run of a checkpoint."""
    presence = Presence(checkpoint, storage)
    note = presence.read()
    while True:
        # Between two looks at the note, which must be of one run: it may begin or end in the meantime.
        before, holder, note = note, held_by(checkpoint, storage), presence.read()
        if (before and before.started_at) == (note and note.started_at):
            break
    if holder is not None:
        told = note if note is not None and note.who == holder and note.ended_at is None else None
        return RunStatus("running", holder, told)
    if note is None:
        return RunStatus("none", None, None)
    if note.ended_at is not None:
        return RunStatus("failed" if note.error else "stopped", None, note)
    if note.host == socket.gethostname():
        return RunStatus("killed", None, note)
    heard = datetime.now(UTC) - note.at < _SILENCE
    return RunStatus("running" if heard else "silent", note.who if heard else None, note)
