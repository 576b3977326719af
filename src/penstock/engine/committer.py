"""The positions of a query's targets, as known to this process: read, claimed, and committed onto.

Two runs may work on the same batch with different definitions. So before its first commit a run claims the quarantine,
and before it quarantines anything also the targets, by commits without rows: the other run's commits then fail, and it
starts over and reads what this one has quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import uuid4

from penstock.assembly.inlet import Inlet
from penstock.assembly.targets import Targets
from penstock.contracts import Sink, SlotSink
from penstock.engine.outlet import Outlet
from penstock.engine.refused import EVERYWHERE, Excluded
from penstock.errors import TerminalError
from penstock.model import BatchToken, Guarantee, Manifest, Position, Rule
from penstock.quarantine import GAPS_SCHEMA, Gap, Quarantine, RefusingQuarantine, gap_rows
from penstock.sinks.commit import commit, is_committed, land_on_current


class Purpose(Enum):
    """Why batches are run."""

    STREAM = "stream"
    REWRITE = "rewrite"
    """A replay or redrive: no other run works on its batches, so no target is claimed."""
    CATCH_UP = "catch-up"
    """Other targets already have these batches: a restored target catches up."""
    RECOVER = "recover"
    """The same for a quarantine that lost records: its commit number stays unchanged until it has all of them again."""

    @property
    def claims(self) -> bool:
        """Whether others may be at work on the same batches."""
        return self in (Purpose.STREAM, Purpose.CATCH_UP)

    @property
    def catches_up(self) -> bool:
        """Whether other targets have had the batches already."""
        return self in (Purpose.CATCH_UP, Purpose.RECOVER)


@dataclass
class Committer:
    """Commits the batches of one query to its targets, one batch after another, on the driver."""

    targets: Targets
    purpose: Purpose = Purpose.STREAM
    marks: Sink | None = None
    """The last of the sinks: gets the bad records, including those that a target refuses at its commit."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of commits of each target when the run started."""
    table_lock: Callable[[Sink], AbstractContextManager[None]] = lambda sink: nullcontext()
    """Context of a commit to a sink's table, which excludes compaction."""
    after_restart: bool = True
    """Whether an earlier attempt may have committed parts of the next batch."""
    positions: dict[str, Position] = field(default_factory=dict)
    """The position of each target, as far as this process knows."""
    _own: set[str] = field(default_factory=set)
    """The targets whose position this process wrote."""
    _run: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def sinks(self) -> Sequence[Sink]:
        """The targets of the rows."""
        return self.targets.sinks

    @property
    def quarantines(self) -> list[Sink]:
        """The quarantines that keep records; without one the first bad record stops the run."""
        return [one for one in self.targets.quarantines if not isinstance(one, RefusingQuarantine)]

    def missing_in(self, token: BatchToken) -> list[Sink]:
        """The sinks that lack this batch. Raises if a target contradicts it."""
        if not self.after_restart and token.rule is not Rule.RECORDS:
            return [*self.sinks]
        targets = [*self.sinks, *self.quarantines]
        least = {**self.numbers, **{name: position.number for name, position in self.positions.items()}}
        with ThreadPoolExecutor(max(1, len(targets))) as pool:
            found = dict(zip([t.name for t in targets], pool.map(lambda one: one.position(), targets), strict=True))
        self.positions = {name: position for name, position in found.items() if position is not None}
        self._own.clear()
        for quarantine in self.quarantines if not self.purpose.catches_up else ():
            is_committed(quarantine, found[quarantine.name], _forward(token), self._quarantine_commits(quarantine))
        missing = [s for s in self.sinks if not is_committed(s, found[s.name], token, least.get(s.name, 0))]
        # What a sink refuses is found by staging for it: if the marks lack the batch, all sinks are staged again.
        return [*self.sinks] if self.marks in missing else missing

    def claim(self, token: BatchToken, targets: Sequence[Sink]) -> None:
        """Let only this run land anything in the targets, until another one claims them in turn."""
        for target in targets if self.purpose.claims else ():
            if target.name not in self._own and target.guarantee is Guarantee.EXACTLY_ONCE:
                known = self.positions.get(target.name)
                position = Position.claimed(known, self.carrying(token), f"claimed by run {self._run}")
                with self.table_lock(target):
                    if isinstance(target, SlotSink):
                        target.claim(self.carrying(token), position)
                    else:
                        target.land(position, (), known)
                self.positions[target.name] = position
                self._own.add(target.name)

    def quarantined_before(self, token: BatchToken) -> Excluded:
        """The records that an earlier attempt of this batch has quarantined; of a catch-up, any of its records."""
        found = []
        for quarantine in self.quarantines:
            if quarantine.name in self.positions and (self.purpose.catches_up or self._reaches(quarantine, token)):
                assert isinstance(quarantine, Quarantine)
                found += quarantine.recorded(token.ranges)
        return Excluded.quarantined(
            (name, place, stage) for by, place, stage in found for name in (by or EVERYWHERE).split(",")
        )

    def carrying(self, token: BatchToken) -> BatchToken:
        """The token with the number of commits that each quarantine has had."""
        numbers = {q.name: self.positions[q.name].number if q.name in self.positions else 0 for q in self.quarantines}
        return replace(token, quarantine=numbers)

    def commit(self, token: BatchToken, sink: Sink, manifests: Sequence[Manifest]) -> None:
        """Commit a batch to one sink, onto its position."""
        token, known = self.carrying(token), self.positions.get(sink.name)
        if token.rule is Rule.RECORDS and is_committed(sink, known, token):
            return
        if token.rule is Rule.RECORDS:
            # The target's records were queried at this position: on another one they must be queried again.
            position: Position | None = Position.after(known, token)
            assert position is not None
            sink.land(position, manifests, known)
        else:
            position = commit(sink, token, manifests, known)
        if position is None:
            return
        carried = {name: position.last.quarantine.get(name, 0) for name in token.quarantine}
        if position.last == token and carried != dict(token.quarantine) and not isinstance(sink, SlotSink):
            raise TerminalError(
                "FENCED",
                f"sink {sink.name}: another run has committed batch {token.batch_id}, with another quarantine",
                context={"this run's quarantine": dict(token.quarantine), "the other's": carried},
                hint="two runs work on the same batch with different definitions: stop one of them",
            )
        self.positions[sink.name] = position
        self._own.add(sink.name)

    def commit_quarantine(self, token: BatchToken, quarantine: Sink, manifests: Sequence[Manifest]) -> None:
        """Commit bad records of a batch, which may have more than one such commit.

        One attempt: if the outcome is unknown, or another run was first, the batch starts over with what the quarantine
        then has.
        """
        known = self.positions.get(quarantine.name)
        position = Position.after(known, self._any_order(self.carrying(token)))
        if self.purpose is Purpose.RECOVER:
            position = replace(position, number=known.number if known is not None else 0)
        quarantine.land(position, manifests, known)
        self.positions[quarantine.name] = position

    def record(self, token: BatchToken, gaps: Sequence[Gap]) -> None:
        """Commit the gaps of a batch, if any and if they are recorded."""
        target = self.targets.gaps
        if gaps and target is not None:
            token = self._any_order(token)
            if not is_committed(target, target.position(), token):
                commit(target, token, _staged_gaps(target, token, gaps))

    def record_more(self, token: BatchToken, gaps: Sequence[Gap]) -> None:
        """Add gaps that appeared after those of the batch were committed."""
        target, token = self.targets.gaps, replace(token, rule=Rule.RECORDS)
        if gaps and target is not None:
            manifests, before = _staged_gaps(target, token, gaps), target.position()
            land_on_current(target, lambda held: (Position.after(held, token), manifests) if held == before else None)

    def _any_order(self, token: BatchToken) -> BatchToken:
        """The token for a target that has no commit for most batches, or that is being caught up."""
        if token.rule is Rule.RECORDS or self.purpose.catches_up:
            return replace(token, rule=Rule.RECORDS)
        return _forward(token)

    def _quarantine_commits(self, quarantine: Sink) -> int:
        """How many commits the quarantine has had, by the positions of the sinks."""
        known = (self.positions[sink.name] for sink in self.sinks if sink.name in self.positions)
        return max((position.last.quarantine.get(quarantine.name, 0) for position in known), default=0)

    def _reaches(self, quarantine: Sink, token: BatchToken) -> bool:
        """Whether a quarantine may have records of a batch: its position is after the start of the batch."""
        position = self.positions[quarantine.name]
        return position.last == token or any(
            position.next.get(r.topic_partition, 0) > r.start for r in token.ranges if self.after_restart
        )


def _forward(token: BatchToken) -> BatchToken:
    return replace(token, rule=Rule.FORWARD)


def _staged_gaps(target: Sink, token: BatchToken, gaps: Sequence[Gap]) -> list[Manifest]:
    target.prepare(GAPS_SCHEMA)
    out = Outlet([Inlet(target)], token, 0, GAPS_SCHEMA)
    out.write(gap_rows(token, gaps))
    return out.finish()
