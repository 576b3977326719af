"""What the targets of a redrive hold: which of the records, and whether earlier redrives are still in them.

Only the target itself is asked. A record is written into a target that appends only where that has no row of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

import polars as pl

from penstock import config as cfg
from penstock.assembly.reaching import settings_of
from penstock.assembly.targets import build_targets
from penstock.contracts import RecordSink, SharedSink, Sink, SlotSink
from penstock.engine.refused import Excluded
from penstock.errors import MissingError, TerminalError
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, TopicPartition, redrives_of
from penstock.ops.redrive.ways import narrowed
from penstock.preflight.renamed import names_in_target, under_name
from penstock.quarantine.marks import commit_numbers
from penstock.quarantine.records import IDENTITY, PLACE, Place, frame_of
from penstock.quarantine.states import Outcome
from penstock.readers.stored import StoredReader

_LONGEST_GAP = 64
"""Records that are this close are asked for in one range."""
_RANGES_AT_ONCE = 200


def appending(config: cfg.PipelineConfig) -> set[str]:
    """The sinks that would take a record twice; one that merges finds the row of its key."""
    return {sink.name for sink in config.sinks if not sink.merges}


def sinks_named(config: cfg.PipelineConfig, name: str) -> dict[str, Sink]:
    """The sinks of a pipeline under another name: its redrives or one of its replays."""
    targets = build_targets(narrowed(config, None, name=name), settings_of(config.source))
    return {sink.name: sink for sink in targets.sinks}


def former_sinks(config: cfg.PipelineConfig, names: Collection[str]) -> dict[str, list[Sink]]:
    """For each sink that records per sink name what was redriven, as Kafka sinks do: that sink under its former names.

    An unfinished redrive under a former name is forgotten with its checkpoint; the records that it wrote are not.
    """
    writer = narrowed(config, None, name=redrives_of(config.name))
    found: dict[str, list[Sink]] = {}
    for name, sink in sinks_named(config, writer.name).items():
        if name in names and isinstance(sink, SlotSink) and isinstance(sink, SharedSink):
            former = names_in_target(sink, writer.name) - {one.name for one in config.sinks}
            found[name] = [under_name(one, name, writer, settings_of(config.source)) for one in sorted(former)]
    return found


def held_records(sink: Sink, places: Collection[Place], former: Iterable[Sink] = ()) -> set[Place] | None:
    """The records that a target has a row of, under this or a former name of its sink; None if it cannot tell."""
    held = _held_by(sink, places)
    return None if held is None else held.union(*(_held_by(one, places) or () for one in former))


def _held_by(sink: Sink, places: Collection[Place]) -> set[Place] | None:
    if not isinstance(sink, RecordSink):
        return None
    found: set[Place] = set()
    ranges = _ranges_around(places)
    for start in range(0, len(ranges), _RANGES_AT_ONCE):
        held = sink.records_held(ranges[start : start + _RANGES_AT_ONCE])
        if held is None:
            return None
        found |= held & set(places)
    return found


def reached_records(config: cfg.PipelineConfig, records: pl.DataFrame) -> pl.DataFrame:
    """The records that lie before the stream's position in each target that they go to.

    The others are of a batch that is still open: the stream may yet write them itself.
    """
    wanted = {name for way in records["way"].unique() for name in way.split(",")}
    exact = [
        sink
        for name, sink in sinks_named(config, config.name).items()
        if name in wanted and sink.guarantee is Guarantee.EXACTLY_ONCE
    ]
    positions = {sink.name: sink.position() for sink in exact}

    def is_reached(row: tuple[str, int, int, str]) -> bool:
        topic, partition, offset, way = row
        at = TopicPartition(topic, partition)
        return all(_passed(positions[name], at, offset) for name in way.split(",") if name in positions)

    kept = [is_reached(row) for row in records.select(*PLACE, "way").iter_rows()]
    return records.filter(pl.Series(kept, dtype=pl.Boolean))


def _passed(position: Position | None, at: TopicPartition, offset: int) -> bool:
    if position is None:  # a sink that is new: a run that quarantines anything has claimed its targets before
        return True
    # Of a topic that was created again, a record of the former one may have any offset.
    return len(position.topic_ids.get(at.topic, ())) > 1 or offset < position.next.get(at, 0)


def held_by_targets(
    config: cfg.PipelineConfig, records: pl.DataFrame, *, accept_duplicates: bool
) -> dict[str, set[Place]]:
    """For each sink that appends: which of the records that go there its target holds already.

    Raises where a target cannot tell, unless duplicates are accepted.
    """
    if accept_duplicates:
        return {}
    sinks, found = sinks_named(config, redrives_of(config.name)), dict[str, set[Place]]()
    former = former_sinks(config, appending(config))
    for name in sorted(appending(config)):
        mine = records.filter(pl.col("way").str.split(",").list.contains(name))
        if mine.is_empty():
            continue
        try:
            held = held_records(sinks[name], set(mine.select(PLACE).iter_rows()), former.get(name, ()))
        except TerminalError as error:
            if error.code != "SINK_NEEDS_SPARK":
                raise
            continue  # The run has Spark, and asks again.
        if held is None:
            raise _cannot_tell(sinks[name], mine.height)
        found[name] = held
    return found


def excluded_from(
    reader: StoredReader,
    names: Collection[str],
    former: Mapping[str, Sequence[Sink]],
    token: BatchToken,
    sinks: Sequence[Sink],
) -> Excluded:
    """The records of a batch that the sinks of these names hold already."""
    places = set(frame_of(reader.columns(token.ranges, PLACE)).iter_rows())
    pairs: list[tuple[str, Place]] = []
    for sink in sinks:
        if sink.name in names:
            held = held_records(sink, places, former.get(sink.name, ()))
            pairs += [(sink.name, place) for place in held or ()]
    return Excluded.of(pairs)


def taken_back(config: cfg.PipelineConfig, marks: pl.DataFrame) -> pl.DataFrame:
    """Marks for the records that were redriven by commits which their targets do not hold any more.

    Rows that the owner of a table deleted are another matter: the commit that brought them is still there.
    """
    brought = pl.col("outcome").is_in([Outcome.REDRIVEN.value, Outcome.RETURNED.value])
    newest = marks.filter(brought).sort("marked_at", maintain_order=True).group_by(IDENTITY, maintain_order=True).last()
    counting = newest.filter(pl.col("outcome") == Outcome.REDRIVEN.value, pl.col("commits").is_not_null())
    lost = _lost(config, set(counting.select("run", "commits").iter_rows()))
    rows = counting.select(*IDENTITY, "run", "commits").iter_rows(named=True)
    returned = [
        {**{name: row[name] for name in IDENTITY}, "wanted_by": ",".join(gone)}
        for row in rows
        if (gone := lost[row["run"], row["commits"]])
    ]
    schema = {**counting.select(IDENTITY).schema, "wanted_by": pl.String()}
    return pl.DataFrame(returned, schema=schema).with_columns(outcome=pl.lit(Outcome.RETURNED.value))


def _lost(config: cfg.PipelineConfig, runs: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """For runs and their commits: the sinks of the file whose targets hold fewer commits than were made there."""
    held: dict[str, dict[str, int]] = {}
    found = {}
    for run, commits in runs:
        writer = f"{config.name}.{run}" if run.startswith("replay-") else redrives_of(config.name)
        if writer not in held:
            held[writer] = commit_numbers([*sinks_named(config, writer).values()])
        made: Mapping[str, int] = json.loads(commits)
        names = [sink.name for sink in config.sinks if sink.name in made]
        found[run, commits] = [name for name in names if held[writer].get(name, 0) < made[name]]
    return found


def _ranges_around(places: Iterable[Place]) -> list[OffsetRange]:
    """Few ranges that hold the records and not much else."""
    found: list[OffsetRange] = []
    for (topic, partition), some in groupby(sorted(places), key=lambda place: place[:2]):
        for _, _, offset in some:
            last = found[-1] if found else None
            near = last is not None and (last.topic, last.partition) == (topic, partition)
            if last is not None and near and offset - last.end <= _LONGEST_GAP:
                found[-1] = OffsetRange(topic, partition, last.start, offset + 1)
            else:
                found.append(OffsetRange(topic, partition, offset, offset + 1))
    return found


def _cannot_tell(sink: Sink, records: int) -> MissingError:
    return MissingError(
        "REDRIVE_CANNOT_TELL",
        f"sink {sink.name}: its target does not say which records it holds, and would take one a second time",
        context={"target": sink.target, "records for it": records},
        hint="keep the coordinates there from now on: `coordinates: true`\n"
        "or, where you know that it has none of them: --accept-duplicates",
    )
