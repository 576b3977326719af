"""Evidence from a history, a checkpoint and a table as they are on disk, with no broker to be asked."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.batches import finished
from tests.unit.ops.diagnosis.evidences import config
from tests.unit.ops.diagnosis.evidences import run as run_of

from penstock.metrics.history import History, LagNoted, RunStarted, history_of
from penstock.model import TopicPartition
from penstock.ops.diagnosis import diagnose
from penstock.ops.diagnosis.diagnosing import _cores as cores_of
from penstock.ops.diagnosis.diagnosing import collect, rank_causes
from penstock.ops.diagnosis.evidence import Evidence, input_in, recent_batches

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"orders":{"0":10}}'
NO_ANSWER = {"options": {"socket.timeout.ms": "300"}}


def add_batch(history: History, number: int, **facts: Any) -> None:
    history.add(finished(number, **{"waited": 0.1, "started_at": datetime.now(UTC), **facts}))


def test_collect_takes_the_last_run_without_its_first_batch(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for run in range(2):
        history.add(RunStarted("direct", partitions=1, cores=3))
        for number in range(5):
            add_batch(history, run * 5 + number)
        add_batch(history, run * 5 + 4, skipped=True)
    entries = history.read()
    assert [batch.batch_id for batch in recent_batches(entries)] == [6, 7, 8, 9]
    history.add(RunStarted("direct", partitions=1, cores=3))
    add_batch(history, 10)
    # One batch tells little: those of the run before it are taken too.
    assert [batch.batch_id for batch in recent_batches(history.read())] == [8, 9, 10]


def test_collect_leaves_out_batches_that_are_none(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    add_batch(history, 0)
    add_batch(history, 1, offsets=0, rows_in=0)
    with history.path.open("a") as lines:
        lines.write('{"at": "2026-01-01T00:00:00+00:00", "event": "batch", "batch_id": 2, "seconds": "?"}\n')
    add_batch(history, 3, cap=None, phases={"commit:out": 1.0})
    assert [batch.batch_id for batch in recent_batches(history.read())] == [0, 3]


def test_input_is_what_each_log_grew_by_since_then(tmp_path: Path) -> None:
    history, began = History(tmp_path / "history"), datetime.now(UTC)
    history.add(LagNoted({}, {"a": [10, None]}))
    history.add(LagNoted({}, {"a": [25, 5], "b": [7]}))
    assert input_in(history.read(), began) == {TopicPartition("a", 0): 15}
    assert input_in(history.read(), datetime.now(UTC)) == {}


def test_collect_tells_what_could_not_be_looked_at_and_all_the_rest(tmp_path: Path) -> None:
    pipeline = config(tmp_path, source=NO_ANSWER)
    checkpoint = Path(pipeline.checkpoint)
    for name, text in {"offsets/0": OFFSETS, "commits/0": "v1\n{}", "offsets/1": OFFSETS}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    history = history_of(pipeline.checkpoint)
    history.add(RunStarted("direct", partitions=1, cores=3))
    for number in range(4):
        add_batch(history, number)
    write_deltalake(tmp_path / "lake/orders", pa.table({"id": [1]}))
    evidence = collect(pipeline)
    assert (evidence.checkpoint.open_batch, evidence.cores, len(evidence.batches)) == (1, 3, 3)
    assert [(table.name, table.figures.files) for table in evidence.tables] == [("out", 1)]
    assert evidence.brokers is None
    [note] = evidence.unreachable
    assert note.startswith("the brokers could not be looked at: BROKER_UNREACHABLE")
    looked = rank_causes(evidence).looked
    [history_line] = [line for line in looked if line.startswith("history: batches 1 to 3, 1.0 s each")]
    assert ", 0 offsets a second" not in history_line
    assert diagnose(pipeline).causes == ()


def test_diagnosis_of_a_pipeline_that_never_ran_says_so(tmp_path: Path) -> None:
    found = diagnose(config(tmp_path, source=NO_ANSWER))
    assert found.causes == ()
    assert "the history has no batch yet: what only batches tell is not known" in found.notes


@pytest.mark.parametrize(
    ("master", "elsewhere", "cores"),
    [
        (None, False, os.cpu_count()),
        (None, True, None),
        ("local[3]", True, 3),
        ("local[*]", False, os.cpu_count()),
        ("yarn", False, None),
    ],
)
def test_cores_that_no_history_tells_are_those_of_the_file(
    tmp_path: Path, master: str | None, elsewhere: bool, cores: int | None
) -> None:
    pipeline = config(tmp_path, **({"spark": {"spark.master": master}} if master is not None else {}))
    noted = run_of("stopped")
    assert noted.note is not None
    if elsewhere:
        noted = replace(noted, note=replace(noted.note, host="another-host"))
    assert cores_of(Evidence(pipeline, datetime.now(UTC), run=noted)) == cores
