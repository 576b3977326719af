"""What redrives and replays do, one atomic step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.model.runs import DONE, QUARANTINE_WENT_BACK, Outcome, Runs
from tests.model.world import (
    BY_RECORD,
    OTHER,
    TABLE_OF,
    TOPICS,
    Process,
    Row,
    Vector,
    World,
    claimed,
    everything,
    is_before,
    keeps_out,
    load,
    number_of,
    reached,
    records_of,
    token_of,
    with_rule,
)

from penstock.model import Rule, Verdict


class Machine(Runs):
    """What all processes do in a scenario, under some rules."""

    def redrive(self, world: World, slot: int) -> Outcome:
        """Start a redrive of everything in the quarantine."""
        world, query = world.new_query()
        process = Process("redrive", world.definition, world.sinks, "ask", query=query, todo=world.sinks)
        return Outcome("start a redrive", world.process(slot, process))

    def _ask(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Read the position of the redrive, then ask the target which of the records it holds."""
        if self.lacks(world):
            yield Outcome("read the quarantine", world.process(slot, None), QUARANTINE_WENT_BACK, process)
            return
        sink = process.todo[0]
        target, quarantine = world.target(TABLE_OF[sink]), world.target("q")
        held = {row.record for row in target.now.rows if row.owner != OTHER} if self.rules.redrive_asks else set()
        end = reached(target.position(sink))
        rows = [
            Row(row.record, sink, "redrive")
            for row in quarantine.now.rows
            if keeps_out(row, sink)
            and row.record not in held
            and (self.rules.marks_are_hints or (sink, row.record) not in world.marks)
            and not self.scenario.is_bad(process.definition, row.record)
            and (is_before(row.record, end) or not self.rules.redrive_waits)
        ]
        rest = process.todo[1:]
        then = process._replace(step="drive", bad=tuple(rows))
        then = then.knows(sink, target.position(f"{BY_RECORD}/{sink}"), own=False)
        then = then.knows("q", quarantine.position("q"), own=False)
        shown = ", ".join(str(row.record) for row in rows) or "nothing"
        if not rows:
            done = None if not rest else process._replace(todo=rest)
            event = None if rest else DONE
            yield Outcome(f"ask {sink}: nothing is left", world.process(slot, done), event, process)
            return
        yield Outcome(f"ask {sink}: {shown} to write", world.process(slot, then))

    def _drive(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        sink, held = process.todo[0], process.at(process.todo[0])
        owner = f"{BY_RECORD}/{sink}"
        token = with_rule(self._spanning(process.bad, process.query, process.turn), Rule.RECORDS)
        verdict = self.rules.verdict(held, token)
        if verdict is not Verdict.NEXT:
            yield Outcome(f"write to {sink}", world.process(slot, None), verdict.value, process)
            return
        compares = self.rules.redrive_compares
        position = self.rules.position(held if compares else world.target(TABLE_OF[sink]).position(owner), token)
        landed = self.land(world, TABLE_OF[sink], owner, held, position, process.bad, compares=compares)
        again = process._replace(step="ask", bad=(), known=(), own=(), turn=process.turn + 1)
        if landed is None:
            yield Outcome(f"write to {sink}: the position moved", world.process(slot, again))
            return
        marks = {(sink, row.record) for row in process.bad}
        landed = landed._replace(marks=tuple(sorted({*world.marks, *marks})))
        yield from self._landed(f"write to {sink}", landed, slot, again, again)

    def _spanning(self, rows: Iterable[Row], query: str, batch: int) -> str:
        """A token over the ranges that some records lie in."""
        start: list[tuple[int, int] | None] = [None] * len(TOPICS)
        end: list[tuple[int, int] | None] = [None] * len(TOPICS)
        for topic, generation, offset in (row.record for row in rows):
            start[topic] = min(start[topic] or (generation, offset), (generation, offset))
            end[topic] = max(end[topic] or (0, 0), (generation, offset + 1))
        return token_of(query, batch, tuple(start), tuple(end))

    # A replay in place: of everything before the position of the stream, under the definition as it is now.

    def replay(self, world: World, slot: int, sinks: tuple[str, ...]) -> Outcome:
        """Start a replay in place for some sinks."""
        label = f"start a replay in place of {', '.join(sinks)}"
        for sink in sinks:
            owners = {owner for owner, _ in world.target(TABLE_OF[sink]).now.positions}
            if OTHER in owners and self.rules.replay_refuses_others:
                return Outcome(label, world, "REPLAY_SHARED_TABLE")
        world, query = world.new_query()
        process = Process("replay", world.definition, sinks, "weigh", query=query, todo=sinks)
        return Outcome(label, world.process(slot, process))

    def _weigh(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Read the positions, and stage what goes in and what goes out."""
        if self.lacks(world):
            yield Outcome("read the quarantine", world.process(slot, None), QUARANTINE_WENT_BACK, process)
            return
        sink = process.todo[0]
        target, quarantine = world.target(TABLE_OF[sink]), world.target("q")
        end = reached(target.position(sink))
        records = [record for record in everything(world) if is_before(record, end)]
        known = [row.record for row in quarantine.now.rows if keeps_out(row, sink)]
        bad = [r for r in records if self.scenario.is_bad(process.definition, r)]
        rows = tuple(Row(r, "q", process.query, (sink,)) for r in bad if r not in known)
        out = tuple((sink, r) for r in records)
        then = process._replace(bad=rows, out=out, step="reject" if rows else "hold")
        then = then.knows(sink, target.position(f"{process.query}/{sink}"), own=False)
        then = then.knows("q", quarantine.position("q"), own=False)
        yield Outcome(f"read the positions for {sink} and stage", world.process(slot, then))

    def _reject(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        held = process.at("q")
        position = claimed(held, self._spanning(process.bad, process.query, 0), process.query)
        landed = self.land(world, "q", "q", held, position, process.bad)
        label = f"quarantine {', '.join(str(row.record) for row in process.bad)}"
        again = process._replace(step="weigh", bad=(), out=(), known=(), own=())
        if landed is None:
            yield Outcome(f"{label}: the position moved", world.process(slot, again))
            return
        then = process.knows("q", position, own=True)._replace(step="hold", bad=())
        yield from self._landed(label, landed, slot, then, again)

    def _hold(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Make redrives wait; what the quarantine holds by now is carried, as rows go out of the target for it."""
        if not self.rules.replay_holds:
            yield Outcome("do not hold up redrives", world.process(slot, process._replace(step="swap")))
            return
        world = self.give_up(world, process)
        landed = self._mark_record_position(world, process, Rule.HOLDS)
        yield Outcome(f"hold up redrives to {process.todo[0]}", landed.process(slot, process._replace(step="swap")))

    def _release(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        sink, rest = process.todo[0], process.todo[1:]
        then = process._replace(todo=rest, step="weigh", turn=process.turn + 1) if rest else None
        held = world.target(TABLE_OF[sink]).position(f"{BY_RECORD}/{sink}")
        landed = world
        if held is not None and load(held).last.query_id == process.query:  # else another replay holds them up
            landed = self._mark_record_position(world, process, Rule.MOVES)
        yield Outcome(f"let redrives to {sink} go on", landed.process(slot, then), None if rest else DONE, process)

    def give_up(self, world: World, instead: Process | None = None) -> World:
        """End the replays that hold redrives up, or another one that this one takes over from."""
        for sink in world.sinks if instead is None else instead.todo[:1]:
            held = world.target(TABLE_OF[sink]).position(f"{BY_RECORD}/{sink}")
            last = load(held).last if held is not None else None
            if last is None or last.rule is not Rule.HOLDS or (instead is not None and last.query_id == instead.query):
                continue
            # It may only hang: it must not replace anything when redrives have gone on.
            owner, nothing = f"{last.query_id}/{sink}", (None,) * len(TOPICS)
            before = world.target(TABLE_OF[sink]).position(owner)
            claim = claimed(before, token_of(last.query_id, -1, nothing, nothing), instead.query if instead else "")
            landed = self.land(world, TABLE_OF[sink], owner, before, claim)
            assert landed is not None
            world = landed
            if instead is None:
                ended = Process("replay", "", (sink,), "", query=last.query_id, todo=(sink,))
                world = self._mark_record_position(world, ended, Rule.MOVES)
        return world

    def _mark_record_position(self, world: World, process: Process, rule: Rule) -> World:
        sink = process.todo[0]
        owner, nothing = f"{BY_RECORD}/{sink}", (None,) * len(TOPICS)
        carried = number_of(process.at("q")) if self.rules.carries else 0
        held = world.target(TABLE_OF[sink]).position(owner)
        token = with_rule(token_of(process.query, process.turn, nothing, nothing), rule, carried)
        landed = self.land(world, TABLE_OF[sink], owner, held, self.rules.position(held, token))
        assert landed is not None
        return landed

    def _swap(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        """Take the rows of this pipeline and sink out and put the new ones in, in one commit."""
        sink = process.todo[0]
        records = {record for _, record in process.out}
        good = [
            r for r in sorted(records) if not self.scenario.is_bad(process.definition, r) and self._readable(world, r)
        ]
        rows = [Row(r, sink, "replay") for r in good]
        token = with_rule(
            self._spanning([Row(r, sink, "") for r in records], process.query, process.turn), Rule.RECORDS
        )
        owner = f"{process.query}/{sink}"
        held = process.at(sink)
        verdict = self.rules.verdict(held, token)
        if verdict is not Verdict.NEXT:
            yield Outcome(f"replace the rows of {sink}", world.process(slot, None), verdict.value, process)
            return
        ours = (lambda row: row.owner != OTHER) if self.rules.replay_refuses_others else (lambda row: True)
        landed = self.land(
            world,
            TABLE_OF[sink],
            owner,
            held,
            self.rules.position(held, token),
            rows,
            removing=lambda row: row.record in records and ours(row),
            replay=process.query,
        )
        again = process._replace(step="weigh", bad=(), out=(), known=(), own=(), turn=process.turn + 1)
        label = f"replace the rows of {sink}"
        if landed is None:
            yield Outcome(f"{label}: the position moved", world.process(slot, None), "SINK_COMMIT_CONFLICT", process)
            return
        yield Outcome(label, landed.process(slot, process._replace(step="release", bad=(), out=())))
        if self.scenario.can(world, "no answer"):
            landed = self.scenario.spend(landed, "no answer")
            yield Outcome(f"{label}, without an answer", landed.process(slot, again))

    # A replay elsewhere: into a table and a quarantine of its own.

    def copy(self, world: World, slot: int) -> Outcome:
        """Start a replay of everything into another table."""
        identity = f"replay-{world.definition}"
        if not self.rules.replay_identity:
            world, identity = world.new_query()
        process = Process("copy", world.definition, world.sinks, "copies", query=identity, todo=("copy_q", "copy"))
        return Outcome("start a replay elsewhere", world.process(slot, process))

    def _copies(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        name = process.todo[0]
        held = world.target(name).position(process.query)
        end = tuple(mark for mark in world.log)
        start: Vector = tuple((mark[0], 0) if mark is not None else None for mark in end)
        token = token_of(process.query, 0, start, end)
        rest = process.todo[1:]
        done = process._replace(todo=rest) if rest else None
        verdict = self.rules.verdict(held, token)
        if verdict is Verdict.COMMITTED:
            yield Outcome(f"{name} has it already", world.process(slot, done))
            return
        if verdict is not Verdict.NEXT:
            yield Outcome(f"read the position of {name}", world.process(slot, None), verdict.value, process)
            return
        then = process._replace(token=token, step="pour").knows(name, held, own=False)
        yield Outcome(f"read the position of {name}", world.process(slot, then))

    def _pour(self, world: World, slot: int, process: Process) -> Iterator[Outcome]:
        name, wanted = process.todo[0], process.todo[0] == "copy_q"
        kept = [r for r in records_of(process.token) if self.scenario.is_bad(process.definition, r) is wanted]
        held = process.at(name)
        rows = [Row(r, name, process.definition) for r in kept]
        landed = self.land(world, name, process.query, held, self.rules.position(held, process.token), rows)
        again = process._replace(token="", known=(), step="copies")
        if landed is None:
            yield Outcome(f"commit {name}: the position moved", world.process(slot, again))
            return
        yield from self._landed(f"commit {name}", landed, slot, again, again)
