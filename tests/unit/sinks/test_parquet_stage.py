from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, SlotAttempt
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.parquet.stage import FolderStage

FILES = pa.schema([pa.field("id", pa.int64())])
ROWS = pa.schema([*FILES, pa.field("part", pa.string()), COORDINATES_FIELD])


def begun(folder: Path) -> FolderStage:
    writer = SlotAttempt(3, "0.1")
    return FolderStage("out", ParquetFiles(TableFolder(str(folder)), "part-", writer, FILES), writer, FILES, ["part"])


def rows(*parts: str | None) -> pa.RecordBatch:
    made: list[dict[str, Any]] = [
        {
            "id": offset,
            "part": part,
            COORDINATES: {"topic": "orders", "partition": 2, "offset": offset, "timestamp": None},
        }
        for offset, part in enumerate(parts)
    ]
    return pa.RecordBatch.from_pylist(made, schema=ROWS)


@pytest.mark.parametrize("value", ["x" * 300, "水" * 100, "/" * 80, "__HIVE_DEFAULT_PARTITION__"])
def test_partition_value_that_no_folder_name_can_hold_is_refused_with_its_coordinates(
    tmp_path: Path, value: str
) -> None:
    staging = begun(tmp_path)
    refused = staging.write(rows("a", value, None, value))
    assert [(refusal.record, refusal.code) for refusal in refused] == [
        (OffsetRange("orders", 2, offset, offset + 1), "SINK_PARTITION_VALUE") for offset in (1, 3)
    ]
    assert staging.finish().rows == 2


@pytest.mark.parametrize("value", ["x" * 150, "水", "a/b", "%41", "=", "..", " ", "\x7f\x01"])
def test_partition_value_with_odd_characters_is_staged(tmp_path: Path, value: str) -> None:
    staging = begun(tmp_path)
    assert staging.write(rows(value)) == []
    manifest = staging.finish()
    assert (manifest.rows, manifest.writer.slot) == (1, 3)
    [item] = manifest.items
    assert (tmp_path / str(getattr(item, "path", ""))).stat().st_size == manifest.size_bytes


def test_refused_value_of_rows_without_coordinates_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as refused:
        begun(tmp_path).write(rows("x" * 300).drop_columns([COORDINATES]))
    assert refused.value.code == "SINK_PARTITION_VALUE"
