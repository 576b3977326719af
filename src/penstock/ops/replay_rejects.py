"""The records that a replay rejects. Each replay has a quarantine of its own; the live one never sees those of others.

A replay into the pipeline's own targets decides for these too: a record that it finds bad is in no target any more
where rows were replaced, so it goes into the live quarantine, once, before that is visible; one that it brought in
needs no redrive any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import polars as pl
import pyarrow as pa

from penstock.config import PipelineConfig
from penstock.contracts import Sink
from penstock.model import BAD_SCHEMA, BatchToken, OffsetRange, Rule, SlotAttempt
from penstock.ops.quarantine_place import quarantine_of, write_marks
from penstock.ops.redrive_ways import goals_of
from penstock.ops.replay_folder import StoredReplay
from penstock.ops.replay_targets import Way
from penstock.quarantine import QUARANTINE_SCHEMA, Quarantine
from penstock.quarantine.marks import MARK_SCHEMA, as_commits
from penstock.quarantine.records import IDENTITY, PLACE, REFUSED_BY, HeldInTable, read_records
from penstock.quarantine.states import Outcome, State
from penstock.runtime.reaching import settings_of, storage_of
from penstock.runtime.targets import way_in
from penstock.sinks.commit import commit, is_committed

_OPEN = (State.WAITING.value, State.FAILED.value, State.PARKED.value)


def rejects_table(config: PipelineConfig, stored: StoredReplay, paths: Sequence[str]) -> str:
    """The path of a replay's own quarantine, given the folders that it writes to elsewhere, if any."""
    if paths:
        return f"{paths[0].rstrip('/')}_quarantine"
    if config.quarantine is not None and config.quarantine.table is not None:
        return f"{config.quarantine.table.rstrip('/')}_replays/{stored.id}"
    return f"{_beside(config, stored)}/quarantine"


def _beside(config: PipelineConfig, stored: StoredReplay) -> str:
    """A folder of the replay that is reached wherever the checkpoint is."""
    return f"{config.checkpoint.rstrip('/')}-replays/{stored.id}"


def own_rejects(config: PipelineConfig, stored: StoredReplay, table: str) -> pl.DataFrame:
    """The records in the quarantine of a replay. Those that no sink took are wanted by all sinks of the replay."""
    held = HeldInTable(table, storage=storage_of(config))
    found = read_records(held, stored.pipeline(config.name), QUARANTINE_SCHEMA.names)
    found = found.filter(pl.col("pipeline") == stored.pipeline(config.name))
    some = _replayed(stored)
    if set(some) >= {sink.name for sink in config.sinks}:
        return found
    refused_by = pl.col(REFUSED_BY).fill_null(",".join(some))
    word = pl.col("stage").str.extract(r"^(\S+)")
    return found.with_columns(stage=pl.concat_str(word, refused_by, separator=" "), refused_by=refused_by)


def quarantine_rejects(config: PipelineConfig, stored: StoredReplay, table: str) -> int:
    """Bring what a replay in place rejected into the live quarantine, once per record; how many were not there yet."""
    if config.quarantine is None:
        return 0
    token = BatchToken(stored.pipeline(config.name), stored.query_id, 0, stored.ranges, rule=Rule.FORWARD)
    found = own_rejects(config, stored, table)
    if found.is_empty():
        return 0
    known = read_records(quarantine_of(config).records, config.name, IDENTITY)
    known = known.filter(pl.col("pipeline") == config.name)
    everywhere = known.filter(pl.col(REFUSED_BY).is_null())
    new = found.join(known, on=IDENTITY, how="anti", nulls_equal=True).join(everywhere, on=PLACE, how="anti")
    rows = new.with_columns(pipeline=pl.lit(config.name)).select(QUARANTINE_SCHEMA.names)
    for sink in _quarantine_sinks(config, stored):
        Quarantine(sink, config.name).prepare(BAD_SCHEMA)
        if rows.height and not is_committed(sink, sink.position(), token):
            stage = sink.stage(token, SlotAttempt(0, uuid4().hex[:12]), QUARANTINE_SCHEMA)
            try:
                for batch in _as_arrow(rows).to_batches():
                    stage.write(batch)
                manifest = stage.finish()
            except BaseException:
                stage.abort()
                raise
            commit(sink, token, [manifest])
    return rows.height


def mark_replayed(config: PipelineConfig, stored: StoredReplay, table: str, commits: Mapping[str, int]) -> int:
    """After a replay in place: mark what it brought in as redriven, and take that back where it rejected a record.

    `commits` are the numbers of its commits in the targets. How many were brought in.
    """
    if config.quarantine is None or not stored.ranges:
        return 0
    place, sinks = quarantine_of(config), set(_replayed(stored))
    with place.alone():
        records = place.read().filter(_within(stored.ranges))
        bad = own_rejects(config, stored, table).select(PLACE).unique()
        goals = {by: set(goals_of(config, by)) for by in records["wanted_by"].unique()}
        reached = [by for by, wanted in goals.items() if wanted and wanted <= sinks]
        brought = records.filter(pl.col("state").is_in(_OPEN), pl.col("wanted_by").is_in(reached, nulls_equal=True))
        brought = brought.join(bad, on=PLACE, how="anti", maintain_order="left")
        gone = records.filter(pl.col("state") == State.REDRIVEN.value).join(bad, on=PLACE, how="semi")
        marks = pl.concat([_brought_in(brought, commits), _taken_back(config, stored, gone)], how="diagonal")
        if not marks.is_empty():
            sink = place.marking("replays")
            sink.prepare(MARK_SCHEMA)
            marks = marks.with_columns(
                pipeline=pl.lit(config.name), run=pl.lit(f"replay-{stored.id}"), marked_at=pl.lit(datetime.now(UTC))
            )
            write_marks(sink, BatchToken(f"{config.name}.redrive", stored.query_id, 0, ()), marks)
    return brought.height


def _taken_back(config: PipelineConfig, stored: StoredReplay, gone: pl.DataFrame) -> pl.DataFrame:
    """Records whose rows went out of a target with the others of these offsets, and did not come in again."""
    replaced = {one.sink for one in stored.targets if one.way is Way.REPLACED}
    left = [",".join(name for name in goals_of(config, by) if name in replaced) for by in gone[REFUSED_BY]]
    found = gone.with_columns(pl.Series("wanted_by", left, pl.String)).filter(pl.col("wanted_by") != "")
    return found.select(*IDENTITY, "wanted_by", outcome=pl.lit(Outcome.RETURNED.value))


def _brought_in(records: pl.DataFrame, commits: Mapping[str, int]) -> pl.DataFrame:
    return records.select(*IDENTITY, outcome=pl.lit(Outcome.REDRIVEN.value), commits=pl.lit(as_commits(commits)))


def _replayed(stored: StoredReplay) -> list[str]:
    return [one.sink for one in stored.targets]


def _quarantine_sinks(config: PipelineConfig, stored: StoredReplay) -> list[Sink]:
    """The live quarantine, to be written to under the name of a replay."""
    quarantine, found = config.quarantine, list[Sink]()
    assert quarantine is not None
    pipeline, storage = stored.pipeline(config.name), storage_of(config)
    if quarantine.topic is not None:
        from penstock.sinks.kafka import QuarantineTopic

        staging, settings = f"{_beside(config, stored)}/staged", way_in(settings_of(config.source))
        found.append(
            QuarantineTopic(pipeline, "quarantine.topic", settings, staging, topic=quarantine.topic, storage=storage)
        )
    # The table comes last: it is the one that is read to know what is there.
    if quarantine.table is not None:
        from penstock.sinks import DeltaSink

        found.append(DeltaSink(pipeline, "quarantine", quarantine.table, keep_coordinates=False, storage=storage))
    return found


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(QUARANTINE_SCHEMA)


def _within(ranges: Collection[OffsetRange]) -> pl.Expr:
    return pl.any_horizontal(
        (pl.col("topic") == r.topic)
        & (pl.col("partition") == r.partition)
        & pl.col("offset").is_between(r.start, r.end, closed="left")
        for r in ranges
    )
