"""Batches to run again with exactly their offsets, one by one: how state comes forward to where the sinks are.

A checkpoint that was restored from a copy has the state of an older batch than the sinks hold. A note beside it names
the batches between. Each is put into Spark's log in its turn and run; the sinks call it seen, and its rows go through
the state once more, as they did the first time.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.writing import put_offsets


@dataclass(frozen=True)
class PendingReruns:
    """What a note says is left to run again."""

    checkpoint: SparkCheckpoint

    @property
    def left(self) -> int:
        """How many batches are left."""
        done = self.checkpoint.last_committed()
        return sum(1 for token in self.checkpoint.again() if done is None or token.batch_id > done)

    def next(self) -> int | None:
        """Put the next batch into Spark's log, which has nothing behind it that was run; none where all are done.

        A query that is stopped behind a batch may have planned one more: no record of it was read.
        """
        done = self.checkpoint.last_committed()
        left = [token for token in self.checkpoint.again() if done is None or token.batch_id > done]
        if not left:
            self.checkpoint.note_again([])
            return None
        token, before = left[0], left[0].batch_id - 1
        if self.checkpoint.last_begun() != token.batch_id or self.checkpoint.ends(token.batch_id) != token.ends:
            like = before if before >= 0 else None
            put_offsets(self.checkpoint.path, token.batch_id, token.ends, like=like, storage=self.checkpoint.storage)
        return token.batch_id
