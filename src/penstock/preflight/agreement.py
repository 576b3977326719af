"""Do the checkpoint and the targets agree?

The checkpoint says which batch comes next: the one that is open, or an empty one where the last one ended. `decide`
compares that batch with each target's position, as it would at the commit. A contradiction is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.checkpoint import Offsets
from penstock.checkpoint.files import NotedSink
from penstock.checkpoint.findings import AFRESH, REPAIR, RESTORE, Finding, from_error
from penstock.checkpoint.logs import CheckpointFiles, describe_batches
from penstock.errors import TerminalError
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, Rule, Verdict, decide
from penstock.preflight.loss import ranges_of_batch
from penstock.preflight.standings import FormerName, Standing, carried_number, renamed_sinks
from penstock.sinks.commit import contradiction

_SHOWN = 8


def compare_sinks(
    path: str,
    files: CheckpointFiles,
    standings: Sequence[Standing],
    committed: int | None,
    noted: Mapping[str, NotedSink] | None = None,
    former: Sequence[FormerName] = (),
) -> list[Finding]:
    """Compare the positions of the targets with the batches of a checkpoint.

    For a running stream, `committed` is the last batch committed before the targets were read. `noted` are the sinks of
    the last run, `former` the positions under sink names that are no longer in the file.
    """
    token = next_token(files, committed)
    found = rename_findings(former, standings, token) if token is not None else []
    renamed = renamed_sinks(former, standings)
    for one in standings:
        if one.error is not None:
            found.append(_unreachable(one))
        if one.guarantee is not Guarantee.EXACTLY_ONCE or one.error is not None or files.query_id is None:
            continue
        if one.sparse:
            found += _quarantine_findings(one, token, standings)
            found += _compared(path, files, one, token, committed) if one.position is not None else ()
        elif one.furthest is None:
            if committed is not None and one.sink not in renamed:
                found.append(_empty(one, committed, token, (noted or {}).get(one.sink)))
        else:
            found += _compared(path, files, one, token, committed)
    return found


def rename_findings(
    former: Sequence[FormerName], standings: Sequence[Standing], token: BatchToken | None
) -> list[Finding]:
    """Targets that hold under a former name what a run would write again, or that end there before the next batch.

    Without a token the checkpoint is fresh, and nothing tells where its first batch starts.
    """
    found = [_unreachable(each.held) for each in former if each.held.error is not None]
    own = {one.sink: one.furthest for one in standings}
    for each, position in _furthest(former, own):
        held = own.get(each.sink)
        fine = [Verdict.NEXT] if held is None else [Verdict.NEXT, Verdict.TARGET_WENT_BACK]
        if held is not None and token is not None and decide(held, token) is Verdict.TARGET_WENT_BACK:
            # The sink has its first name back, and what it lacks was written under the other one.
            fine.remove(Verdict.NEXT)
        if token is None or decide(position, token) not in fine:
            found.append(from_error(_renamed(each, position, token), means=_RENAMED))
    return found


def _furthest(
    former: Sequence[FormerName], own: Mapping[str, Position | None]
) -> Iterable[tuple[FormerName, Position]]:
    """The former names of each sink whose position nothing covers: neither the sink's own, nor another former name's.

    What is covered was renamed in order: every commit since started where it, or a later name, had ended.
    """
    known = [(each, p) for each in former if (p := each.held.furthest) is not None]
    covering = {sink: [position] for sink, position in own.items() if position is not None}
    for each, position in sorted(known, key=lambda pair: sum(pair[1].next.values()), reverse=True):
        others = covering.setdefault(each.sink, [])
        if not any(_covers(other, position) for other in others):
            others.append(position)
            yield each, position


def _covers(one: Position, other: Position) -> bool:
    """Whether a position is at or after another in every partition."""
    for at, end in other.next.items():
        ids = other.topic_ids.get(at.topic, ())
        offset = one.offset_of(at, ids[-1] if ids else None)
        if offset is None or offset < end:
            return False
    return True


_RENAMED = (
    "A sink can only be renamed while its target ends where the next batch starts; otherwise rows would be duplicated "
    "or lost."
)


def _renamed(each: FormerName, position: Position, token: BatchToken | None) -> TerminalError:
    name = each.held.sink
    batch = "the first one" if token is None else f"{token.batch_id}: {token.describe_ranges()}"
    return TerminalError(
        "SINK_RENAMED",
        f"sink {each.sink}: the target has rows of this pipeline under the name {name}, which is no longer in the file",
        context={"next batch": batch, f"target under the name {name}": position.describe()},
        hint=f"put the name {name} back, and let a run finish the open batch: penstock run FILE\n"
        "then rename the sink, and run again",
    )


def next_token(files: CheckpointFiles, committed: int | None) -> BatchToken | None:
    """The next batch of a run according to the checkpoint, if known."""
    query_id, begun = files.query_id, files.begun
    if query_id is None:
        return None
    ids = files.topic_ids
    if begun is not None and (committed is None or committed < begun):
        ends = files.ends(begun)
        starts = files.ends(begun - 1) if begun > 0 else files.initial
        if ends is None or starts is None:
            return None
        batch = ranges_of_batch(starts, ends)
        return BatchToken("", query_id, begun, batch.ranges, ids, seen=batch.seen if begun else frozenset())
    at = files.ends(committed) if committed is not None else files.initial
    if at is None:
        return None
    number = committed + 1 if committed is not None else 0
    ranges = tuple(OffsetRange(p.topic, p.partition, o, o) for p, o in at.items())
    return BatchToken("", query_id, number, ranges, ids, seen=frozenset(at) if number else frozenset())


def _compared(
    path: str, files: CheckpointFiles, one: Standing, token: BatchToken | None, done: int | None
) -> Iterable[Finding]:
    held = one.newest
    assert held is not None or one.position is not None
    batch = held.batch_id if held is not None else -1
    newest = files.newest
    if held is not None and held.query_id == files.query_id and held.rule is not Rule.MOVES:
        if newest is None or batch > newest:
            sides = {
                "checkpoint": describe_batches(files.begun, done),
                f"sink {one.sink}": f"batch {batch}, {held.describe_ranges()}",
            }
            yield Finding(
                Verdict.CHECKPOINT_WENT_BACK.value,
                True,
                f"sink {one.sink} has batch {batch}, which checkpoint {path} has not started",
                sides,
                "The checkpoint was set back: a file was lost, or an older copy was restored. A run would assign "
                "other offsets to the batch.",
                f"{REPAIR}\n{RESTORE}\n{AFRESH}",
            )
            return
        ends = other_ends(files, held)
        if ends is not None:
            yield Finding(
                Verdict.TOKEN_MISMATCH.value,
                True,
                f"sink {one.sink} has batch {batch} with other offsets than checkpoint {path}",
                {"checkpoint": _places(held.starts, ends), f"sink {one.sink}": held.describe_ranges()},
                "The checkpoint was set back and assigned other offsets to the batch, or it was edited by hand.",
                f"{REPAIR}\n{RESTORE}\n{AFRESH}",
            )
            return
    position = one.position
    if token is None or position is None or (held is not None and _in_flight(held, token, files, done)):
        return
    verdict = decide(position, replace(token, rule=Rule.FORWARD) if one.sparse else token)
    if verdict not in (Verdict.NEXT, Verdict.COMMITTED):
        yield from_error(contradiction(one.sink, verdict, position, token), means=_MEANS.get(verdict, ""))


def other_ends(files: CheckpointFiles, held: BatchToken) -> Offsets | None:
    """The end of a target's batch in the checkpoint, if it differs from the target."""
    batch = held.batch_id
    planned = next((each.ends for each in files.again if each.batch_id == batch), None)
    ends = planned if planned is not None else files.offsets[batch].ends if batch in files.offsets else None
    return ends if ends != held.ends and any(len(r) for r in held.ranges) else None


_MEANS = {
    Verdict.TARGET_WENT_BACK: "The table or database was restored from an older copy: the rows in between are "
    "missing, and a run would not write them again by itself.",
    Verdict.FENCED: "Another run with another checkpoint has since continued from this target.",
}


def _in_flight(held: BatchToken, token: BatchToken, files: CheckpointFiles, done: int | None) -> bool:
    """For a running stream: the target or the checkpoint advanced while the other was read.

    `done` is the last batch committed before the target was read.
    """
    moved_on = files.committed is not None and (done is None or done < files.committed)
    least = (done if done is not None else 0) if moved_on else token.batch_id
    return held.query_id == token.query_id and held.batch_id >= least and held.batch_id in files.offsets


def _quarantine_findings(one: Standing, token: BatchToken | None, standings: Sequence[Standing]) -> Iterable[Finding]:
    carried, position = carried_number(one.sink, standings), one.position
    if (position.number if position is not None else 0) >= carried or token is None:
        return
    yield from_error(
        contradiction(one.sink, Verdict.TARGET_WENT_BACK, position, token),
        means="According to the positions of the sinks, the quarantine had more commits: it has lost quarantined "
        "records.",
    )


def _unreachable(one: Standing) -> Finding:
    return Finding(
        "SINK_UNREACHABLE",
        True,
        f"the position of sink {one.sink} cannot be read",
        {"sink": one.error or ""},
        "It is unknown whether it agrees with the checkpoint. A run would fail too.",
        "make it reachable or correct its settings, then check again: penstock checkpoint verify FILE",
    )


def _empty(one: Standing, done: int, token: BatchToken | None, noted: NotedSink | None) -> Finding:
    written = noted is not None and noted.target == one.target and noted.first_batch <= done
    if written and token is not None:
        return from_error(
            contradiction(one.sink, Verdict.TARGET_WENT_BACK, None, token),
            means="This checkpoint has written to the target before, but the target has none of its rows: it "
            "was dropped, or restored to before the first batch.",
        )
    return Finding(
        "SINK_HOLDS_NOTHING",
        False,
        f"sink {one.sink} has no batch of this pipeline, but batch {done} is committed",
        {},
        "The sink is new. A run continues, and writes new rows to it from now on.",
        f"to write the earlier rows: penstock replay FILE --sink {one.sink} --from earliest --to committed",
    )


def ranges_behind(position: Position | None, to: Offsets, fallback: Offsets) -> list[OffsetRange]:
    """What a target lacks up to some offsets. An empty target lacks everything from `fallback` on."""
    found = []
    held = position.next if position is not None and position.last.batch_id >= 0 else {}
    for at, end in sorted(to.items()):
        start = held[at] if at in held else fallback.get(at, 0)
        if start < end:
            found.append(OffsetRange(at.topic, at.partition, start, end))
    return found


def _places(starts: Offsets, ends: Offsets) -> str:
    shown = ", ".join(f"{at} {starts.get(at, 0)}-{end}" for at, end in sorted(ends.items())[:_SHOWN])
    return shown + (f" and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else "")
