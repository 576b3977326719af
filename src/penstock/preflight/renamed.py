"""What targets hold of a pipeline under sink names that its file does not have any more.

A target keeps one position for each name, so a sink that was renamed seems to hold nothing: it would write the open
batch a second time. `agreement` therefore compares the next batch with the position under the former name too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint.files import NotedSink
from penstock.config import PipelineConfig
from penstock.contracts import SharedSink, Sink
from penstock.errors import PenstockError, one_line
from penstock.kafka import KafkaSettings
from penstock.model import Guarantee
from penstock.preflight.standings import Standing, standings


@dataclass(frozen=True)
class FormerName:
    """Where a target stands under a name that the file does not have any more."""

    sink: str
    """The sink of the file that writes to the target now."""
    held: Standing
    """Its `sink` is the former name."""


def renamed_sinks(former: Sequence[FormerName], held: Sequence[Standing]) -> set[str]:
    """The sinks that hold nothing under their own name, and something under a former one."""
    own = {one.sink for one in held if one.newest is not None}
    return {each.sink for each in former if each.held.newest is not None} - own


@dataclass(frozen=True)
class _Former:
    targets: Targets


def former_names(
    config: PipelineConfig,
    settings: KafkaSettings,
    sinks: Sequence[Sink],
    held: Sequence[Standing],
    noted: Mapping[str, NotedSink],
) -> list[FormerName]:
    """The former names of the sinks, with the positions under them; most starts find none, and ask nothing.

    `noted` are the sinks of the last run. A target is asked for its writers only where its sink holds nothing, or
    nothing is noted.
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
        if isinstance(sink, SharedSink) and (not noted or (one.position is None and one.begun is None)):
            try:
                names |= names_in_target(sink, config.name)
            except PenstockError as error:
                standing_now = Standing(sink.name, sink.guarantee, error=one_line(error), fault=error)
                return [FormerName(sink.name, standing_now)]
        former = [under_name(name, sink.name, config, settings) for name in sorted(names - {s.name for s in sinks})]
        return [FormerName(sink.name, each) for each in standings(_Former(Targets(tuple(former), (), None)))]

    with ThreadPoolExecutor(len(exact)) as pool:
        return [each for found in pool.map(search, exact) for each in found]


def names_in_target(sink: SharedSink, pipeline: str) -> set[str]:
    """The other names under which the pipeline itself has a position in the target; not its replays and redrives."""
    writers = (writer.rpartition("/") for writer in sink.other_writers())
    return {name for its_pipeline, _, name in writers if its_pipeline == pipeline and name != "?"}


def under_name(name: str, sink: str, config: PipelineConfig, settings: KafkaSettings) -> Sink:
    """A sink of the file under another name."""
    renamed = tuple(one.model_copy(update={"name": name}) for one in config.sinks if one.name == sink)
    return build_targets(config.model_copy(update={"sinks": renamed}), settings).sinks[0]
