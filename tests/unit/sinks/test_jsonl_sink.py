"""Files of JSON lines: what is in them, when one is closed, what an aborted attempt leaves, what records they hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.committing import commit

from penstock.errors import MissingError
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.files import TableFolder
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.jsonl.sink import Compression, JsonLinesFiles
from penstock.sinks.parquet import ParquetSink

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), COORDINATES_FIELD])


def rows(offsets: range, note: str = 'a\n"b" ü') -> pa.RecordBatch:
    places = [{"topic": "orders", "partition": 0, "offset": offset, "timestamp": None} for offset in offsets]
    made = [{"id": place["offset"], "note": note, COORDINATES: place} for place in places]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def land(sink: JsonLinesSink, *parts: pa.RecordBatch) -> None:
    end = sum(part.num_rows for part in parts)
    token = BatchToken("orders", "query", 0, (OffsetRange("orders", 0, 0, end),))
    sink.prepare(SCHEMA)
    stage = sink.stage(token, SlotAttempt(0, "0"), SCHEMA)
    for part in parts:
        assert stage.write(part) == []
    commit(sink, token, [stage.finish()])


@pytest.mark.parametrize(("compression", "ending"), [("none", ".jsonl"), ("gzip", ".jsonl.gz")])
def test_line_is_one_row_whatever_its_text_and_other_readers_read_the_folder(
    tmp_path: Path, compression: Compression, ending: str
) -> None:
    land(JsonLinesSink("orders", "out", str(tmp_path / "out"), compression=compression), rows(range(20_000)))
    [file] = (tmp_path / "out").rglob("part-*")
    assert file.name.endswith(ending)
    body = gzip.decompress(file.read_bytes()) if compression == "gzip" else file.read_bytes()
    lines = body.decode().split("\n")
    assert (len(lines), lines[-1]) == (20_001, "")
    assert json.loads(lines[7]) == {
        "id": 7,
        "note": 'a\n"b" ü',
        COORDINATES: {"topic": "orders", "partition": 0, "offset": 7, "timestamp": None},
    }
    read = pl.scan_ndjson(f"{tmp_path}/out/**/*{ending}").collect()
    assert read["id"].to_list() == list(range(20_000))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_held_are_those_of_the_lines_also_of_a_very_long_one(tmp_path: Path, compression: Compression) -> None:
    sink = JsonLinesSink("orders", "out", str(tmp_path / "out"), compression=compression)
    land(sink, rows(range(5)), rows(range(5, 6), note="x" * (3 << 20)))
    assert sink.records_held([OffsetRange("orders", 0, 3, 9)]) == {("orders", 0, offset) for offset in (3, 4, 5)}
    assert sink.records_held([OffsetRange("other", 0, 0, 9)]) == set()


def test_folder_that_has_no_coordinates_cannot_tell_its_records(tmp_path: Path) -> None:
    sink = JsonLinesSink("orders", "out", str(tmp_path / "out"), keep_coordinates=False)
    land(sink, rows(range(3)))
    assert sink.records_held([OffsetRange("orders", 0, 0, 3)]) is None


def test_file_that_has_grown_to_its_size_is_closed_and_an_aborted_attempt_leaves_nothing(tmp_path: Path) -> None:
    files = JsonLinesFiles(TableFolder(str(tmp_path)), SlotAttempt(1, "0"), "none", target_file_bytes=1_000)
    for _ in range(3):
        files.add("day=1", rows(range(30)))
    files.add("day=2", rows(range(1)))
    closed = files.finish()
    assert [(file.path.partition("/")[0], file.rows) for file in closed] == [
        *[("day=1", 30)] * 3,
        ("day=2", 1),
    ]
    assert {file.size_bytes for file in closed} == {path.stat().st_size for path in tmp_path.rglob("part-*")}
    files.add("day=3", rows(range(1)))
    files.abort()
    assert not list(tmp_path.rglob("part-*"))


def test_folder_of_another_kind_of_file_is_refused_both_ways(tmp_path: Path) -> None:
    land(JsonLinesSink("orders", "out", str(tmp_path / "lines")), rows(range(1)))
    with pytest.raises(MissingError) as refused:
        ParquetSink("orders", "out", str(tmp_path / "lines")).prepare(SCHEMA)
    assert refused.value.code == "SINK_PATH_NOT_A_TABLE"
    ParquetSink("orders", "out", str(tmp_path / "files")).prepare(SCHEMA)
    with pytest.raises(MissingError) as refused:
        JsonLinesSink("orders", "out", str(tmp_path / "files")).prepare(SCHEMA)
    assert (refused.value.code, "no JSON lines sink wrote" in str(refused.value)) == ("SINK_PATH_NOT_A_TABLE", True)
