"""What grows: state and small files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.unit.ops.diagnosis.evidences import NOW, WATERMARK, behind, caught_up, causes, codes, config

from penstock.metrics.history import StateKept
from penstock.model.upkeep import TableFigures
from penstock.ops.diagnosis.evidence import CheckpointFacts, TableFacts

DEDUPE = [WATERMARK, {"dedupe": {"keys": ["id"], "within": "1 hour"}}]


def kept(rows: Sequence[int], hours: float) -> tuple[StateKept, ...]:
    """States whose watermark advances by so many hours with each."""
    mark = NOW - timedelta(days=3)
    return tuple(
        StateKept(at, count, count * 100, (mark + at * timedelta(hours=hours)).isoformat())
        for at, count in enumerate(rows)
    )


def table(small: int, files: int | None = None) -> TableFacts:
    return TableFacts("out", "lake/orders", TableFigures(files or small, small, small * 10_000, small))


def test_state_grows_under_a_watermark_that_stands_still(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path, transforms=DEDUPE), states=kept([100, 200, 300, 400, 500], 0)))
    [cause] = causes(evidence)
    assert cause.code == "STATE_GROWS"
    assert "does not advance: it is 2026-01-28 12:00:00 UTC" in cause.evidence[1]


def test_state_grows_although_the_watermark_went_on_for_longer_than_rows_stay(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path, transforms=DEDUPE), states=kept([100, 200, 300, 400, 500], 1)))
    assert causes(evidence)[0].change == "dedupe.within: 30 minutes (now 1 hour)"


def test_state_that_fills_up_for_the_first_time_or_shrinks_now_and_then_has_a_bound(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path, transforms=DEDUPE)))
    assert codes(replace(evidence, states=kept([100, 200, 300, 400, 500], 0.2))) == []
    assert codes(replace(evidence, states=kept([100, 300, 200, 400, 500], 0))) == []
    assert codes(replace(evidence, states=kept([400, 410, 420, 430, 440], 0))) == []
    assert codes(replace(evidence, states=kept([100, 300], 0))) == []


def test_state_whose_first_batch_had_no_watermark_yet_is_judged_by_the_others(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path, transforms=DEDUPE)))
    first, *others = kept([100, 200, 300, 400], 0.2)
    assert codes(replace(evidence, states=(replace(first, watermark=None), *others))) == []
    first, *others = kept([100, 200, 300, 400], 0)
    assert codes(replace(evidence, states=(replace(first, watermark=None), *others))) == ["STATE_GROWS"]
    never = tuple(replace(one, watermark=None) for one in (first, *others))
    assert "there is none" in causes(replace(evidence, states=never))[0].evidence[1]


def test_state_of_a_class_without_an_end_grows(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("class Seen: ...\n")
    step: dict[str, Any] = {"stateful": {"class": "steps.Seen", "keys": ["id"], "schema": "id BIGINT"}}
    evidence = caught_up(behind(config(tmp_path, transforms=[step]), states=kept([100, 200, 300, 400], 1)))
    assert causes(evidence)[0].change == "stateful: {time: processing, ttl: 1 day} for steps.Seen"
    step["stateful"]["time"] = "processing"
    assert codes(replace(evidence, config=config(tmp_path, transforms=[step]))) == []


def test_small_files_are_found_where_nothing_joins_them(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path), tables=(table(150), table(3))))
    [cause] = causes(evidence)
    assert (cause.code, cause.change) == ("SMALL_FILES", "maintenance: {every: 1 hour}")
    assert codes(replace(evidence, tables=(table(40),))) == []


def test_small_files_under_maintenance_are_found_where_it_was_not_done_or_is_too_short(tmp_path: Path) -> None:
    tended = config(tmp_path, maintenance={"every": "1 hour"})
    long_ago = CheckpointFacts(5, NOW, 5, maintained_at=NOW - timedelta(hours=9))
    late = caught_up(behind(tended, tables=(table(150),), checkpoint=long_ago))
    assert causes(late)[0].change == f"penstock compact {tended.file} --sink out"
    lately = CheckpointFacts(5, NOW, 5, maintained_at=NOW - timedelta(minutes=50))
    assert codes(replace(late, checkpoint=lately)) == []
    assert causes(replace(late, checkpoint=lately, tables=(table(5_000),)))[0].change.startswith(
        "maintenance.within: 4 minutes"
    )
