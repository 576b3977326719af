"""Which damages of a checkpoint can be repaired, and by which changes, only if provably safe. Pure.

The sinks are the evidence: the token of a batch has the start and end of each of its partitions. A batch whose offsets
are rebuilt from a token is repeated by Spark with exactly these, and a sink that has it skips it. If no sink has rows
of a batch, the batch never happened. There is no evidence for state, so files that it depends on are not rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.checkpoint import Offsets
from penstock.checkpoint.logs import RESTORING, CheckpointFiles, LogFile
from penstock.checkpoint.state_stores import StateFiles
from penstock.model import BatchToken, Guarantee, Rule
from penstock.preflight.agreement import other_ends
from penstock.preflight.standings import Standing

Act = Literal["remove", "remove checksum", "write offsets", "write commit", "write metadata", "write start"]


@dataclass(frozen=True)
class Change:
    """One change of one file."""

    act: Act
    name: str
    why: str
    ends: Offsets = field(default_factory=dict)
    like: int | None = None
    """The batch whose settings are copied into a rebuilt file."""
    query_id: str | None = None
    """For the metadata; none for a new one."""

    @property
    def batch(self) -> int:
        """The batch of an offsets or commits file."""
        return int(self.name.rpartition("/")[2])


@dataclass(frozen=True)
class NotRepaired:
    """A damage that is not repaired, and why."""

    code: str
    """That of the finding."""
    why: str


RepairStep = Change | NotRepaired


class RepairRules:
    """The damages of one checkpoint, held against its sinks."""

    def __init__(self, files: CheckpointFiles, state: StateFiles, standings: Sequence[Standing]) -> None:
        self._files = files
        self._state = state
        self._exact = [one for one in standings if one.guarantee is Guarantee.EXACTLY_ONCE]
        self._unknown = ", ".join(one.sink for one in self._exact if one.error is not None)
        witnessed = self._witnessed_query() if files.query_id is None else None
        self._adopt(files.query_id or witnessed)
        if witnessed is not None and not self._confirms_offsets():
            self._adopt(None)

    def _adopt(self, query_id: str | None) -> None:
        """Take the sinks' tokens of this query as witnesses; of none if the query is unknown."""
        own = (one.newest for one in self._exact)
        self._query_id = query_id
        self._held = [token for token in own if token is not None and token.query_id == query_id]
        self._newest = max((token.batch_id for token in self._held), default=None)

    def steps(self) -> list[RepairStep]:
        """What to change, in an order in which every change may be the last; and what not, and why."""
        files = self._files
        if files.restoring is not None and not files.restoring.startswith("repair"):
            return [NotRepaired("RESTORE_UNFINISHED", f"it was started by: {files.restoring}; let that finish")]
        steps: list[RepairStep] = [
            Change("remove", name, "left over from an interrupted write") for name in files.strays
        ]
        tail = [*self._tail()]
        steps += tail
        if not any(isinstance(step, NotRepaired) for step in tail):
            steps += self._commits(_newest_after(files, tail))
        steps += self._checksums()
        # The query id comes last: without it there is no checkpoint, and no run begins.
        steps += self._metadata()
        if files.restoring is not None:
            steps.append(Change("remove", RESTORING, "the repair that was started is done"))
        return steps

    def _witnessed_query(self) -> str | None:
        """The query of the sinks' tokens, if they agree."""
        ids = {token.query_id for one in self._exact if (token := one.newest) is not None and not one.sparse}
        return ids.pop() if len(ids) == 1 else None

    def _metadata(self) -> Iterator[RepairStep]:
        files, code = self._files, "CHECKPOINT_METADATA_LOST"
        if files.query_id is not None:
            return
        if files.metadata is not None:
            code = "CHECKPOINT_FILE_BROKEN"
        elif files.begun is None and files.committed is None:
            return
        if self._unknown:
            yield NotRepaired(code, f"the query id of sink {self._unknown} cannot be read")
        elif all(one.newest is None for one in self._exact):
            if files.begun is None or files.committed in (None, files.begun):
                yield Change("write metadata", "metadata", "no sink has a batch of any query: a new id is safe")
            else:
                yield NotRepaired(code, "a batch is open, and no sink has its query id")
        elif self._query_id is None:
            yield NotRepaired(code, "the sinks have no common query whose newest batch is also in the checkpoint")
        else:
            why = f"the query id in the sinks' tokens; batch {self._newest} has the same offsets in both"
            yield Change("write metadata", "metadata", why, query_id=self._query_id)

    def _confirms_offsets(self) -> bool:
        """Whether the newest batch of the sinks is one of this checkpoint's."""
        newest = self._token(self._newest)
        if newest is None:
            return False
        here = self._files.ends(newest.batch_id)
        if here is not None:
            return here == newest.ends
        before = self._files.ends(newest.batch_id - 1)
        return before is not None and _follows(before, newest)

    def _tail(self) -> Iterator[RepairStep]:
        files, begun = self._files, self._files.begun
        code = self._damaged()
        if code is None:
            return
        if self._unknown:
            yield NotRepaired(code, f"the position of sink {self._unknown} cannot be read")
            return
        if self._query_id is None and any(one.newest is not None for one in self._exact):
            yield NotRepaired(code, "without the query id the sinks' tokens prove nothing")
            return
        never_was = (
            begun is not None
            and (files.ends(begun) is None or self._lacks_partitions(begun))
            and begun not in files.commits
            and not self._has(begun)
        )
        if self._state.kept:
            if begun is not None and never_was and self._may_forget(begun):
                yield _forget(begun)
            else:
                yield NotRepaired(
                    code, "the steps keep state, and the state version for the rebuilt files cannot be proved"
                )
            return
        target = begun
        dropped: list[RepairStep] = []
        if begun is not None and never_was:
            dropped = [_forget(begun)]
            target = max((batch for batch in files.offsets if batch < begun), default=None)
        if self._newest is not None and (target is None or self._newest > target):
            target = self._newest
        yield from self._rebuilt(code, target, dropped)

    def _damaged(self) -> str | None:
        """The code of what is wrong with the newest batches; none where nothing is."""
        files, begun, done = self._files, self._files.begun, self._files.committed
        if begun is not None and files.offsets[begun].problem is not None:
            return "CHECKPOINT_FILE_BROKEN"
        if begun is not None and begun > 0 and files.ends(begun - 1) is None:
            return "CHECKPOINT_GAP" if begun - 1 not in files.offsets else "CHECKPOINT_FILE_BROKEN"
        if begun is not None and files.ends(begun) is None:
            return "CHECKPOINT_FILE_BROKEN"
        if done is not None and (begun is None or done > begun):
            return "CHECKPOINT_GAP"
        if (
            begun is not None
            and (done is None or done < begun)
            and self._lacks_partitions(begun)
            and not self._has(begun)
        ):
            return "PARTITION_LEFT_OUT"
        if self._newest is not None and self._newest > (files.newest if files.newest is not None else -1):
            return "CHECKPOINT_WENT_BACK"
        if any(other_ends(files, token) is not None for token in self._held if token.rule is not Rule.MOVES):
            return "SINK_TOKEN_MISMATCH"
        if begun == 0 and done is None and not any(file.problem is None for file in files.sources.values()):
            return "CHECKPOINT_GAP" if not files.sources else "CHECKPOINT_FILE_BROKEN"
        return None

    def _lacks_partitions(self, batch: int) -> bool:
        """Whether a batch lacks partitions of the previous one."""
        here, before = self._files.ends(batch), self._files.ends(batch - 1)
        return here is not None and before is not None and not before.keys() <= here.keys()

    def _has(self, batch: int) -> bool:
        """Whether some sink has something of a batch."""
        return self._newest is not None and self._newest >= batch

    def _may_forget(self, batch: int) -> bool:
        """With state: no store has a version of this batch, which another batch of its number would not replace."""
        before = batch == 0 or self._files.ends(batch - 1) is not None
        return before and (self._state.newest is None or self._state.newest <= batch)

    def _rebuilt(self, code: str, target: int | None, dropped: Sequence[RepairStep]) -> Iterator[RepairStep]:
        files, done = self._files, self._files.committed
        if done is not None and (target is None or done > target):
            yield NotRepaired(code, f"batch {done} is committed, and no sink has its offsets")
            return
        if target is None:
            yield from dropped
            return
        known = self._known()
        if isinstance(known, NotRepaired):
            yield NotRepaired(code, known.why)
            return
        late = [one.sink for one in self._exact if not one.sparse and self._lags(one)]
        if late:
            yield NotRepaired(code, f"sink {', '.join(late)} is more than one batch behind the others")
            return
        writes = []
        for batch in range(max(0, target - 1), target + 1):
            here = files.ends(batch)
            differs = here is not None and batch == self._newest and here != known[batch]
            if differs and done is not None and done >= batch:
                yield NotRepaired(code, f"the sinks have batch {batch} with other offsets, and it is committed")
                return
            if here is None and batch not in known:
                yield NotRepaired(code, f"no sink has the end of batch {batch}")
                return
            if here is None or differs:
                why = f"as the sinks' token of batch {self._newest} has it"
                writes.append(Change("write offsets", f"offsets/{batch}", why, known[batch], self._like(batch)))
        newest = self._token(target)
        before = files.ends(target - 1)
        if newest is not None and before is not None and not _follows(before, newest):
            yield NotRepaired(code, f"batch {target} of the sinks does not start where batch {target - 1} ended")
            return
        if target == 0 and done is None and not any(file.problem is None for file in files.sources.values()):
            if newest is None:
                yield NotRepaired(code, "no sink has the start of batch 0")
                return
            yield Change("write start", "sources/0/0", "where the sinks' token of batch 0 starts", newest.starts)
        if target - 1 not in files.commits and target not in files.commits and target > (done or 0) + 1:
            writes.append(Change("write commit", f"commits/{target - 1}", "every sink is past it"))
        if code == "SINK_TOKEN_MISMATCH" and not writes:
            yield NotRepaired(code, "a sink has a batch that is committed with other offsets")
        yield from writes
        yield from dropped

    def _known(self) -> dict[int, Offsets] | NotRepaired:
        """Where batches ended, by the newest token."""
        newest = self._token(self._newest)
        if newest is None:
            return {}
        for token in self._held:
            if token.batch_id == newest.batch_id and token.ranges != newest.ranges:
                return NotRepaired("", f"the sinks have batch {newest.batch_id} with different offsets")
            if token.batch_id == newest.batch_id - 1 and not _follows(token.ends, newest):
                return NotRepaired(
                    "", f"batches {token.batch_id} and {newest.batch_id} of the sinks are not contiguous"
                )
        found = {newest.batch_id: newest.ends}
        return found | ({newest.batch_id - 1: newest.starts} if newest.batch_id > 0 else {})

    def _lags(self, one: Standing) -> bool:
        token = one.token
        if token is None or token.query_id != self._query_id or self._newest is None:
            return False
        return token.batch_id < self._newest - 1

    def _token(self, batch: int | None) -> BatchToken | None:
        return next((token for token in self._held if token.batch_id == batch), None)

    def _like(self, batch: int) -> int | None:
        there = [other for other in self._files.offsets if self._files.ends(other) is not None]
        return min(there, key=lambda other: (abs(other - batch), other), default=None)

    def _commits(self, target: int | None) -> Iterator[RepairStep]:
        """A commit file that cannot be read is taken away: Spark then runs the batch again, with its own offsets."""
        for batch in sorted(self._files.commits, reverse=True):
            if self._files.commits[batch].problem is None:
                return
            missing = self._state.missing(batch) if self._state.kept and batch == target else []
            if missing:
                yield NotRepaired("CHECKPOINT_FILE_BROKEN", f"the state before batch {batch} is missing: {missing[0]}")
                return
            why = f"Spark repeats batch {batch} with exactly its offsets, and the sinks that have it skip it"
            yield Change("remove", f"commits/{batch}", why if batch == target else "Spark does not need it")

    def _checksums(self) -> Iterator[RepairStep]:
        wanted = self._files.needed
        for file in self._files.all:
            if file.problem is not None or file.checksum in ("none", "right"):
                continue
            if file.checksum == "unreadable":
                yield Change("remove checksum", file.name, "the checksum is damaged, but the file is intact")
            elif file.name in wanted and self._confirmed(file):
                yield Change("remove checksum", file.name, "the sinks' tokens say the same as the file")
            elif file.name in wanted:
                yield NotRepaired("CHECKPOINT_CHECKSUM_WRONG", f"no sink shows whether {file.name} is correct")

    def _confirmed(self, file: LogFile) -> bool:
        """Whether the sinks confirm the contents of a file."""
        folder = file.name.partition("/")[0]
        if folder == "metadata":
            return bool(self._held)
        if folder == "commits":
            return not self._state.kept
        if folder == "sources":
            first = self._token(0)
            return first is not None and first.starts == file.initial
        known, batch = self._known(), int(file.name.rpartition("/")[2])
        ends = self._files.ends(batch)
        if isinstance(known, NotRepaired) or ends is None or batch not in known:
            return False
        newest = self._token(self._newest)
        return known[batch] == ends if batch == self._newest else newest is not None and _follows(ends, newest)


def _newest_after(files: CheckpointFiles, steps: Sequence[RepairStep]) -> int | None:
    """The newest batch with offsets once the steps are done."""
    gone = {step.name for step in steps if isinstance(step, Change) and step.act == "remove"}
    there = {batch for batch in files.offsets if f"offsets/{batch}" not in gone}
    there |= {step.batch for step in steps if isinstance(step, Change) and step.act == "write offsets"}
    return max(there, default=None)


def _forget(batch: int) -> Change:
    why = f"no sink has rows of batch {batch}: Spark starts it again"
    return Change("remove", f"offsets/{batch}", why)


def _follows(before: Offsets, token: BatchToken) -> bool:
    """Whether a batch starts where the previous one ended. New partitions start at 0, and so do logs that
    moved back."""
    return all(start in (before.get(at, 0), 0) for at, start in token.starts.items())
