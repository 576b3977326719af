"""A disk that is full: the place of the pipeline that is on it, named in whatever a run raises about it.

An error of a task or of Spark says that a disk is full, seldom which. A system's own error for it, from where nobody
has words for it, becomes `DISK_FULL`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.assembly.reaching import places_of
from penstock.config import PipelineConfig, reveal
from penstock.errors import PenstockError
from penstock.storage.disk_space import disk_full, is_full, least_room


@contextmanager
def full_disks_named(config: PipelineConfig) -> Iterator[None]:
    """Name the place with the least room in errors that tell of a full disk."""
    try:
        yield
    except PenstockError as error:
        if is_full(str(error)):
            error.context.update(_least_room(config))
        raise
    except OSError as error:
        if not is_full(error):
            raise
        raise disk_full("running the pipeline", {"cause": error, **_least_room(config)}) from error


def _least_room(config: PipelineConfig) -> dict[str, str]:
    scratch = reveal(config.spark).get("spark.local.dir") or tempfile.gettempdir()
    room = least_room((*places_of(config), scratch))
    return {"least room here": str(room)} if room is not None else {}
