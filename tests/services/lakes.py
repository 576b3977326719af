"""The sinks of a pipeline that has every kind of table in one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def every_table(at: Callable[[str], str], catalog: str) -> list[dict[str, Any]]:
    """`at` gives the place of a path; the catalog of Iceberg is a database."""
    return [
        {"name": "out", "type": "delta", "path": at("lake/out")},
        {"name": "merged", "type": "delta", "path": at("lake/merged"), "mode": "merge", "keys": ["order_id"]},
        {"name": "files", "type": "parquet", "path": at("lake/files")},
        {
            "name": "ice",
            "type": "iceberg",
            "table": "shop.orders",
            "warehouse": at("lake/ice"),
            "catalog": {"uri": catalog},
        },
    ]
