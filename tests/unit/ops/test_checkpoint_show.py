"""What `checkpoint show` says of each sink, out of a snapshot. No broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark_checkpoint import write_checkpoint, write_state
from tests.unit.ops.snapshots import P0, P1, TWO_BATCHES, pipeline, seen, standing

from penstock.ops.checkpoint.show import show_checkpoint
from penstock.preflight.standings import Standing


@pytest.mark.parametrize(
    ("standing", "agrees"),
    [
        (standing("out", None, {}), None),
        (standing("out", None, {}, error="SINK_UNREACHABLE away"), None),
        (standing("out", None, {}, torn="slot 0 holds batch 1"), True),
        (standing("out", 1, {P0: 30, P1: 40}), True),
        (standing("out", 1, {P0: 30, P1: 40}, query="of-another"), None),
    ],
)
def test_shown_sink_agrees_where_it_can_be_told(tmp_path: Path, standing: Standing, agrees: bool | None) -> None:
    config = pipeline(tmp_path, "earliest")
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    (shown,) = show_checkpoint(seen(config, [standing])).sinks
    assert shown.agrees is agrees


def test_shown_formats_are_those_of_the_files_and_of_the_state(tmp_path: Path) -> None:
    config = pipeline(tmp_path, "earliest")
    root = write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    assert show_checkpoint(seen(config)).formats == {"offsets": "v1", "commits": "v1", "sources": "v1"}
    write_state(root, 2)
    assert show_checkpoint(seen(config)).formats["state"] == "RocksDB 5"
