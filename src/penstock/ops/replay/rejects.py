"""The records that a replay rejects. Each replay has its own quarantine; the live one never sees its records.

A replay into the pipeline's own targets decides for these too: a record that it finds bad is in no target any more
where rows were replaced, so it goes into the live quarantine, once, before that is visible; one that it brought in
needs no redrive any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import polars as pl
import pyarrow as pa

from penstock.assembly.reaching import storage_of
from penstock.assembly.targets import targets_of
from penstock.config import PipelineConfig
from penstock.contracts import Sink
from penstock.model import BAD_SCHEMA, BatchToken, Manifest, OffsetRange, Position, Rule, redrives_of, replay_of
from penstock.ops.quarantine.place import quarantine_of
from penstock.ops.redrive.targets import goals_of, narrowed
from penstock.ops.replay.folder import StoredReplay
from penstock.ops.replay.targets import Way, retargeted
from penstock.quarantine import QUARANTINE_SCHEMA, Quarantine, stage_table
from penstock.quarantine.marks import OPEN_STATES, Outcome, State, as_commits
from penstock.quarantine.records import IDENTITY, PLACE, REFUSED_BY, HeldInTable, read_records
from penstock.sinks.commit import land_on_current


def rejects_table(config: PipelineConfig, stored: StoredReplay) -> str:
    """The path of a replay's own quarantine: next to the folder that it writes to, or to the live quarantine."""
    chosen = [(sink, stored.into.get(sink.name)) for sink in config.sinks]
    elsewhere = [retargeted(sink, into) for sink, into in chosen if into is not None]
    paths = [path for sink in elsewhere if (path := getattr(sink, "path", None))]
    if paths:
        return f"{paths[0].rstrip('/')}_quarantine"
    if config.quarantine is not None and config.quarantine.table is not None:
        return f"{config.quarantine.table.rstrip('/')}_replays/{stored.id}"
    # Not in the replay's folder, which is on the local disk of whoever started it.
    return f"{config.checkpoint.rstrip('/')}-replays/{stored.id}/quarantine"


def own_rejects(config: PipelineConfig, stored: StoredReplay) -> pl.DataFrame:
    """The records in the quarantine of a replay. Those that no sink took are wanted by all sinks of the replay."""
    held = HeldInTable(rejects_table(config, stored), storage=storage_of(config))
    found = read_records(held, stored.pipeline(config.name), QUARANTINE_SCHEMA.names)
    found = found.filter(pl.col("pipeline") == stored.pipeline(config.name))
    if set(stored.sinks) >= {sink.name for sink in config.sinks}:
        return found
    refused_by = pl.col(REFUSED_BY).fill_null(",".join(stored.sinks))
    word = pl.col("stage").str.extract(r"^(\S+)")
    return found.with_columns(stage=pl.concat_str(word, refused_by, separator=" "), refused_by=refused_by)


def quarantine_rejects(config: PipelineConfig, stored: StoredReplay) -> dict[str, int]:
    """Bring what a replay in place rejected into the live quarantine, once per record.

    How many commits each live quarantine has had then: rows go out of a target for what it holds.
    """
    if config.quarantine is None:
        return {}
    found = own_rejects(config, stored)
    # The table comes last: it is the one that is read to know what is there.
    live = targets_of(config).quarantines
    return {one.name: _add(one, config.name, stored, found) for one in reversed(live) if isinstance(one, Quarantine)}


def _add(quarantine: Quarantine, pipeline: str, stored: StoredReplay, found: pl.DataFrame) -> int:
    """Add the records that a quarantine does not have yet, onto the position at which it was asked."""
    token = BatchToken(pipeline, stored.query_id, 0, stored.ranges, stored.topic_ids)
    quarantine.prepare(BAD_SCHEMA)

    def missing(held: Position | None) -> tuple[Position, list[Manifest]] | None:
        rows = _not_in(quarantine, pipeline, found)
        if rows.is_empty():
            return None
        manifest = stage_table(quarantine.sink, token, _as_arrow(rows))
        return Position.claimed(held, token, f"rejected by replay {stored.id}"), [manifest]

    reached = land_on_current(quarantine, missing)
    return reached.number if reached is not None else 0


def _not_in(quarantine: Quarantine, pipeline: str, found: pl.DataFrame) -> pl.DataFrame:
    known = read_records(quarantine.records(), pipeline, IDENTITY).filter(pl.col("pipeline") == pipeline)
    everywhere = known.filter(pl.col(REFUSED_BY).is_null())
    new = found.join(known, on=IDENTITY, how="anti", nulls_equal=True).join(everywhere, on=PLACE, how="anti")
    return new.with_columns(pipeline=pl.lit(pipeline)).select(QUARANTINE_SCHEMA.names)


def hold_redrives(config: PipelineConfig, stored: StoredReplay, numbers: Mapping[str, int]) -> None:
    """Make redrives wait until the replay has replaced its rows: one that asked a target before must not write after.

    `numbers` are those of the quarantines, carried so that a quarantine that was restored is noticed.
    """
    for sink in _replaced(config, stored):
        held = sink.position()
        if held is not None and held.last.rule is Rule.HOLDS and held.last.query_id != stored.id:
            _stop_replay(config, sink.name, held.last.query_id, f"replay {stored.id} took over")
        _mark(sink, redrives_of(config.name), stored.id, numbers, Rule.HOLDS, f"replay {stored.id} replaces rows")


def release_redrives(config: PipelineConfig, stored: StoredReplay) -> None:
    """Let redrives continue, unless another replay blocks them by now."""
    for sink in _replaced(config, stored):
        held = sink.position()
        if held is not None and held.last.rule is Rule.HOLDS and held.last.query_id == stored.id:
            _mark(sink, redrives_of(config.name), stored.id, {}, Rule.MOVES, f"replay {stored.id} has ended")


def give_up(config: PipelineConfig, replay: str) -> list[str]:
    """End a replay that blocks redrives and will not be finished; the sinks where it did."""
    found = []
    for sink in targets_of(config).redriven():
        held = sink.position()
        if held is not None and held.last.rule is Rule.HOLDS and held.last.query_id == replay:
            _stop_replay(config, sink.name, replay, "given up")
            _mark(sink, redrives_of(config.name), replay, {}, Rule.MOVES, f"replay {replay} was given up")
            found.append(sink.name)
    return found


def _replaced(config: PipelineConfig, stored: StoredReplay) -> list[Sink]:
    """The targets that rows are replaced in, under the name of the pipeline's redrives."""
    names = {one.sink for one in stored.targets if one.way is Way.REPLACED}
    targets = targets_of(config)
    return [sink for sink in targets.redriven() if sink.name in names] if names else []


def _stop_replay(config: PipelineConfig, sink: str, other: str, reason: str) -> None:
    """Keep a replay, which may only hang, from replacing rows later."""
    named = narrowed(config, [sink], name=replay_of(config.name, other))
    (target,) = targets_of(named).sinks
    token = BatchToken(named.name, other, 0, ())
    land_on_current(target, lambda held: (Position.claimed(held, token, reason), ()))


def _mark(sink: Sink, pipeline: str, replay: str, numbers: Mapping[str, int], rule: Rule, reason: str) -> None:
    """A commit without rows in the position of the redrives, onto whatever they have committed."""

    def marked(held: Position | None) -> tuple[Position, list[Manifest]]:
        number = held.number if held is not None else 0
        token = BatchToken(pipeline, replay, number, (), {}, numbers, rule, reason=reason)
        return Position.after(held, token), []

    land_on_current(sink, marked)


def mark_replayed(config: PipelineConfig, stored: StoredReplay, commits: Mapping[str, int]) -> int:
    """After a replay in place: mark what it brought in as redriven, and take that back where it rejected a record.

    `commits` are the numbers of its commits in the targets. How many were brought in.
    """
    if config.quarantine is None or not stored.ranges:
        return 0
    place, sinks = quarantine_of(config), set(stored.sinks)
    with place.alone():
        records = place.read().filter(_within(stored.ranges))
        bad = own_rejects(config, stored).select(PLACE).unique()
        goals = {by: set(goals_of(config, by)) for by in records["wanted_by"].unique()}
        reached = [by for by, wanted in goals.items() if wanted and wanted <= sinks]
        brought = records.filter(
            pl.col("state").is_in(OPEN_STATES), pl.col("wanted_by").is_in(reached, nulls_equal=True)
        )
        brought = brought.join(bad, on=PLACE, how="anti", maintain_order="left")
        gone = records.filter(pl.col("state") == State.REDRIVEN.value).join(bad, on=PLACE, how="semi")
        marks = pl.concat([_brought_in(brought, commits), _taken_back(config, stored, gone)], how="diagonal")
        if not marks.is_empty():
            place.mark("replays", marks, run=f"replay-{stored.id}", query_id=stored.query_id)
    return brought.height


def _taken_back(config: PipelineConfig, stored: StoredReplay, gone: pl.DataFrame) -> pl.DataFrame:
    """Records whose rows went out of a target with the others of these offsets, and did not come in again."""
    replaced = {one.sink for one in stored.targets if one.way is Way.REPLACED}
    left = [",".join(name for name in goals_of(config, by) if name in replaced) for by in gone[REFUSED_BY]]
    found = gone.with_columns(pl.Series("wanted_by", left, pl.String)).filter(pl.col("wanted_by") != "")
    return found.select(*IDENTITY, "wanted_by", outcome=pl.lit(Outcome.RETURNED.value))


def _brought_in(records: pl.DataFrame, commits: Mapping[str, int]) -> pl.DataFrame:
    return records.select(*IDENTITY, outcome=pl.lit(Outcome.REDRIVEN.value), commits=pl.lit(as_commits(commits)))


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(QUARANTINE_SCHEMA)


def _within(ranges: Collection[OffsetRange]) -> pl.Expr:
    return pl.any_horizontal(
        (pl.col("topic") == r.topic)
        & (pl.col("partition") == r.partition)
        & pl.col("offset").is_between(r.start, r.end, closed="left")
        for r in ranges
    )
