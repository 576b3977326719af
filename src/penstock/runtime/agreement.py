"""Do the checkpoint and the sinks agree?

Each sink's own token says which batch it holds. They agree where every sink is at the last batch committed, or, while
a batch is open, at that one. A sink beyond the checkpoint would call new rows seen: they would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import AFRESH, REPAIR, RESTORE, Finding, from_error
from penstock.checkpoint.logs import CheckpointFiles, read_files
from penstock.model import BatchToken, Guarantee
from penstock.runtime.standings import Standing

_SHOWN = 8


def sink_findings(
    checkpoint: SparkCheckpoint, standings: Sequence[Standing], *, committed: int | None = None
) -> list[Finding]:
    """Hold the sinks' tokens of this checkpoint's query against its batches.

    Under a running stream `committed` is the last batch that was committed before the sinks were asked; -1 for none.
    """
    files = read_files(checkpoint.path, checkpoint.storage)
    done = files.committed if committed is None else committed if committed >= 0 else None
    return compare_sinks(checkpoint.path, files, standings, done)


def compare_sinks(
    path: str, files: CheckpointFiles, standings: Sequence[Standing], committed: int | None
) -> list[Finding]:
    """The same for files that were looked at already."""
    found: list[Finding] = []
    for one in standings:
        if one.error is not None:
            found.append(_unreachable(one))
        if one.guarantee is not Guarantee.EXACTLY_ONCE or one.error is not None or files.query_id is None:
            continue
        held = one.holds
        if held is None:
            if committed is not None and not one.sparse:
                found.append(_empty(one, committed))
        elif held.query_id == files.query_id:
            mine = [*_compared(path, files, one, held, committed, standings)]
            if not mine and one.taken_back is not None:
                mine = [from_error(one.taken_back, means=_TAKEN_BACK)]
            found += mine
    return found


_TAKEN_BACK = (
    "The checkpoint agrees with the table as it is now, but the table remembers later batches of the same query: it "
    "would not take others under their numbers."
)


def _compared(
    path: str,
    files: CheckpointFiles,
    one: Standing,
    held: BatchToken,
    done: int | None,
    standings: Sequence[Standing],
) -> Iterable[Finding]:
    batch, begun = held.batch_id, files.begun
    sides = {"checkpoint": _batches(begun, done), f"sink {one.sink}": f"batch {batch}, {held.describe_ranges()}"}
    newest = files.newest
    if newest is None or batch > newest:
        yield Finding(
            "SINK_AHEAD",
            True,
            f"sink {one.sink} holds batch {batch}, which checkpoint {path} has not begun",
            sides,
            "The checkpoint went back: a file of it was lost, or an older copy put in place. A run would give the "
            "batch other offsets, and the sink would call it seen: its rows would be lost.",
            f"{REPAIR}\n{RESTORE}\n{AFRESH}",
        )
        return
    whole = one.token.batch_id if one.token is not None and one.token.query_id == held.query_id else -1
    if done is not None and whole < done and not one.sparse:
        yield Finding(
            "SINK_BEHIND",
            True,
            f"sink {one.sink} ends at batch {whole}, and batch {done} is committed"
            if whole >= 0
            else f"sink {one.sink} has no whole batch, and batch {done} is committed",
            sides,
            "The table was restored, or the database put back from a copy: what came between is not in it, and a run "
            "would not bring it again.",
            _ways_behind(one, standings),
        )
        return
    planned = next((token.ends for token in files.again if token.batch_id == batch), None)
    ends = planned if planned is not None else files.offsets[batch].ends if batch in files.offsets else None
    if ends is not None and ends != held.ends:
        yield Finding(
            "SINK_TOKEN_MISMATCH",
            True,
            f"sink {one.sink} holds batch {batch} with other offsets than checkpoint {path}",
            {"checkpoint": _places(held.starts, ends), f"sink {one.sink}": held.describe_ranges()},
            "The checkpoint is of another past than the sink: edited by hand, or put together from two copies.",
            f"{RESTORE}\n{AFRESH}",
        )


def _ways_behind(one: Standing, standings: Sequence[Standing]) -> str:
    """All sinks at one place: go on from there. Else the one sink alone has to be filled."""
    undo = "put the table back to what it was, or:\n"
    exact = [s for s in standings if s.guarantee is Guarantee.EXACTLY_ONCE and not s.sparse]
    places = {tuple(sorted(s.token.ends.items())) if s.token is not None else None for s in exact}
    if len(places) == 1 and one.token is not None:
        return f"{undo}point `checkpoint:` at a new folder, then: penstock run FILE --resume-from-table"
    begin = "earliest" if one.token is None else "the offsets where it ends (above)"
    return (
        f"{undo}give the sink another `name:` in the file, so that it begins anew with the next batch; then\n"
        f"penstock run FILE\n"
        f"penstock replay FILE --sink NEW_NAME --from ... --to ...    (from {begin} to the checkpoint's)"
    )


def _unreachable(one: Standing) -> Finding:
    return Finding(
        "SINK_UNREACHABLE",
        True,
        f"sink {one.sink} cannot be asked which batch it holds",
        {"sink": one.error or ""},
        "Whether it agrees with the checkpoint cannot be told. A run would stop at it too.",
        "bring it back, or correct its settings, and look again: penstock checkpoint verify FILE",
    )


def _empty(one: Standing, done: int) -> Finding:
    return Finding(
        "SINK_HOLDS_NOTHING",
        False,
        f"sink {one.sink} holds no batch of this pipeline, and batch {done} is committed",
        {},
        "The sink is new, or its table was dropped. A run goes on, and brings it the rows from now on.",
        f"to bring it what came before: penstock replay FILE --sink {one.sink} --from earliest --to committed",
    )


def _batches(begun: int | None, done: int | None) -> str:
    told = "no batch committed" if done is None else f"batch {done} committed"
    return told if begun == done else f"{told}, batch {begun if begun is not None else 'none'} begun"


def _places(starts: Offsets, ends: Offsets) -> str:
    shown = ", ".join(f"{at} {starts.get(at, 0)}-{end}" for at, end in sorted(ends.items())[:_SHOWN])
    return shown + (f" and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else "")
