"""The commit of a batch to one target: read the position, decide, land, and read again whenever the outcome is unknown.

The only retry loops around a commit are here. A sink supplies `position` and `land`; `land` makes the staged rows
visible and the new position current in one atomic step, and only while the target is still at the expected position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.contracts import Sink
from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import BatchToken, Guarantee, Manifest, Position, Rule, Verdict, decide

TRIES = 5


def commit(
    sink: Sink, token: BatchToken, manifests: Sequence[Manifest], known: Position | None = None, least: int = 0
) -> Position | None:
    """Commit a batch, once however often called; the position of the target afterwards.

    `known` is the position after the last commit of this process: it saves a read, and only proves that the target must
    not have fewer commits now. `least` is the same for what others have read from the target. A sink that is only at
    least once keeps no position.
    """
    failure: TransientError | None = None
    least = max(least, known.number if known is not None else 0)
    before: Position | None = None
    for _ in range(TRIES):
        held = known if known is not None else sink.position()
        known = None
        if is_committed(sink, held, token, least):
            return held
        if failure is not None and not _same(held, before):
            # Another run was here: what is staged was staged for the position before, and has to be staged again.
            raise failure
        before = held
        position = Position.after(held, token)
        try:
            sink.land(position, manifests, held)
            return position if sink.guarantee is Guarantee.EXACTLY_ONCE else None
        except TransientError as error:  # landed or not: only the target knows, and the next try asks it
            failure = error
    assert failure is not None
    # The last try may have landed without an answer.
    held = sink.position()
    if sink.guarantee is Guarantee.EXACTLY_ONCE and is_committed(sink, held, token, least):
        return held
    raise failure


def land_on_current(
    sink: Sink, following: Callable[[Position | None], tuple[Position, Sequence[Manifest]] | None]
) -> Position | None:
    """Land what follows the current position of the target, whichever it is; return the position afterwards.

    `following` is asked for every try: its answer must be right also where the try before has landed without an
    answer. None is for nothing to land.
    """
    failure: TransientError | None = None
    for _ in range(TRIES):
        held = sink.position()
        found = following(held)
        if found is None:
            return held
        position, manifests = found
        try:
            sink.land(position, manifests, held)
            return position
        except TransientError as error:
            failure = error
    assert failure is not None
    raise failure


def _same(one: Position | None, other: Position | None) -> bool:
    """Whether two readings are of one position. A target whose history was cleaned up no longer knows the ranges."""
    if one is None or other is None:
        return one is other
    batches = [(each.last.query_id, each.last.batch_id, each.number) for each in (one, other)]
    return batches[0] == batches[1] and one.next == other.next


def is_committed(sink: Sink, held: Position | None, token: BatchToken, least: int = 0) -> bool:
    """Whether a target at this position has the batch already. Raises where the two contradict each other."""
    verdict = decide(held, token, least)
    if verdict in (Verdict.NEXT, Verdict.COMMITTED):
        return verdict is Verdict.COMMITTED
    raise contradiction(sink.name, verdict, held, token)


def move(sink: Sink, token: BatchToken, reason: str) -> Position | None:
    """Move a target's position on purpose, by a commit without rows that says why in the target's history."""
    return commit(sink, replace(token, rule=Rule.MOVES, reason=reason), ())


def position_moved(sink: str) -> TransientError:
    """What `land` raises where the target is no longer at the expected position."""
    return TransientError(
        "SINK_COMMIT_CONFLICT",
        f"sink {sink}: another commit of this pipeline and sink came first",
        hint="another run of this pipeline writes to the same target: only one may",
    )


def contradiction(
    sink: str, verdict: Verdict, held: Position | None, token: BatchToken, catch_up: str = "--catch-up"
) -> PenstockError:
    """The error for a batch that may not be committed onto a position, with both sides and the ways out."""
    sides = {"batch": f"{token.batch_id} of query {token.query_id[:8]}: {token.describe_ranges()}"}
    sides["target"] = held.describe() if held is not None else "no longer has rows of this pipeline"
    if verdict is Verdict.TOKEN_MISMATCH:
        assert held is not None
        return TerminalError(
            "SINK_TOKEN_MISMATCH",
            f"sink {sink}: batch {token.batch_id} is already committed with other offsets",
            context={"checkpoint": token.describe_ranges(), "table": held.last.describe_ranges()},
            hint="the checkpoint went back and gave the batch other offsets, or was edited\n"
            "  put it right from the targets: penstock checkpoint repair FILE\n"
            "  or start from their positions: an empty `checkpoint:` folder, and\n"
            "                                 penstock run FILE --resume-from-table",
        )
    if verdict is Verdict.TARGET_WENT_BACK:
        missing = held.missing(token) if held is not None else []
        shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return TerminalError(
            "TARGET_WENT_BACK",
            f"sink {sink}: the target was set back: commits of this pipeline before batch {token.batch_id} are missing",
            context={**sides, **({"missing": shown} if shown else {})},
            hint="the table or database was restored from an older copy; two ways out:\n"
            "  undo the restore, and run again\n"
            f"  write the missing rows again:  penstock run FILE {catch_up}",
        )
    if verdict is Verdict.HELD:
        assert held is not None
        return TerminalError(
            "REPLAY_UNFINISHED",
            f"sink {sink}: a replay is replacing rows of this target, and has not ended",
            context={"replay": held.last.query_id},
            hint="wait until it ends; if it was stopped or killed:\n"
            f"  finish it:  penstock replay FILE --resume {held.last.query_id}\n"
            f"  give it up: penstock replay FILE --give-up {held.last.query_id}",
        )
    if verdict is Verdict.FENCED:
        return TerminalError(
            "FENCED",
            f"sink {sink}: another run of this pipeline has taken over: batch {token.batch_id} starts before the "
            "target's position",
            context=sides,
            hint="stop this run; if it is the one that should continue, start it from the target's position:\n"
            "  an empty `checkpoint:` folder, then: penstock run FILE --resume-from-table",
        )
    return TerminalError(
        "CHECKPOINT_WENT_BACK",
        f"sink {sink}: the target is ahead of the checkpoint: batch {token.batch_id} was committed with other offsets",
        context=sides,
        hint="the checkpoint went back: a file of it was lost, or an older copy put in place\n"
        "  put it right from the targets: penstock checkpoint repair FILE\n"
        "  or restore a backup:           penstock checkpoint restore FILE",
    )
