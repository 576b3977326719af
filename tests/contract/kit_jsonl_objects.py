"""Compressed JSON lines in an object store, in the contract suite, read back by the store's own client."""

from __future__ import annotations

from typing import Any

from tests.contract.kit_jsonl import read_lines
from tests.contract.kit_parquet_objects import ParquetObjectsKit
from tests.contract.kits import Rows

from penstock.sinks.jsonl import JsonLinesSink


class JsonlObjectsKit(ParquetObjectsKit):
    kind = JsonLinesSink
    settings = {"compression": "gzip"}

    def rows(self) -> Rows:
        store: Any = self.server.arrow()

        def body(path: str) -> bytes:
            with store.open_input_file(f"{self.bucket}/{path}") as file:
                return bytes(file.read())

        root = "lake/files/"
        files = sorted(key for key in self.server.keys(self.bucket) if key.startswith(root) and ".jsonl" in key)
        return read_lines(body(f"{root}_columns.parquet"), ((key.removeprefix(root), body(key)) for key in files))

    def staged(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.server.keys(self.bucket) if ".jsonl" in key}
