"""What a run does, one atomic step at a time: its start, its batches, and bringing targets forward.

A step reads or writes one target, or the checkpoint. Between two steps of a process anything else may happen. A process
that hangs is one that takes no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.world import (
    BY_RECORD,
    EVERY,
    OTHER,
    TABLE_OF,
    TOPICS,
    Checkpoint,
    Process,
    Record,
    Row,
    Rules,
    Scenario,
    Table,
    Target,
    Vector,
    World,
    beyond,
    claimed,
    ends_of,
    everything,
    furthest,
    is_before,
    is_written,
    keeps_out,
    lineage,
    load,
    number_of,
    reached,
    records_of,
    token_of,
    with_rule,
)

from penstock.model import Rule, Verdict

DONE = "done"
"""The event of a run that has read everything and ends well. Other events are error codes."""
WENT_BACK = Verdict.TARGET_WENT_BACK.value
QUARANTINE_WENT_BACK = "TARGET_WENT_BACK of the quarantine"
"""The same code with other ways back, so that the model tells them apart."""
RESTORES = frozenset({"restore", "older copy", "restore the quarantine", "older copy of the quarantine"})
"""Actions that need the older copies of targets."""


BACKUPS = frozenset({"checkpoint back", "restore a backup"})
"""Actions that need the older copies of the checkpoint."""
CONFLICTS = 1
"""How often a run tries again after a position moved. The product tries more often; more adds nothing new here."""


class Outcome(NamedTuple):
    """What an action leads to."""

    label: str
    world: World
    event: str | None = None
    process: Process | None = None
    """The process that ended with the event."""


@dataclass(frozen=True)
class Runs:
    """What runs do in a scenario, under some rules."""

    scenario: Scenario
    rules: Rules

    def land(
        self,
        world: World,
        name: str,
        owner: str,
        onto: str | None,
        position: str,
        rows: Iterable[Row] = (),
        *,
        compares: bool = True,
        removing: Callable[[Row], bool] = lambda row: False,
        replay: str | None = None,
    ) -> World | None:
        """The commit of a sink: rows and position in one step; none where the target does not stand at `onto`."""
        target = world.target(name)
        if compares and self.rules.land_compares and target.position(owner) != onto:
            return None
        now = target.now
        table = Table(
            tuple(sorted({**dict(now.positions), owner: position}.items())),
            tuple(sorted([*(row for row in now.rows if not removing(row)), *rows])),
            tuple(pair for pair in now.lost if pair[0] != owner),
            tuple(sorted({*now.replays, replay})) if replay is not None else now.replays,
        )
        past = target.past
        if any(self.scenario.can(world, action) for action in RESTORES) and now not in past:
            past = (*past, now)
        world = world._replace(targets=tuple(one._replace(undo=None) for one in world.targets))
        return world.put(name, Target(table, past))

    def write_checkpoint(self, world: World, process: Process, checkpoint: Checkpoint) -> World | None:
        """Write offsets or a commit; none where another process has written to the same checkpoint meanwhile."""
        if not process.attached:
            return world
        if world.checkpoint != process.checkpoint:
            return None
        return self.place(world, checkpoint, attached=True)

    def place(self, world: World, checkpoint: Checkpoint | None, *, attached: bool = False) -> World:
        """Put a checkpoint in place; unless `attached`, processes go on with what they had."""
        older = world.older
        kept = any(self.scenario.can(world, action) for action in BACKUPS)
        if kept and checkpoint is not None and checkpoint not in older:
            older = (*older, checkpoint)
        world = world._replace(checkpoint=checkpoint, older=older if kept else ())
        if not attached:
            away = (p._replace(attached=False) if p is not None else None for p in world.processes)
            world = world._replace(processes=tuple(away))
        return world

    def start(self, world: World, slot: int, mode: str) -> Outcome:
        """Start a run: compare the checkpoint with every target, and stop where they contradict each other."""
        label = f"start {'the run' if mode == 'run' else f'with {mode}'}"
        checkpoint = world.checkpoint
        quarantine = world.target("q").position("q")
        went_back = self.lacks(world)
        if went_back and mode in ("run", "resume"):
            return Outcome(label, world, QUARANTINE_WENT_BACK)
        is_new = checkpoint is None
        if checkpoint is None:
            world, query = world.new_query()
            ends = world.ends(subscribed=world.subscribed)
            checkpoint = Checkpoint(query, 0, (tuple((mark[0], 0) if mark is not None else None for mark in ends),))
            world = self.place(world, checkpoint)
        held = {sink: world.target(TABLE_OF[sink]).position(sink) for sink in world.sinks}
        queue: list[tuple[str, Vector]] = []
        if "resume" in mode and checkpoint.is_fresh:
            world, checkpoint, queue = self.rebuild(world, checkpoint, held, quarantine, opens=False)
            world = self.place(world, checkpoint)
            queue = [*([("q", checkpoint.start)] if went_back else []), *queue]
        if mode == "catch-up" and not is_new:
            behind = [sink for sink, text in held.items() if self.is_behind(checkpoint, sink, text)]
            lacking = ["q"] if went_back else []
            names = [*lacking, *behind] if self.rules.recovers_first else [*behind, *lacking]
            queue = [(name, checkpoint.start) for name in names]
        step, query = "plan", ""
        todo: tuple[str, ...] = ()
        if queue:
            world, query = world.new_query()
            step = "catch"
        elif mode == "accept" and checkpoint.is_fresh:
            step, todo = "move", (*world.sinks, "q")
        else:
            code = self.contradiction(world, checkpoint, world.sinks)
            if code is not None:
                return Outcome(label, world, code)
        world, run = world.new_query()
        process = Process("run", world.definition, world.sinks, step, world.subscribed, run, query, checkpoint)
        least = tuple(sorted((sink, number_of(text)) for sink, text in held.items())) if self.rules.start_counts else ()
        process = process._replace(queue=tuple(queue), todo=todo, least=least)
        return Outcome(label, world.process(slot, process))

    def carried(self, world: World) -> int:
        """The greatest number of the quarantine that any commit of the pipeline carries."""
        found = [0]
        for name in ("t1", "t2"):
            for owner, text in world.target(name).now.positions:
                if owner in TABLE_OF or owner.startswith(BY_RECORD):
                    found.append(load(text).last.quarantine.get("q", 0))
        return max(found)

    def lacks(self, world: World) -> bool:
        """Whether the quarantine has had more commits than it shows."""
        none = token_of("", 0, (None, None), (None, None), Rule.FORWARD)
        held = world.target("q").position("q")
        return self.rules.verdict(held, none, self.carried(world)) is Verdict.TARGET_WENT_BACK

    def is_behind(self, checkpoint: Checkpoint, sink: str, held: str | None) -> bool:
        """Whether a sink went back behind the start of the next batch."""
        if held is None:
            first = dict(checkpoint.seen).get(sink)
            return self.rules.reads_hints and first is not None and first < checkpoint.next_batch
        return self.rules.verdict(held, next_token(checkpoint)) is Verdict.TARGET_WENT_BACK

    def contradiction(self, world: World, checkpoint: Checkpoint, sinks: tuple[str, ...]) -> str | None:
        """The code of the first contradiction between a checkpoint and the targets."""
        token = next_token(checkpoint)
        found: list[Verdict] = []
        for sink in sinks:
            held = world.target(TABLE_OF[sink]).position(sink)
            for one, table in TABLE_OF.items():
                before = world.target(table).position(one)
                if one in sinks or table != TABLE_OF[sink] or before is None or not self.rules.notices_rename:
                    continue
                fine = (Verdict.NEXT,) if held is None else (Verdict.NEXT, Verdict.TARGET_WENT_BACK)
                if self.rules.verdict(before, token) not in fine:
                    return "SINK_RENAMED"
            went_back = self.is_behind(checkpoint, sink, held)
            found.append(Verdict.TARGET_WENT_BACK if went_back else self.rules.verdict(held, token))
        quarantine = world.target("q").position("q")
        found.append(self.rules.verdict(quarantine, with_rule(token, Rule.FORWARD)))
        for verdict in found:
            if verdict is Verdict.FENCED and checkpoint.is_fresh:
                return "SINK_HOLDS_OTHER_RUN"
            if verdict not in (Verdict.NEXT, Verdict.COMMITTED):
                return str(verdict.value)
        return None

    def rebuild(
        self,
        world: World,
        checkpoint: Checkpoint,
        held: Mapping[str, str | None],
        quarantine: str | None,
        *,
        opens: bool,
    ) -> tuple[World, Checkpoint, list[tuple[str, Vector]]]:
        """A checkpoint from what the targets hold, and the sinks that have to be brought forward first.

        With `opens` the newest batch is left open where not every sink has it, so that it runs again.
        """
        written = [text for text in held.values() if is_written(text)]
        if is_written(quarantine) and self.rules.resume_asks_quarantine:
            written.append(quarantine)
        if not written:
            return world, checkpoint, []
        ends = {sink: reached(text) for sink, text in held.items()}
        goal = furthest(reached(text) for text in written)
        newest = [
            load(text).last
            for text in written
            if text is not None and reached(text) == goal and load(text).last.batch_id >= 0
        ]
        if opens and any(beyond(goal, end) for end in ends.values()):
            for last in newest:
                start, end = ends_of(last.to_json())
                fits = all(one == end or not beyond(one, start) for one in ends.values())
                if fits and end == goal and start != end:
                    behind = [(sink, start) for sink, one in ends.items() if beyond(start, one)]
                    return world, Checkpoint(last.query_id, last.batch_id, (start, goal)), behind
        world, query = world.new_query()
        behind = [(sink, goal) for sink, one in ends.items() if beyond(goal, one)]
        return world, Checkpoint(query, 0, (goal,)), behind

    def steps(self, world: World, slot: int) -> Iterator[Outcome]:
        """What a process may do next."""
        process = world.processes[slot]
        assert process is not None
        for outcome in getattr(self, f"_{process.step}")(world, slot, process):
            yield outcome._replace(label=f"{process.kind} {slot + 1}: {outcome.label}")

    def _moved(self, world: World, slot: int, process: Process, label: str) -> Outcome:
        """A position is not what the process believed: it reads all of them again and stages anew."""
        label = f"{label}: the position moved"
        if process.conflicts == CONFLICTS:
            return Outcome(label, world.process(slot, None), "SINK_COMMIT_CONFLICT", process)
        return Outcome(label, world.process(slot, self._restart(process._replace(conflicts=process.conflicts + 1))))

    def _landed(self, label: str, world: World, slot: int, then: Process, again: Process) -> Iterator[Outcome]:
        """A commit that landed, or that landed without an answer."""
        yield Outcome(label, world.process(slot, then))
        if self.scenario.can(world, "no answer"):
            world = self.scenario.spend(world, "no answer")
            yield Outcome(f"{label}, without an answer", world.process(slot, again))

    def _restart(self, process: Process) -> Process:
        step = "catch" if process.queue else "look"
        return process._replace(step=step, known=(), own=(), began=False, todo=(), out=(), bad=())

    def _move(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Move a position back to the start of the checkpoint, because duplicates are accepted."""
        checkpoint, target = process.checkpoint, process.todo[0]
        assert checkpoint is not None
        rest = process._replace(todo=process.todo[1:], step="move" if process.todo[1:] else "plan")
        name = TABLE_OF.get(target, "q")
        held = world.target(name).position(target)
        token = with_rule(token_of(checkpoint.query, -1, checkpoint.start, checkpoint.start), Rule.MOVES)
        label = f"move the position of {target}"
        # A quarantine that went back is taken as it is: everything is read again.
        least = self.carried(world) if target == "q" else 0
        if held is None and not least:
            yield Outcome(f"{label}: it has none", world.process(slot, rest))
            return
        verdict = self.rules.verdict(held, token)
        if verdict is Verdict.COMMITTED:
            yield Outcome(f"{label}: it stands there", world.process(slot, rest))
            return
        if verdict is not Verdict.NEXT:
            yield Outcome(label, world.process(slot, None), verdict.value, process)
            return
        landed = self.land(world, name, target, held, self.rules.position(held, token, least))
        assert landed is not None
        excused = {(lineage(sink), r) for sink in process.sinks for r in everything(world)}
        landed = landed._replace(pardoned=tuple(sorted({*world.pardoned, *excused})))
        yield Outcome(label, landed.process(slot, rest))

    def _plan(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Between two batches: take the open one, or write the offsets of a new one, or end."""
        checkpoint = process.checkpoint
        assert checkpoint is not None
        process = process._replace(token="", todo=(), out=(), bad=(), queue=(), query="")
        if checkpoint.is_open:
            token = next_token(checkpoint)
            yield Outcome(
                f"take batch {show(token)} again",
                world.process(slot, process._replace(token=token, step="look", began=False)),
            )
            return
        ends = self._ends(world, checkpoint.start, world.ends(subscribed=process.subscribed))
        if not ends:
            yield Outcome("everything is read", world.process(slot, None), DONE, process)
        for end in ends:
            begun = checkpoint._replace(marks=(*checkpoint.marks, end))
            token = token_of(checkpoint.query, checkpoint.next_batch, checkpoint.start, end)
            written = self.write_checkpoint(world, process, begun)
            if written is None:
                yield Outcome("write offsets: another run has", world.process(slot, None), "CONCURRENT_RUN", process)
                return
            known = set(process.own) == {*process.sinks, "q"} and all(
                self.rules.verdict(process.at(sink), token) is Verdict.NEXT for sink in process.sinks
            )
            step = "quarantine" if known else "look"
            later = process._replace(
                checkpoint=begun, token=token, step=step, began=True, todo=process.sinks if step != "look" else ()
            )
            yield Outcome(f"begin batch {show(token)}", written.process(slot, later))

    def _ends(self, world: World, start: Vector, limit: Vector) -> list[Vector]:
        """Where a batch from `start` may end."""
        found: list[Vector] = [()]
        for before, last in zip(start, limit, strict=True):
            if last is None:
                found = [(*some, None) for some in found]
                continue
            generation, end = last
            offset = before[1] if before is not None and before[0] == generation else 0
            steps = {min(offset + size, end) for size in (0, *self.scenario.sizes)}
            found = [(*some, (generation, each)) for some in found for each in sorted(steps)]
        return [end for end in found if beyond(end, start)]

    def _look(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Read the position of every sink that the batch is for, and decide."""
        todo = []
        for sink in process.sinks:
            held = process.at(sink) if sink in process.own else world.target(TABLE_OF[sink]).position(sink)
            verdict = self.rules.verdict(held, process.token, dict(process.least).get(sink, 0))
            if verdict not in (Verdict.NEXT, Verdict.COMMITTED):
                yield Outcome(f"read the position of {sink}", world.process(slot, None), verdict.value, process)
                return
            process = process.knows(sink, held, own=sink in process.own)
            if verdict is Verdict.NEXT:
                todo.append(sink)
        step = "quarantine" if todo else "finish"
        if not self.rules.committed_are_kept and process.token:
            step = "quarantine"
        then = process._replace(todo=tuple(todo), step=step)
        yield Outcome("read the positions", world.process(slot, then))

    def _quarantine(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Read the quarantine, and stage."""
        own = "q" in process.own
        table = world.target("q")
        held = process.at("q") if own else table.position("q")
        catching = bool(process.queue)
        known = [load(text) for name, text in process.known if text is not None and name != "q"]
        carried = max((position.last.quarantine.get("q", 0) for position in known), default=0)
        verdict = self.rules.verdict(held, with_rule(process.token, Rule.FORWARD), carried)
        code = QUARANTINE_WENT_BACK if verdict is Verdict.TARGET_WENT_BACK else verdict.value
        if code == QUARANTINE_WENT_BACK or (not catching and verdict not in (Verdict.NEXT, Verdict.COMMITTED)):
            yield Outcome("read the quarantine", world.process(slot, None), code, process)
            return
        records = records_of(process.token)
        asks = self.rules.catch_up_asks if catching else self.rules.binding
        reads = not (own and process.began) or beyond(reached(held), ends_of(process.token)[0])
        if not catching and not self.rules.binds_by_record:
            reads = held is not None and load(held).last == load(process.token).last
        in_quarantine = [row for row in table.now.rows if row.record in records and reads]
        out = {(sink, row.record) for sink in process.todo for row in in_quarantine if asks and keeps_out(row, sink)}
        if catching and self.rules.catch_up_asks:
            sink = process.todo[0]
            out |= {(sink, row.record) for row in world.target(TABLE_OF[sink]).now.rows if row.owner != OTHER}
        bad = [record for record in records if self.scenario.is_bad(process.definition, record)]
        rows: list[Row] = []
        for record in bad:
            scope: tuple[str, ...] = EVERY
            if (not catching and len(process.todo) == len(process.sinks)) or not self.rules.committed_are_kept:
                new = not any(row.record == record for row in in_quarantine)
            else:
                scope = tuple(
                    s for s in process.todo if not any(r.record == record and keeps_out(r, s) for r in in_quarantine)
                )
                if catching:
                    scope = tuple(s for s in scope if (s, record) not in out)
                new = bool(scope)
            if new:
                rows.append(Row(record, "q", "stream", scope))
        if not self.rules.additions and any(row.record in records for row in in_quarantine):
            rows = []
        out |= {(sink, record) for sink in process.todo for record in bad}
        here = {pair for pair in out if pair[1] in records}
        process = process.knows("q", held, own=own)._replace(out=tuple(sorted(here)), bad=tuple(rows))
        strange = [sink for sink in process.todo if sink not in process.own]
        if not self.rules.takes_over:
            step = "fill" if rows else "put"
        elif rows and strange:
            step = "touch"
        else:
            step = "fill" if rows or not own else "put"
        if step == "put" and not process.todo:
            step = "finish"
        if not self.rules.quarantine_first and process.todo:
            step = "put"
        yield Outcome("read the quarantine and stage", world.process(slot, process._replace(step=step)))

    def _touch(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Take over a sink: the next number, without rows."""
        sink = next(sink for sink in process.todo if sink not in process.own)
        position = claimed(process.at(sink), process.token, process.run)
        landed = self.land(world, TABLE_OF[sink], sink, process.at(sink), position)
        label = f"take over {sink}"
        if landed is None:
            yield self._moved(world, slot, process, label)
            return
        process = process.knows(sink, position, own=True)
        strange = [one for one in process.todo if one not in process.own]
        then = process._replace(step="touch" if strange else "fill")
        yield from self._landed(label, landed, slot, then, self._restart(process))

    def _fill(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Commit the quarantine: with the batch's token where it is the batch's first commit there."""
        held, forward = process.at("q"), with_rule(process.token, Rule.FORWARD)
        position = claimed(held, process.token, process.run)
        if process.bad and process.queue:
            position = self.rules.position(held, with_rule(process.token, Rule.RECORDS))
        elif process.bad and self.rules.verdict(held, forward) is Verdict.NEXT:
            position = self.rules.position(held, forward)
        landed = self.land(world, "q", "q", held, position, process.bad)
        shown = ", ".join(str(row.record) for row in process.bad) or "nothing"
        label = f"commit the quarantine with {shown}"
        if landed is None:
            yield self._moved(world, slot, process, label)
            return
        step = "put" if process.todo and self.rules.quarantine_first else "finish"
        then = process.knows("q", position, own=True)._replace(step=step)
        yield from self._landed(label, landed, slot, then, self._restart(process))

    def _put(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Commit a sink."""
        sink = process.todo[0]
        held = process.at(sink)
        if not self.rules.stages_again:
            held = world.target(TABLE_OF[sink]).position(sink)
            if self.rules.verdict(held, process.token) is not Verdict.NEXT:
                yield self._moved(world, slot, process, f"commit {sink}")
                return
        token = with_rule(process.token, Rule.FOLLOWS, number_of(process.at("q")))
        position = self.rules.position(held, token)
        kept = [r for r in records_of(process.token) if (sink, r) not in process.out and self._readable(world, r)]
        landed = self.land(world, TABLE_OF[sink], sink, held, position, [Row(r, sink, "stream") for r in kept])
        shown = ", ".join(map(str, kept)) or "nothing"
        label = f"commit {sink} with {shown}"
        if landed is None:
            yield self._moved(world, slot, process, label)
            return
        since = dict(world.since)
        if not process.queue and lineage(sink) not in since:
            since[lineage(sink)] = ends_of(process.token)[0]
            landed = landed._replace(since=tuple(sorted(since.items())))
        rest = process.todo[1:]
        then = process.knows(sink, position, own=True)._replace(todo=rest, step="put" if rest else "finish")
        if not rest and not self.rules.quarantine_first:
            then = then._replace(step="fill" if process.bad else "finish")
        yield from self._landed(label, landed, slot, then, self._restart(process))

    def _readable(self, world: World, record: Record) -> bool:
        mark = world.log[record.topic]
        return mark is not None and mark[0] == record.generation

    def _finish(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """The batch is in every sink: write its commit."""
        cleared = process._replace(token="", todo=(), out=(), bad=())
        if process.queue:
            yield Outcome("go on", world.process(slot, cleared._replace(step="catch", turn=process.turn + 1)))
            return
        checkpoint = process.checkpoint
        assert checkpoint is not None
        seen = dict.fromkeys(process.sinks, checkpoint.next_batch) | dict(checkpoint.seen)
        done = checkpoint._replace(committed=checkpoint.committed + 1, seen=tuple(sorted(seen.items())))
        written = self.write_checkpoint(world, process, done)
        if written is None:
            yield Outcome("write the commit: another run has", world.process(slot, None), "CONCURRENT_RUN", process)
            return
        yield Outcome(
            f"end batch {show(process.token)}", written.process(slot, cleared._replace(checkpoint=done, step="plan"))
        )

    def _catch(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Bring the next sink of the queue forward."""
        if not process.queue:
            assert process.checkpoint is not None
            code = self.contradiction(world, process.checkpoint, process.sinks)
            after = process._replace(step="plan", turn=0) if code is None else None
            yield Outcome("all are level", world.process(slot, after), code, process if code else None)
            return
        sink, goal = process.queue[0]
        rest = process._replace(queue=process.queue[1:])
        if sink == "q":
            yield self._missing(world, slot, process)
            return
        held = process.at(sink) if sink in process.own else world.target(TABLE_OF[sink]).position(sink)
        at = reached(held)
        ends = self._ends(world, at, goal)
        if not ends:
            yield Outcome(f"{sink} is level", world.process(slot, rest))
        for end in ends:
            start = tuple(
                a if a is None or e is None or a[0] == e[0] else (e[0], 0) for a, e in zip(at, end, strict=True)
            )
            token = token_of(process.query, process.turn, start, end)
            later = process.knows(sink, held, own=sink in process.own)
            later = later._replace(token=token, step="quarantine", todo=(sink,), began=False)
            yield Outcome(f"bring {sink} forward by {show(token)}", world.process(slot, later))

    def _missing(self, world: World, slot: int, process: Process) -> Outcome:
        """Ask every target for the records that neither it nor the quarantine holds."""
        quarantine, checkpoint = world.target("q"), process.checkpoint
        assert checkpoint is not None
        if not self.lacks(world):
            return Outcome("the quarantine is level", world.process(slot, process._replace(queue=process.queue[1:])))
        rows = []
        for record in everything(world):
            scope = []
            for sink in process.sinks:
                table = world.target(TABLE_OF[sink])
                held = any(row.record == record and row.owner != OTHER for row in table.now.rows)
                held |= any(row.record == record and keeps_out(row, sink) for row in quarantine.now.rows)
                at = reached(quarantine.position("q"))
                asked = self.rules.recovers_all or not is_before(record, at)
                asked &= self.rules.recovers_open or is_before(record, checkpoint.start)
                if not held and asked and is_before(record, reached(table.position(sink))):
                    scope.append(sink)
            if scope:
                rows.append(Row(record, "q", "stream", EVERY if len(scope) == len(process.sinks) else tuple(scope)))
        level = furthest(reached(world.target(TABLE_OF[sink]).position(sink)) for sink in process.sinks)
        start: Vector = tuple((mark[0], 0) if mark is not None else None for mark in level)
        token = with_rule(token_of(process.query, process.turn, start, level), Rule.RECORDS)
        if self.rules.recovers_at_once and checkpoint.is_open and beyond(level, checkpoint.start):
            # It stands as after the first attempt of the open batch.
            token = with_rule(next_token(checkpoint), Rule.FORWARD)
        process = process.knows("q", quarantine.position("q"), own=False)
        process = process._replace(bad=tuple(rows), step="refill", token=token)
        return Outcome("look for records that no target holds", world.process(slot, process))

    def _refill(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        held = process.at("q")
        verdict = self.rules.verdict(held, process.token)
        if verdict not in (Verdict.NEXT, Verdict.COMMITTED):
            yield Outcome("bring the quarantine forward", world.process(slot, None), verdict.value, process)
            return
        rows, rest = process.bad, process.bad[:0]
        if not self.rules.recovers_at_once:
            rows, rest = rows[:1], rows[1:]
        position = self.rules.position(held, process.token, 0 if rest else self.carried(world))
        landed = self.land(world, "q", "q", held, position, rows)
        shown = ", ".join(str(row.record) for row in rows) or "nothing"
        label = f"bring the quarantine forward with {shown}"
        if landed is None:
            yield Outcome(
                f"{label}: the position moved", world.process(slot, process._replace(step="catch", bad=(), token=""))
            )
            return
        then = process.knows("q", position, own=True)._replace(step="catch", queue=process.queue[1:], bad=(), token="")
        if rest:
            start, end = ends_of(process.token)
            token = with_rule(token_of(process.query, process.turn + 1, start, end), Rule.RECORDS)
            then = process.knows("q", position, own=True)._replace(bad=rest, token=token, turn=process.turn + 1)
        yield Outcome(label, landed.process(slot, then))


def next_token(checkpoint: Checkpoint) -> str:
    """The batch that a checkpoint runs next: the open one, or one without records at the end of the last."""
    end = checkpoint.marks[checkpoint.committed + 1] if checkpoint.is_open else checkpoint.start
    return token_of(checkpoint.query, checkpoint.next_batch, checkpoint.start, end)


def show(token: str) -> str:
    """A batch, for people."""
    start, end = ends_of(token)
    ranges = [
        f"{TOPICS[at]} {s[1]}-{e[1]}" for at, (s, e) in enumerate(zip(start, end, strict=True)) if s and e and s != e
    ]
    last = load(token).last
    return f"{last.query_id}/{last.batch_id} [{', '.join(ranges)}]"
