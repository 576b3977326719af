"""Where a pipeline stands in the logs, by a snapshot. No broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark_checkpoint import put, write_checkpoint
from tests.unit.ops.snapshots import P0, P1, TWO_BATCHES, pipeline, seen, standing

from penstock.checkpoint import Offsets
from penstock.config import PipelineConfig
from penstock.errors import TerminalError
from penstock.model import Guarantee
from penstock.ops.snapshot import read_position
from penstock.preflight.standings import Standing


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline(tmp_path, "earliest")


@pytest.mark.parametrize(
    ("sinks", "committed"),
    [
        ([standing("a", 1, {P0: 30, P1: 40}), standing("b", 1, {P0: 30, P1: 40})], {P0: 30, P1: 40}),
        ([standing("a", 1, {P0: 30, P1: 40}), standing("b", 0, {P0: 10, P1: 20})], {P0: 10, P1: 20}),
        # One that stores no token has what the checkpoint says.
        (
            [standing("a", 1, {P0: 30, P1: 40}), standing("b", None, {}, guarantee=Guarantee.AT_LEAST_ONCE)],
            {P0: 10, P1: 20},
        ),
        ([standing("a", 1, {P0: 30, P1: 40}), standing("b", None, {}, error="away")], {P0: 10, P1: 20}),
        ([standing("a", 7, {P0: 90, P1: 90}, query="another")], {P0: 10, P1: 20}),
        # A quarantine stores no token of a batch without bad records.
        ([standing("a", 1, {P0: 30, P1: 40}), standing("bad", 0, {P0: 10, P1: 20}, sparse=True)], {P0: 30, P1: 40}),
        ([standing("a", 1, {P0: 30}), standing("b", 1, {P0: 30})], {P0: 30}),
    ],
)
def test_place_is_the_least_that_any_sink_has(
    config: PipelineConfig, sinks: list[Standing], committed: Offsets
) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES, committed=0)
    place = read_position(seen(config, sinks))
    assert place.committed == committed
    assert place.positions == {P0: committed[P0], P1: committed.get(P1, 7)}


def test_place_with_a_sink_behind_the_checkpoint_says_so(config: PipelineConfig) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    place = read_position(seen(config, [standing("out", 0, {P0: 10, P1: 20})]))
    assert place.committed == {P0: 10, P1: 20}
    assert "sink out is at batch 0, behind batch 1" in place.notes[0]


def test_place_before_the_first_commit_is_where_the_first_batch_begins(config: PipelineConfig) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES[:1], committed=-1, start={0: 3, 1: 8})
    assert read_position(seen(config, [standing("out", None, {})])).committed == {P0: 3, P1: 8}


@pytest.mark.parametrize(
    ("start", "positions"),
    [
        ("earliest", {P0: 0, P1: 7}),
        ("latest", {P0: 100, P1: 100}),
        ('{orders: {"0": 60}}', {P0: 60, P1: 7}),
    ],
)
def test_place_of_a_pipeline_that_never_ran_is_its_start(tmp_path: Path, start: str, positions: Offsets) -> None:
    place = read_position(seen(pipeline(tmp_path, start)))
    assert (place.committed, place.positions) == (None, positions)


def test_place_in_a_topic_that_was_made_again_is_its_beginning(config: PipelineConfig) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    (Path(config.checkpoint) / ".penstock.topics").write_text('{"orders": "old"}')
    place = read_position(seen(config, topic_ids={"orders": "new"}))
    assert place.positions == {P0: 0, P1: 7}
    assert "re-created" in place.notes[0]


def test_place_with_a_broken_checkpoint_is_what_the_sinks_say_or_an_error(config: PipelineConfig) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    put(Path(config.checkpoint) / "offsets/1", "")
    assert read_position(seen(config, [standing("out", 1, {P0: 30, P1: 40})])).committed == {P0: 30, P1: 40}
    with pytest.raises(TerminalError) as raised:
        read_position(seen(config, [standing("out", None, {})]))
    assert raised.value.code == "CHECKPOINT_FILE_BROKEN"
