"""A checkpoint that goes back, held against what the sinks hold: how its next batch becomes the right one. Pure.

A sink calls a batch seen that it holds under the same id. So a checkpoint of batch B, restored while the sinks are at
N, must not run B+1 with offsets of its own: they would be skipped, and lost. The sinks' tokens say what batch N was.
The checkpoint is brought forward to it, without the batches between, which Spark does not need; where some sink is one
batch behind the others, batch N is left open, so that Spark runs it again with exactly those offsets.
State cannot be brought forward so: it has to be run again, batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint import Offsets
from penstock.errors import MissingError, PenstockError, TerminalError
from penstock.model import BatchToken, Guarantee
from penstock.preflight.loss import ranges_of_batch
from penstock.preflight.standings import Standing


@dataclass(frozen=True)
class CheckpointPlace:
    """Where the checkpoint stands that is to be put in place."""

    pipeline: str
    query_id: str
    batch: int
    """Its newest batch, which is committed."""
    ends: Offsets
    stateful: bool


@dataclass(frozen=True)
class Reconciled:
    """What has to be written so that the checkpoint agrees with the sinks."""

    forward: BatchToken | None = None
    """The batch that the checkpoint is brought forward to; None where it agrees as it is."""
    done: bool = True
    """Whether every sink has that batch; else Spark is to run it again."""
    again: tuple[BatchToken, ...] = ()
    """With state: the batches to run again, one by one, with exactly their offsets. The sinks have most of them."""
    notes: tuple[str, ...] = ()

    @property
    def next_batch(self) -> str:
        """What a run does first, in words."""
        if self.again:
            return f"batches {self.again[0].batch_id} to {self.again[-1].batch_id} are run again for their state"
        if self.forward is None:
            return "the sinks and the checkpoint agree: a run goes on from there"
        if self.done:
            return f"brought forward to batch {self.forward.batch_id}, which every sink holds"
        return (
            f"brought forward to batch {self.forward.batch_id}, which a run carries out again: not every sink holds it"
        )


def reconcile(
    at: CheckpointPlace, standings: Sequence[Standing], known: Mapping[int, Offsets] | None = None
) -> Reconciled:
    """What to write so that nothing is lost and nothing twice; raises where no checkpoint can agree with the sinks.

    `known` tells where the batches after `at` end, as another copy of the log has them.
    """
    _refuse_unknown(standings)
    notes = _notes(standings)
    exact = [s for s in standings if s.guarantee is Guarantee.EXACTLY_ONCE]
    targets = {s.sink: s.token for s in exact if s.token is not None and not s.sparse}
    foreign = {name: token for name, token in targets.items() if token.query_id != at.query_id}
    if foreign:
        raise _disagree("SINK_HOLDS_OTHER_RUN", "a sink was carried on from another checkpoint", at, foreign, _FRESH)
    # What a torn sink, or one that keeps no token of most batches, has beside: there the newest batch may have begun.
    beside = {s.sink: s.newest for s in exact if s.newest is not None and (s.sparse or s.begun is not None)}
    beside = {name: token for name, token in beside.items() if token.query_id == at.query_id}
    newest = max((token.batch_id for token in (*targets.values(), *beside.values())), default=at.batch)
    behind = {name: token for name, token in targets.items() if token.batch_id < at.batch}
    if behind:
        raise _disagree(
            "TARGET_WENT_BACK", "a sink is behind the backup: rows between would be lost", at, behind, _OLDER
        )
    if any(token.batch_id < newest - 1 for token in targets.values()):
        raise _disagree("SINKS_APART", "the sinks are more than one batch apart", at, targets | beside, _VERIFY)
    for name, token in (*targets.items(), *beside.items()):
        if token.batch_id == at.batch and token.ends != at.ends:
            raise _disagree("SINK_TOKEN_MISMATCH", f"batch {at.batch} ended elsewhere", at, {name: token}, _FRESH)
    if newest <= at.batch:
        return Reconciled(notes=notes)
    forward = _newest(at, newest, [*targets.items(), *beside.items()])
    if at.stateful:
        return Reconciled(forward, False, _again(at, forward, known or {}), notes)
    torn = any(s.torn is not None for s in exact)
    done = not torn and bool(targets) and all(token.batch_id == newest for token in targets.values())
    return Reconciled(forward, done, (), notes)


_FRESH = (
    "nothing was changed. To go on where the table ends, point `checkpoint:` at an empty folder and run\n"
    "  penstock run FILE --resume-from-table"
)
_OLDER = (
    "nothing was changed. Was the table put back too? Restore a backup that is not newer than the table:\n"
    "  penstock checkpoint backup FILE --list, then penstock checkpoint restore FILE --from BACKUP"
)
_VERIFY = "nothing was changed; penstock checkpoint verify FILE tells how each stands"


def _newest(at: CheckpointPlace, batch: int, tokens: Sequence[tuple[str, BatchToken]]) -> BatchToken:
    """The newest batch, on which its holders must agree, and which must follow what the others hold."""
    holders = {name: token for name, token in tokens if token.batch_id == batch}
    first = next(iter(holders.values()))
    if any(token.ranges != first.ranges for token in holders.values()):
        raise _disagree("SINK_TOKEN_MISMATCH", f"the sinks hold batch {batch} with other offsets", at, holders, _FRESH)
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
                f"the state in the backup is that of batch {at.batch}, and the offsets of batch {batch} are not known",
                context={"backup": _place(at), "sinks": f"batch {last.batch_id}, {last.describe_ranges()}"},
                hint="nothing was changed. State cannot be brought forward without running each batch again; take a "
                "newer backup, or start afresh: a new checkpoint and new tables",
            )
        tokens.append(BatchToken(at.pipeline, at.query_id, batch, ranges_of_batch(starts, known[batch]).ranges))
        starts = known[batch]
    return (*tokens, last)


def _refuse_unknown(standings: Sequence[Standing]) -> None:
    unknown = {s.sink: s.error for s in standings if s.error is not None and s.guarantee is Guarantee.EXACTLY_ONCE}
    if unknown:
        raise MissingError(
            "SINK_UNREACHABLE",
            "a sink cannot be asked which batch it holds, and without that the checkpoint must not go back",
            context=unknown,
            hint="nothing was changed; try again when it can be reached",
        )


def _notes(standings: Sequence[Standing]) -> tuple[str, ...]:
    found = []
    for one in standings:
        if one.guarantee is Guarantee.AT_LEAST_ONCE:
            found.append(f"sink {one.sink} keeps no token: it may get rows again that it has")
        elif one.newest is None and not one.sparse:
            found.append(f"sink {one.sink} holds no batch of this pipeline: it gets the rows from here on")
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
