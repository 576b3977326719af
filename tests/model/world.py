"""The state that is explored: topics, targets with their positions and rows, a quarantine, a checkpoint, processes.

Everything is an immutable tuple, so that states can be compared and remembered. A target stores positions as the
product does, as the text of `Position.to_json`, and keeps its older copies for as long as an operator may go back to
them. `Rules` holds the product's decision function and the rules of the protocol around it; a mutation replaces one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from penstock.model import BatchToken, OffsetRange, Position, Rule, TopicPartition, Verdict, decide

PIPELINE = "orders"
OTHER = "returns"
"""A second pipeline that writes to the first table."""
BY_RECORD = "orders.redrive"
"""The pipeline name under which redrives keep their position, and replays in place hold them up."""
TOPICS = ("a", "b")
TABLE_OF = {"s1": "t1", "renamed": "t1", "s2": "t2"}
"""The table of each sink that the pipeline may have; a renamed sink keeps its table."""
NAMES = ("t1", "t2", "q", "copy", "copy_q")
"""Two tables, the quarantine, and the table and quarantine of replays elsewhere."""
EVERY: tuple[str, ...] = ()
"""The scope of a quarantined record that stays out of every sink."""

Mark = tuple[int, int]
"""The generation of a topic, which is deleted and created again, and an offset in it."""
Vector = tuple[Mark | None, ...]
"""For each topic where it stands; none where it is not known."""


class Record(NamedTuple):
    """One record, told apart also from the record that had its offset before the topic was created again."""

    topic: int
    generation: int
    offset: int

    def __str__(self) -> str:
        return f"{TOPICS[self.topic]}{self.generation or ''}:{self.offset}"


class Row(NamedTuple):
    """A record in a target or in the quarantine."""

    record: Record
    owner: str
    """The sink that wrote it; in a quarantine, the pipeline."""
    kind: str
    """stream, redrive, or the name of the replay that wrote it."""
    scope: tuple[str, ...] = EVERY
    """In a quarantine: the sinks that the record stays out of."""


Positions = tuple[tuple[str, str], ...]


class Table(NamedTuple):
    """One version of a target."""

    positions: Positions = ()
    rows: tuple[Row, ...] = ()
    lost: Positions = ()
    """Positions that its history shows, and that a restore took back."""
    replays: tuple[str, ...] = ()
    """The replays in place that this version contains. The product does not see this; the invariant does."""


class Target(NamedTuple):
    """A target: what it is now, the copies that it can go back to, and what a restore can be undone to."""

    now: Table = Table()
    past: tuple[Table, ...] = ()
    undo: Table | None = None

    def position(self, owner: str) -> str | None:
        """What the target says it holds, in the stored form."""
        found = dict(self.now.positions).get(owner)
        if found is None and owner in (lost := dict(self.now.lost)):
            return Position.nothing_left(load(lost[owner])).to_json()
        return found


class Checkpoint(NamedTuple):
    """A checkpoint: the query, and where each batch ends. Open batches have offsets and no commit."""

    query: str
    first: int
    """The id of the first batch that it knows."""
    marks: tuple[Vector, ...]
    """Where the first batch starts, and where each one ends."""
    committed: int = 0
    """How many of these batches Spark calls committed."""
    seen: tuple[tuple[str, int], ...] = ()
    """A hint: the batch with which each sink was first written under this checkpoint."""

    @property
    def is_open(self) -> bool:
        """Whether the newest batch has to run again."""
        return len(self.marks) - 1 > self.committed

    @property
    def next_batch(self) -> int:
        """The batch that runs next."""
        return self.first + self.committed

    @property
    def is_fresh(self) -> bool:
        """Whether it has no batch at all."""
        return len(self.marks) == 1

    @property
    def start(self) -> Vector:
        """Where the batch that runs next starts."""
        return self.marks[self.committed]


class Process(NamedTuple):
    """A run, a redrive or a replay between two of its steps. One that hangs is one that takes no step."""

    kind: str
    definition: str
    sinks: tuple[str, ...]
    step: str
    subscribed: bool = True
    """Whether its definition names the second topic too."""
    run: str = ""
    """Its own id, which no other process has."""
    query: str = ""
    """The query id of what it does besides the batches of a checkpoint."""
    checkpoint: Checkpoint | None = None
    began: bool = False
    """Whether it began the batch itself: nobody can have quarantined any of it before."""
    attached: bool = True
    """Whether the checkpoint that it writes to is still the one in its place."""
    token: str = ""
    """The batch that it works on."""
    known: tuple[tuple[str, str | None], ...] = ()
    """Where it believes the targets stand."""
    least: tuple[tuple[str, int], ...] = ()
    """How many commits it has seen each sink have."""
    own: tuple[str, ...] = ()
    """The targets whose position it wrote itself, as far as it knows."""
    todo: tuple[str, ...] = ()
    """The sinks that the batch still has to be committed to."""
    out: tuple[tuple[str, Record], ...] = ()
    """Records that stay out of a sink, as staged."""
    bad: tuple[Row, ...] = ()
    """What it is to add to the quarantine."""
    queue: tuple[tuple[str, Vector], ...] = ()
    """Sinks to bring forward first, and how far."""
    turn: int = 0
    """The batches that it has brought a sink forward by."""
    conflicts: int = 0
    """How often a position has moved under it; a run gives up after a few."""
    disturbed: bool = False
    """Whether a target was taken back since it started: the next start has to notice that."""

    def at(self, target: str) -> str | None:
        """Where it believes a target stands."""
        return dict(self.known).get(target)

    def knows(self, target: str, position: str | None, *, own: bool) -> Process:
        """The same, with another belief about one target."""
        known = {**dict(self.known), target: position}
        owns = {*self.own, target} if own else {*self.own} - {target}
        seen = self._replace(known=tuple(sorted(known.items())), own=tuple(sorted(owns)))
        return (
            seen
            if target == "q"
            else seen._replace(least=tuple(sorted({**dict(self.least), target: number_of(position)}.items())))
        )


class World(NamedTuple):
    """Everything."""

    log: Vector
    """For each topic its generation and how many records it has; none where it does not exist yet."""
    definition: str
    sinks: tuple[str, ...]
    targets: tuple[Target, ...]
    checkpoint: Checkpoint | None
    older: tuple[Checkpoint, ...]
    """Copies of the checkpoint that it can go back to, or that are backups of it."""
    processes: tuple[Process | None, ...]
    left: tuple[int, ...]
    """How often each action may still happen."""
    queries: int
    other: int
    """How far the second pipeline's own checkpoint is; -1 where there is no second pipeline."""
    subscribed: bool = True
    """Whether the definition names the second topic too."""
    since: tuple[tuple[str, Vector], ...] = ()
    """Where each sink was added: earlier records are not expected in it."""
    marks: tuple[tuple[str, Record], ...] = ()
    """What redrives have marked as written."""
    pardoned: tuple[tuple[str, Record], ...] = ()
    """Records that may be in a sink twice, because somebody accepted duplicates."""

    def ends(self, *, subscribed: bool) -> Vector:
        """How far the topics of a definition can be read."""
        return self.log if subscribed else (*self.log[:1], None)

    def target(self, name: str) -> Target:
        """One target."""
        return self.targets[NAMES.index(name)]

    def put(self, name: str, target: Target) -> World:
        """The same with one target changed."""
        at = NAMES.index(name)
        return self._replace(targets=(*self.targets[:at], target, *self.targets[at + 1 :]))

    def process(self, slot: int, process: Process | None) -> World:
        """The same with one process changed."""
        return self._replace(processes=(*self.processes[:slot], process, *self.processes[slot + 1 :]))

    def new_query(self) -> tuple[World, str]:
        """A query id that nobody has had."""
        return self._replace(queries=self.queries + 1), f"q{self.queries}"


@dataclass(frozen=True, eq=False)
class Rules:
    """The product's decision function, and the rules of the protocol around it."""

    decide: Callable[[Position | None, BatchToken, int], Verdict] = decide
    after: Callable[[Position | None, BatchToken, int], Position] = Position.after
    land_compares: bool = True
    """A commit lands only while the target stands where the process believes."""
    quarantine_first: bool = True
    """The quarantine is committed before the sinks."""
    binding: bool = True
    """What the quarantine holds of a batch that runs again stays out of the targets."""
    binds_by_record: bool = True
    """The same also where the quarantine's last commit was for another batch."""
    additions: bool = True
    """Newly bad records of a batch that the quarantine has already are added to it."""
    committed_are_kept: bool = True
    """A batch that runs again quarantines nothing for the sinks that have the batch already."""
    takes_over: bool = True
    """A process quarantines nothing before every sink, and lands nothing before the quarantine, stands at a position
    that it wrote itself."""
    stages_again: bool = True
    """A batch is staged anew when a position moved, not landed onto the new position as it was staged before."""
    carries: bool = True
    """A replay in place carries the number of the quarantine too."""
    recovers_first: bool = True
    """A quarantine that went back is brought forward before any sink."""
    recovers_all: bool = True
    """A quarantine that went back is asked for records before its position too."""
    recovers_open: bool = True
    """The same for records of a batch that is open, which some sinks have committed already."""
    recovers_at_once: bool = True
    """A quarantine that went back gets what it lost in one commit."""
    catch_up_asks: bool = True
    """Bringing a sink forward leaves out what the quarantine or the target holds."""
    redrive_asks: bool = True
    """A redrive leaves out what the target holds."""
    marks_are_hints: bool = True
    """A redrive does not believe its marks of what it has written before."""
    redrive_compares: bool = True
    """A redrive lands only onto the position that it read before asking."""
    redrive_waits: bool = True
    """A redrive takes only records before the position of the stream."""
    replay_holds: bool = True
    """A replay in place makes redrives wait before it replaces rows, and until it has."""
    replay_identity: bool = True
    """The same replay elsewhere has the same position."""
    replay_refuses_others: bool = True
    """A replay in place is refused where another pipeline writes to the table."""
    resume_asks_quarantine: bool = True
    """A resume from the table counts the quarantine's position too."""
    start_counts: bool = True
    """A target that had commits when the run started, and has fewer at the first batch, went back."""
    reads_hints: bool = True
    """A target that holds nothing and was written under this checkpoint went back."""
    notices_rename: bool = True
    """A sink under a new name waits until its old name has nothing open."""
    _verdicts: dict[tuple[str | None, str, int], Verdict] = field(default_factory=dict)
    _positions: dict[tuple[str | None, str, int], str] = field(default_factory=dict)

    def verdict(self, held: str | None, token: str, least: int = 0) -> Verdict:
        """What the decision function says."""
        key = (held, token, least)
        if key not in self._verdicts:
            position, batch = load(held) if held is not None else None, BatchToken.from_json(token)
            if batch.batch_id > 0 and batch.rule is Rule.FOLLOWS:
                # A partition that is new to a query starts at 0: one that starts later was read before.
                batch = replace(batch, seen=frozenset(r.topic_partition for r in batch.ranges if r.start))
            self._verdicts[key] = self.decide(position, batch, least)
        return self._verdicts[key]

    def position(self, held: str | None, token: str, least: int = 0) -> str:
        """The position after a commit."""
        key = (held, token, least)
        if key not in self._positions:
            position = load(held) if held is not None else None
            self._positions[key] = self.after(position, BatchToken.from_json(token), least).to_json()
        return self._positions[key]


@dataclass(frozen=True)
class Scenario:
    """One family of actions: what there is, what may happen, and how often."""

    name: str
    actions: Mapping[str, int]
    """How often each action of an operator, or fault, may happen on one path."""
    records: tuple[int, ...] = (2, 0)
    """How many records each topic has."""
    late: frozenset[int] = frozenset()
    """Topics that appear later."""
    sinks: tuple[str, ...] = ("s1",)
    sizes: tuple[int, ...] = (1, 2)
    """How many records of a topic a batch may have."""
    runs: int = 1
    """How many processes there may be at once."""
    bad: Mapping[str, frozenset[tuple[int, int]]] = field(
        default_factory=lambda: {"A": frozenset({(0, 0)}), "B": frozenset({(0, 1)})}
    )
    """For each definition the topic and offset of the records that are bad under it."""
    other: bool = False
    """Whether a second pipeline writes to the first table."""

    _at: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._at.update({action: at for at, action in enumerate(self.actions)})

    def is_bad(self, definition: str, record: Record) -> bool:
        """Whether a record is bad under a definition."""
        return (record.topic, record.offset) in self.bad[definition]

    def can(self, world: World, action: str) -> bool:
        """Whether an action may happen once more."""
        return action in self._at and world.left[self._at[action]] > 0

    def spend(self, world: World, action: str) -> World:
        """The world in which it has happened once more."""
        at = self._at[action]
        return world._replace(left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))

    def beginning(self) -> World:
        """Before anything has happened."""
        log = tuple(None if at in self.late or not n else (0, n) for at, n in enumerate(self.records))
        return World(
            log=log,
            definition="A",
            sinks=self.sinks,
            targets=(Target(),) * len(NAMES),
            checkpoint=None,
            older=(),
            processes=(None,) * self.runs,
            left=tuple(self.actions.values()),
            queries=0,
            other=0 if self.other else -1,
        )


@cache
def load(text: str) -> Position:
    """A stored position. Shared: never changed."""
    return Position.from_json(text)


@cache
def token_of(query: str, batch: int, start: Vector, end: Vector, rule: Rule = Rule.FOLLOWS, carried: int = 0) -> str:
    """A batch of the pipeline, in the stored form. Every topic that is known is named, also without new records."""
    ranges, ids = [], {}
    for topic, before, after in zip(TOPICS, start, end, strict=True):
        if after is not None:
            same = before is not None and before[0] == after[0]
            ranges.append(OffsetRange(topic, 0, before[1] if same and before is not None else 0, after[1]))
            ids[topic] = f"{topic}-{after[0]}"
    marks = {"q": carried} if carried else {}
    return BatchToken(PIPELINE, query, batch, tuple(ranges), ids, marks, rule).to_json()


@cache
def with_rule(token: str, rule: Rule, carried: int = 0) -> str:
    """The same batch under another rule, with the number of the quarantine that it carries."""
    marks = {"q": carried} if carried else {}
    return replace(BatchToken.from_json(token), rule=rule, quarantine=marks).to_json()


@cache
def records_of(token: str) -> tuple[Record, ...]:
    """The records of a batch."""
    batch = BatchToken.from_json(token)
    return tuple(
        Record(TOPICS.index(r.topic), int(batch.topic_ids[r.topic].rpartition("-")[2]), offset)
        for r in batch.ranges
        for offset in range(r.start, r.end)
    )


@cache
def claimed(held: str | None, token: str, run: str) -> str:
    """The same position under the next number, in the name of a run: nobody else can land onto it."""
    position = load(held) if held is not None else None
    return Position.claimed(position, BatchToken.from_json(token), run).to_json()


@cache
def reached(held: str | None) -> Vector:
    """How far a target is."""
    if held is None:
        return (None,) * len(TOPICS)
    position, found = load(held), []
    for topic in TOPICS:
        offset = position.next.get(TopicPartition(topic, 0))
        generation = int(position.topic_ids[topic][-1].rpartition("-")[2]) if topic in position.topic_ids else 0
        found.append(None if offset is None else (generation, offset))
    return tuple(found)


@cache
def ends_of(token: str) -> tuple[Vector, Vector]:
    """Where a batch starts and ends."""
    batch = BatchToken.from_json(token)
    starts: list[Mark | None] = [None] * len(TOPICS)
    ends: list[Mark | None] = [None] * len(TOPICS)
    for r in batch.ranges:
        generation = int(batch.topic_ids[r.topic].rpartition("-")[2])
        starts[TOPICS.index(r.topic)] = (generation, r.start)
        ends[TOPICS.index(r.topic)] = (generation, r.end)
    return tuple(starts), tuple(ends)


def number_of(held: str | None) -> int:
    """How many commits a position counts."""
    return load(held).number if held is not None else 0


def is_written(held: str | None) -> bool:
    """Whether a target holds anything of a run."""
    return held is not None and load(held).last.query_id != ""


def beyond(one: Vector, other: Vector) -> bool:
    """Whether `one` is further than `other` for some topic."""
    return any(a is not None and a[1] > 0 and (b is None or a > b) for a, b in zip(one, other, strict=True))


def furthest(vectors: Iterable[Vector]) -> Vector:
    """For each topic the furthest mark."""
    marks = zip(*vectors, strict=True)
    return tuple(max((m for m in some if m is not None), default=None) for some in marks)


def is_before(record: Record, vector: Vector) -> bool:
    """Whether a record lies before a position."""
    mark = vector[record.topic]
    return mark is not None and (record.generation, record.offset) < mark


def keeps_out(row: Row, sink: str) -> bool:
    """Whether a quarantined record stays out of a sink."""
    return row.scope == EVERY or sink in row.scope


def everything(world: World) -> list[Record]:
    """Every record that the topics have now."""
    return [
        Record(topic, mark[0], offset)
        for topic, mark in enumerate(world.log)
        if mark is not None
        for offset in range(mark[1])
    ]


def doubled(world: World) -> str | None:
    """A record that is twice where it should be once, or in a target and in the quarantine."""
    quarantined = world.target("q").now.rows
    for sink in ("s1", "s2"):
        table = world.target(TABLE_OF[sink]).now
        seen: set[Record] = set()
        for row in table.rows:
            if row.owner == OTHER or (sink, row.record) in world.pardoned:
                continue
            if row.record in seen:
                return f"{row.record} is twice in {TABLE_OF[sink]}"
            seen.add(row.record)
            if row.kind != "stream":
                continue
            for bad in quarantined:
                effective = bad.kind == "stream" or bad.kind in table.replays
                if bad.record == row.record and keeps_out(bad, row.owner) and effective:
                    return f"{row.record} is in {TABLE_OF[sink]} and in the quarantine"
    for sink in world.sinks:
        out: set[Record] = set()
        for bad in quarantined:
            if not keeps_out(bad, sink) or (lineage(sink), bad.record) in world.pardoned:
                continue
            if bad.record in out:
                return f"{bad.record} is twice in the quarantine"
            out.add(bad.record)
    for name in ("copy", "copy_q"):
        rows = [(row.record, row.kind) for row in world.target(name).now.rows]
        if len(rows) != len(set(rows)):
            return f"a record is twice in {name}"
    if world.other >= 0:
        first = world.target("t1")
        mark = reached(first.position(OTHER))[0]
        kept = sorted(row.record.offset for row in first.now.rows if row.owner == OTHER)
        if kept != list(range(mark[1] if mark is not None else 0)):
            return "rows of the other pipeline are gone or doubled"
    return None


def lost(world: World, sinks: Iterable[str], *, subscribed: bool) -> str | None:
    """A record that is nowhere, though a run has read everything and ended well."""
    since = dict(world.since)
    for sink in sinks:
        table = world.target(TABLE_OF[sink]).now
        held = {row.record for row in table.rows if row.owner != OTHER}
        held |= {row.record for row in world.target("q").now.rows if keeps_out(row, sink)}
        for record in everything(world):
            expected = lineage(sink) in since and not is_before(record, since[lineage(sink)])
            expected &= subscribed or not record.topic
            if expected and record not in held:
                return f"{record} is neither in {TABLE_OF[sink]} nor in the quarantine"
    return None


def left_over(scenario: Scenario, world: World, process: Process) -> str | None:
    """A record that a redrive, which ended well, should have written and did not."""
    for sink in process.sinks:
        target = world.target(TABLE_OF[sink])
        held = {row.record for row in target.now.rows if row.owner != OTHER}
        for row in world.target("q").now.rows:
            good = keeps_out(row, sink) and not scenario.is_bad(process.definition, row.record)
            if good and row.record not in held and is_before(row.record, reached(target.position(sink))):
                return f"{row.record} was not brought to {TABLE_OF[sink]}"
    return None


def lineage(sink: str) -> str:
    """The first name of a sink."""
    return "s1" if sink == "renamed" else sink
