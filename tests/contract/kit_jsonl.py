"""JSON lines in the contract suite, read back by Python's own parser from the files that a listing shows."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from tests.contract.kit_parquet import ParquetKit
from tests.contract.kits import Rows

from penstock.model import COORDINATES
from penstock.sinks.jsonl import JsonLinesSink


class JsonlKit(ParquetKit):
    kind = JsonLinesSink

    def rows(self) -> Rows:
        files = sorted(path for path in self.path.rglob("*.jsonl*") if path.is_file())
        columns = (self.path / "_columns.parquet").read_bytes()
        return read_lines(columns, ((str(path.relative_to(self.path)), path.read_bytes()) for path in files))

    def staged(self) -> set[str]:
        return {path.name for path in self.path.parent.rglob("*.jsonl*")}


def read_lines(columns: bytes, files: Iterable[tuple[str, bytes]]) -> Rows:
    """The rows of files, given by their paths within the target. A column that came later is null in older rows."""
    footer = pq.read_schema(pa.BufferReader(columns))
    partitions = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(footer.metadata[b"penstock.partition_columns"])))
    found: Rows = []
    for path, body in files:
        named = dict(part.split("=", 1) for part in path.split("/")[1:-1])
        values = {name: _value(text, partitions.field(name).type) for name, text in named.items()}
        for line in (gzip.decompress(body) if path.endswith(".gz") else body).splitlines():
            row: dict[str, Any] = {**dict.fromkeys(footer.names), **json.loads(line), **values}
            if COORDINATES in row:
                row[COORDINATES]["timestamp"] = datetime.fromisoformat(row[COORDINATES]["timestamp"])
            found.append(row)
    return found


def _value(text: str, kind: pa.DataType) -> Any:
    plain = None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text)
    return pa.array([plain], pa.string()).cast(kind)[0].as_py()
