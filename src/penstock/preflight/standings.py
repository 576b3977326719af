"""Where each target stands, asked all at once. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from penstock.assembly.targets import Targets
from penstock.contracts import Sink, SlotSink
from penstock.errors import PenstockError, one_line
from penstock.model import BatchToken, Guarantee, Position
from penstock.quarantine import RefusingQuarantine


@dataclass(frozen=True)
class Standing:
    """Where one target stands, by what it stores itself."""

    sink: str
    guarantee: Guarantee
    position: Position | None = None
    torn: str | None = None
    """Which batch each slot of a Kafka sink holds, where its last batch is not whole."""
    error: str | None = None
    """Why it could not be asked."""
    begun: Position | None = None
    """Of a torn sink: the newest position of any slot."""
    sparse: bool = False
    """A quarantine, and the like: it has no commit for a batch that has nothing for it."""
    fault: PenstockError | None = None
    """The error that `error` summarises."""
    target: str = field(default="", compare=False)
    redriven: Position | None = None
    """Where redrives stand, and replays that hold them up."""

    @property
    def token(self) -> BatchToken | None:
        """The newest batch that it holds whole."""
        position = self.position
        return position.last if position is not None and position.last.batch_id >= 0 else None

    @property
    def newest(self) -> BatchToken | None:
        """The newest batch of which it holds anything."""
        return self.begun.last if self.begun is not None else self.token


class HasTargets(Protocol):
    """A pipeline, as far as its sinks go."""

    @property
    def targets(self) -> Targets:
        """Every sink."""
        ...


def standings(pipeline: HasTargets) -> list[Standing]:
    """Ask every target for its position, all at once; no JVM. The sinks come first, then what may be sparse."""
    targets = pipeline.targets
    gaps = [targets.gaps] if targets.gaps is not None else []
    others = [one for one in (*targets.quarantines, *gaps) if not isinstance(one, RefusingQuarantine)]
    redriven = {sink.name: sink for sink in targets.redriven()} if others else {}
    asked = [(sink, False, redriven.get(sink.name)) for sink in targets.sinks]
    asked += [(sink, True, None) for sink in others]
    if not asked:
        return []
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda one: _standing(*one), asked))


def carried_number(quarantine: str, found: Iterable[Standing]) -> int:
    """How many commits a quarantine has had, by what the positions of the sinks carry."""
    carrying = (p for one in found if not one.sparse for p in (one.begun or one.position, one.redriven))
    return max((p.last.quarantine.get(quarantine, 0) for p in carrying if p is not None), default=0)


def _standing(sink: Sink, sparse: bool, redriven: Sink | None) -> Standing:
    try:
        position = sink.position()
        others = redriven.position() if redriven is not None else None
        torn = sink.torn() if isinstance(sink, SlotSink) else None
        begun = sink.begun() if isinstance(sink, SlotSink) and torn is not None else None
    except PenstockError as error:
        return Standing(
            sink.name, sink.guarantee, error=one_line(error), sparse=sparse, fault=error, target=sink.target
        )
    return Standing(
        *(sink.name, sink.guarantee, position, torn),
        begun=begun,
        sparse=sparse,
        target=sink.target,
        redriven=others,
    )
