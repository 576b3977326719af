"""What the targets of a redrive have: which of the records, and whether earlier redrives are still in them.

Only the target itself is queried. A record is written into an appending target only if that has no row of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import polars as pl

from penstock import config as cfg
from penstock.assembly.reaching import settings_of
from penstock.assembly.targets import targets_of
from penstock.contracts import Sink, SlotSink
from penstock.engine.refused import Excluded
from penstock.errors import MissingError, TerminalError
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, TopicPartition, redrives_of
from penstock.preflight.standings import names_in_target, under_name
from penstock.quarantine.marks import IDENTITIES, Outcome, commit_numbers
from penstock.quarantine.records import IDENTITY, PLACE, REFUSED_BY, Place, frame_of
from penstock.readers.stored import StoredReader

_LONGEST_GAP = 64
"""Records this close together are queried in one range."""
_RANGES_AT_ONCE = 200


def appending(config: cfg.PipelineConfig) -> set[str]:
    """The sinks that would duplicate a record; a merging one finds the row of its key."""
    return {sink.name for sink in config.sinks if not sink.merges}


def sinks_named(config: cfg.PipelineConfig, name: str) -> dict[str, Sink]:
    """The sinks of a pipeline under another name: its redrives or one of its replays."""
    targets = targets_of(narrowed(config, None, name=name))
    return {sink.name: sink for sink in targets.sinks}


def former_sinks(config: cfg.PipelineConfig, names: Collection[str]) -> dict[str, list[Sink]]:
    """For each sink that records per sink name what was redriven, as Kafka sinks do: that sink under its former names.

    An unfinished redrive under a former name is forgotten with its checkpoint; the records that it wrote are not.
    """
    writer = narrowed(config, None, name=redrives_of(config.name))
    found: dict[str, list[Sink]] = {}
    for name, sink in sinks_named(config, writer.name).items():
        if name in names and isinstance(sink, SlotSink):
            former = names_in_target(sink, writer.name) - {one.name for one in config.sinks}
            found[name] = [under_name(one, name, writer, settings_of(config.source)) for one in sorted(former)]
    return found


def held_records(sink: Sink, places: Collection[Place], former: Iterable[Sink] = ()) -> set[Place] | None:
    """The records that a target has a row of, under this or a former name of its sink; None if it cannot tell."""
    held = _held_by(sink, places)
    return None if held is None else held.union(*(_held_by(one, places) or () for one in former))


def _held_by(sink: Sink, places: Collection[Place]) -> set[Place] | None:
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

    Raises if a target cannot report it, unless duplicates are accepted.
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
            continue  # The run has Spark, and queries again.
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
    """The records of a batch that these sinks already have."""
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
        f"sink {sink.name}: its target does not store coordinates, and would get duplicates",
        context={"target": sink.target, "records for it": records},
        hint="store coordinates from now on: `coordinates: true`\n"
        "or, if it certainly has none of them: --accept-duplicates",
    )


# Which way each quarantined record goes back in: through the whole pipeline, or only to the sinks that lack it.
#
# Records with how they stand enter; one row for each record leaves, with the sinks that it goes to. What cannot go
# back without harm is left out, with the reason.

_SQL_THAT_MULTIPLIES = re.compile(r"\b(explode\w*|posexplode\w*|inline\w*|stack|lateral|join|union)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Ways:
    """The records to redrive, with their sinks in column `way`; and the number of excluded ones by reason."""

    records: pl.DataFrame
    left_out: Mapping[str, int]


def find_ways(config: cfg.PipelineConfig, records: pl.DataFrame, *, accept_duplicates: bool) -> Ways:
    """The way of each record: its rows of several identities go back in together, to all the sinks they lack."""
    every = tuple(sink.name for sink in config.sinks)
    left_out: Counter[str] = Counter()
    goals = {wanted: goals_of(config, wanted) for wanted in records["wanted_by"].unique()}
    for wanted, goal in goals.items():
        if not goal:
            count = records.filter(pl.col("wanted_by").eq_missing(pl.lit(wanted))).height
            left_out[f"refused by {wanted}, which the file no longer has"] += count
    texts = {wanted: ",".join(goal) for wanted, goal in goals.items()}
    known = pl.DataFrame(
        {"wanted_by": list(texts), "way": list(texts.values())}, schema_overrides={"wanted_by": pl.String}
    )
    kept = records.join(known, on="wanted_by", how="left", nulls_equal=True, maintain_order="left")
    kept = kept.filter(pl.col("way") != "")
    if not accept_duplicates:
        kept = _without_harm(config, kept, left_out)
    together = kept.group_by(PLACE, maintain_order=True).agg(
        pl.col("way").unique().sort().str.join("|"), pl.col(REFUSED_BY).alias(IDENTITIES), pl.col("code").first()
    )
    joined = {ways: _join(re.split("[|,]", ways), every) for ways in together["way"].unique()}
    return Ways(together.with_columns(pl.col("way").replace(joined)), dict(left_out))


def narrowed(config: cfg.PipelineConfig, sinks: Iterable[str] | None, **changes: object) -> cfg.PipelineConfig:
    """The pipeline with these sinks alone, and with the routes that lead to them. Routes keep their numbers."""
    names = {sink.name for sink in config.sinks} if sinks is None else set(sinks)
    missing = sorted(names - {sink.name for sink in config.sinks})
    if missing:
        raise MissingError(
            "REDRIVE_SINK_GONE",
            f"pipeline {config.name}: an unfinished redrive writes to sinks that are no longer in the file",
            context={"gone": ", ".join(missing), "in the file": ", ".join(sink.name for sink in config.sinks)},
            hint="add them again until that redrive is finished",
        )
    flows = {flow.path[-1]: flow for flow in cfg.flows(config)} if config.routes else {}
    routes = tuple(
        # What `otherwise` takes depends on the other routes, so it is written out.
        route.model_copy(update={"sinks": kept, "where": flows[number].where, "otherwise": False}) if kept else None
        for number, route in enumerate(config.routes)
        for kept in [tuple(name for name in route.sinks if name in names)]
    )
    kept = tuple(sink for sink in config.sinks if sink.name in names)
    return config.model_copy(update={"sinks": kept, "routes": routes, **changes})


def reached_by(config: cfg.PipelineConfig) -> dict[str, tuple[str, ...]]:
    """For each sink itself, and for each route its sinks: what a record misses that is refused there."""
    reached: dict[str, tuple[str, ...]] = {sink.name: (sink.name,) for sink in config.sinks}
    for flow in cfg.flows(config) if config.routes else ():
        reached[flow.name] = tuple(config.sinks[index].name for index in flow.sinks)
    return reached


def goals_of(config: cfg.PipelineConfig, wanted: str | None) -> tuple[str, ...]:
    """The sinks that names of sinks and routes stand for, in the order of the file; all of them for none."""
    if wanted is None:
        return tuple(sink.name for sink in config.sinks)
    reached = reached_by(config)
    names = {sink for name in wanted.split(",") for sink in reached.get(name, ())}
    return tuple(sink.name for sink in config.sinks if sink.name in names)


def _join(names: Collection[str], every: tuple[str, ...]) -> str:
    return ",".join(name for name in every if name in names)


def _without_harm(config: cfg.PipelineConfig, records: pl.DataFrame, left_out: Counter[str]) -> pl.DataFrame:
    """Leave out what may be in a sink already that would take it twice, and that asking the target does not settle."""
    appending = {sink.name for sink in config.sinks if not sink.merges}
    topics = {sink.name for sink in config.sinks if isinstance(sink, cfg.KafkaSinkConfig)}
    stage = pl.col("last_stage").str.extract(r"^(\S+)")
    unnamed = pl.col("wanted_by").is_null() & (pl.col("failures") == 0)
    several = (stage == "sink") & (len(config.sinks) > 1) | (stage == "transform") & bool(config.routes)
    steps = [step for flow in cfg.flows(config) for step in flow.transforms if step is not None and _multiplies(step)]
    reasons = {
        # A topic knows the redriven records that it has, and not those of the stream.
        "some sinks may have it: it was quarantined by a version that did not store which sink refused it": (
            _goes_to(records, topics) & several & unnamed
        ),
        # That a target has a row of the record does not tell which of its rows.
        f"some of its rows may be written: {_kind(steps)} makes several rows of one record": (
            _goes_to(records, appending) & stage.is_in(["transform", "sink"]) & bool(steps)
        ),
    }
    for reason, condition in reasons.items():
        harmful = condition.fill_null(False)
        count = records.filter(harmful).height
        if count:
            left_out[f"{reason} (--accept-duplicates)"] += count
            records = records.filter(~harmful)
    return records


def _goes_to(records: pl.DataFrame, sinks: set[str]) -> pl.Expr:
    return pl.col("way").is_in([way for way in records["way"].unique() if sinks & set(way.split(","))])


def _kind(steps: list[cfg.TransformConfig]) -> str:
    return " and ".join(dict.fromkeys(f"the step {step.kind}" for step in steps)) or "a step"


def _multiplies(step: cfg.TransformConfig) -> bool:
    """Whether a step may make several rows of one."""
    match step:
        case cfg.ExplodeConfig() | cfg.PythonConfig() | cfg.MapArrowConfig():
            return True
        case cfg.EnrichConfig():
            return step.enrich.on_duplicate == "all"
        case cfg.SqlConfig():
            return _SQL_THAT_MULTIPLIES.search(step.sql) is not None
    return False
