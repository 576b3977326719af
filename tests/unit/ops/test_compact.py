"""`compact` as a plan and as what it did, and the same between batches: without Spark, a broker or a registry."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from tests.contract.rows import SCHEMA, land, token

from penstock.assembly.build import build
from penstock.config import PipelineConfig, load
from penstock.errors import DefinitionError, MissingError, TransientError
from penstock.model.upkeep import Compacted
from penstock.ops.compact import CompactPlan, apply_compact, plan_compact, raise_what_is_left
from penstock.sinks.delta import DeltaSink
from penstock.supervision.upkeep import Tended, needs_spark, upkeep

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)


def pipeline(folder: Path) -> PipelineConfig:
    body: dict[str, Any] = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "localhost:1", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT NOT NULL, note STRING"},
        "quarantine": {"table": "lake/bad"},
        "sinks": [
            {"name": "out", "type": "delta", "path": "lake/out"},
            {"name": "files", "type": "parquet", "path": "lake/files"},
            {"name": "more", "type": "delta", "path": "lake/more"},
        ],
        "checkpoint": "checkpoint",
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    return load(file)


def filled(folder: Path, name: str, batches: int = 10) -> None:
    sink = DeltaSink("orders", name, str(folder / "lake" / name))
    sink.prepare(SCHEMA)
    for number in range(batches):
        land(sink, token(number, number, number + 1))


def plan(folder: Path, sink: str | None = None, keep: timedelta = WEEK) -> CompactPlan:
    return plan_compact(pipeline(folder), sink, MINUTE, keep)


def test_plan_tells_the_figures_of_every_table_and_changes_none(tmp_path: Path) -> None:
    filled(tmp_path, "out")
    filled(tmp_path, "bad", 3)
    version = DeltaTable(tmp_path / "lake/out").version()
    planned = plan(tmp_path)
    files = {one.table.name: one.figures.small_files if one.figures else None for one in planned.tables}
    assert files == {"out": 10, "more": None, "quarantine": 3, "gaps": None, "redrives": None}
    assert [name for name, _ in planned.others] == ["files"] and "log" in planned.others[0][1]
    assert not any(one.needs_spark for one in planned.tables)
    assert DeltaTable(tmp_path / "lake/out").version() == version
    assert not (tmp_path / "lake/more").exists() and not (tmp_path / "checkpoint").exists()


def test_apply_compacts_tables_and_the_quarantine_too(tmp_path: Path) -> None:
    filled(tmp_path, "out")
    filled(tmp_path, "bad", 3)
    done = apply_compact(plan(tmp_path))
    figures = {one.table.name: (one.before and one.before.files, one.after and one.after.files) for one in done}
    assert figures == {"out": (10, 1), "quarantine": (3, 1)}
    raise_what_is_left(done)


def test_compact_of_one_sink_leaves_the_others(tmp_path: Path) -> None:
    filled(tmp_path, "out")
    filled(tmp_path, "more")
    assert [one.table.name for one in apply_compact(plan(tmp_path, "more"))] == ["more"]
    assert len(DeltaTable(tmp_path / "lake/out").file_uris()) == 10
    with pytest.raises(MissingError) as unknown:
        plan(tmp_path, "none")
    assert unknown.value.code == "SINK_UNKNOWN"


def test_keep_of_less_than_an_hour_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as refused:
        plan(tmp_path, keep=MINUTE)
    assert refused.value.code == "KEEP_TOO_SHORT"


def test_compaction_that_gave_way_for_good_may_be_tried_again(tmp_path: Path) -> None:
    filled(tmp_path, "out")
    [table] = [one.table for one in plan(tmp_path, "out").tables]
    raise_what_is_left([Tended(table, None, compacted=Compacted(left="the time was up"))])
    with pytest.raises(TransientError) as lost:
        raise_what_is_left([Tended(table, None, compacted=Compacted(gave_way=8, left="the stream left no room"))])
    assert (lost.value.code, lost.value.exit_code) == ("COMPACTION_GAVE_WAY", 75)


def test_upkeep_tells_what_it_did_and_what_went_wrong_and_goes_on(tmp_path: Path) -> None:
    filled(tmp_path, "out")
    filled(tmp_path, "more", 12)
    filled(tmp_path, "bad", 3)
    made = build(pipeline(tmp_path))
    assert not needs_spark(made)
    missing, *_ = (tmp_path / "lake/out").glob("*.parquet")
    missing.unlink()
    wrong, right = upkeep(made, None, 60.0, WEEK)
    assert wrong.startswith("maintenance of out failed: SINK_FAILED")
    assert right.startswith("maintenance of more: 12 files compacted into 1")
    assert len(DeltaTable(tmp_path / "lake/bad").file_uris()) == 3, "few small files wait until they are more"
