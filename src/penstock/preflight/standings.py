"""The position of each target, including sink names that are no longer in the file. No JVM.

A target stores one position per name, so a renamed sink seems to be empty: it would write the open batch again.
`agreement` therefore compares the next batch with the position under the former name too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint.files import NotedSink
from penstock.config import PipelineConfig
from penstock.contracts import Sink, SlotSink
from penstock.errors import PenstockError, one_line
from penstock.kafka import KafkaSettings
from penstock.model import BatchToken, Guarantee, Position
from penstock.quarantine import RefusingQuarantine


@dataclass(frozen=True)
class Standing:
    """The position of one target, by what it stores itself."""

    sink: str
    guarantee: Guarantee
    position: Position | None = None
    torn: str | None = None
    """The batch of each slot of a Kafka sink whose last batch is incomplete."""
    error: str | None = None
    """Why its position could not be read."""
    begun: Position | None = None
    """For an incomplete batch: the newest position of any slot."""
    sparse: bool = False
    """True for a quarantine or gaps table, which has no commit for a batch without rows for it."""
    fault: PenstockError | None = None
    """The error that `error` summarises."""
    target: str = field(default="", compare=False)
    redriven: Position | None = None
    """The state of redrives, and the replays that block them."""

    @property
    def furthest(self) -> Position | None:
        """The position of the part that has come furthest: of a torn sink, its newest slot."""
        return self.begun or self.position

    @property
    def token(self) -> BatchToken | None:
        """The newest batch that it holds whole."""
        position = self.position
        return position.last if position is not None and position.last.batch_id >= 0 else None

    @property
    def newest(self) -> BatchToken | None:
        """The newest batch that it holds any part of."""
        return self.begun.last if self.begun is not None else self.token


def standings(targets: Targets) -> list[Standing]:
    """Read the position of every target in parallel. Sinks first, then sparse targets."""
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
    carrying = (p for one in found if not one.sparse for p in (one.furthest, one.redriven))
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


@dataclass(frozen=True)
class FormerName:
    """The position of a target under a name that is no longer in the file."""

    sink: str
    """The sink that now writes to the target."""
    held: Standing
    """Its `sink` is the former name."""


def renamed_sinks(former: Sequence[FormerName], held: Sequence[Standing]) -> set[str]:
    """The sinks with no position under their own name, but one under a former name."""
    own = {one.sink for one in held if one.newest is not None}
    return {each.sink for each in former if each.held.newest is not None} - own


def former_names(
    config: PipelineConfig,
    settings: KafkaSettings,
    sinks: Sequence[Sink],
    held: Sequence[Standing],
    noted: Mapping[str, NotedSink],
) -> list[FormerName]:
    """The former names of the sinks with their positions; usually there are none to read.

    `noted` are the sinks of the last run. The writers of a target are read only if its sink has no position, or nothing
    is noted.
    """
    standing = {one.sink: one for one in held}
    exact = [
        sink
        for sink in sinks
        if sink.guarantee is Guarantee.EXACTLY_ONCE and sink.name in standing and standing[sink.name].error is None
    ]
    if not exact:
        return []

    def search(sink: Sink) -> list[FormerName]:
        one = standing[sink.name]
        names = {name for name, one_noted in noted.items() if one_noted.target == sink.target}
        if not noted or one.furthest is None:
            try:
                names |= names_in_target(sink, config.name)
            except PenstockError as error:
                standing_now = Standing(sink.name, sink.guarantee, error=one_line(error), fault=error)
                return [FormerName(sink.name, standing_now)]
        former = [under_name(name, sink.name, config, settings) for name in sorted(names - {s.name for s in sinks})]
        return [FormerName(sink.name, each) for each in standings(Targets(tuple(former), (), None))]

    with ThreadPoolExecutor(len(exact)) as pool:
        return [each for found in pool.map(search, exact) for each in found]


def names_in_target(sink: Sink, pipeline: str) -> set[str]:
    """The other names under which the pipeline itself has a position in the target; not its replays and redrives."""
    writers = (writer.rpartition("/") for writer in sink.other_writers())
    return {name for its_pipeline, _, name in writers if its_pipeline == pipeline and name != "?"}


def under_name(name: str, sink: str, config: PipelineConfig, settings: KafkaSettings) -> Sink:
    """A sink of the file under another name."""
    renamed = tuple(one.model_copy(update={"name": name}) for one in config.sinks if one.name == sink)
    return build_targets(config.model_copy(update={"sinks": renamed}), settings).sinks[0]
