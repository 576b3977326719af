"""The same pipelines through both lanes must give the same tables: row for row, value for value, type for type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.tables import read_table

from penstock.config import load
from penstock.runtime.options import RunOptions
from penstock.runtime.run import run

pytestmark = pytest.mark.services

WIDE = (
    "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP, small SMALLINT, "
    "price DECIMAL(10, 2), day DATE, flag BOOLEAN, tags ARRAY<STRING>, "
    "address STRUCT<city: STRING, zip: INT>, extra MAP<STRING, DOUBLE>"
)


def messages() -> list[Any]:
    rows: list[Any] = []
    for n in range(400):
        rows.append(
            {
                "order_id": n // 2 if n % 10 == 1 else n,
                "customer_id": None if n % 7 == 0 else f"k\u00fcnde-{n % 13}",
                "amount": None if n % 11 == 0 else (n - 100) / 8,
                "event_time": f"19{60 + n % 39}-0{1 + n % 9}-1{n % 9}T2{n % 4}:59:59.{n:06d}Z",
                "small": n % 300,
                "price": n + 0.25,
                "day": f"2024-02-{1 + n % 29:02d}",
                "flag": [True, False, None][n % 3],
                "tags": None if n % 5 == 0 else ["a", None, "\u00e9"][: n % 4],
                "address": None if n % 6 == 0 else {"city": f"c{n % 3}", "zip": n},
                "extra": {"x": 1.5, "y": None} if n % 2 else {},
            }
        )
        if n % 50 == 3:
            rows += [b"{oops", None, b"", b"[]", {"customer_id": "no id"}, {"order_id": 1, "small": 40_000}]
    return rows


CASES: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "where": [{"where": "amount >= 0 AND customer_id IS NOT NULL"}],
    "where-null-logic": [{"where": "NOT (amount > 5 OR flag)"}],
    "derive-date": [{"derive": {"event_date": "date(event_time)", "big": "amount > 10"}}],
    "derive-nested": [{"derive": {"city": "address.city", "at": "_penstock.offset"}}],
    "derive-replaces": [{"derive": {"customer_id": "coalesce(customer_id, 'none')"}}],
    "rename-drop": [{"rename": {"customer_id": "customer"}}, {"drop": ["tags", "extra"]}],
    "cast": [{"cast": {"small": "BIGINT", "order_id": "STRING"}}],
    "dedupe": [{"dedupe": {"keys": ["order_id"]}}],
    "dedupe-two-keys-with-nulls": [{"dedupe": {"keys": ["customer_id", "flag"]}}],
    "everything": [
        {"where": "amount >= 0"},
        {"derive": {"event_date": "date(event_time)"}},
        {"dedupe": {"keys": ["order_id"]}},
        {"rename": {"amount": "total"}},
        {"drop": ["flag"]},
        {"where": "total < 30"},
    ],
}


FAILING: dict[str, list[dict[str, Any]]] = {
    "cast": [{"cast": {"order_id": "TINYINT"}}, {"where": "order_id < 100"}],
    "derive": [{"derive": {"ratio": "amount / (small - 5)", "exact": "CAST(amount * 1e7 AS INT)"}}],
    "where": [{"where": "100 div (small - 7) >= 0 AND flag"}],
    "expect": [{"expect": {"few": {"rule": "10 % (small - 20) < 9"}, "flagged": {"rule": "flag", "action": "drop"}}}],
    "before-a-dedupe": [{"cast": {"small": "TINYINT"}}, {"dedupe": {"keys": ["flag", "small"]}}],
}
"""Each fails on some rows, which then are in the quarantine."""


@pytest.fixture(scope="module")
def topic(topics: Any) -> str:
    name: str = topics.create(3, prefix="lanes")
    topics.send(name, messages())
    return name


def tables(file: Path, spark: Any) -> tuple[pa.Table, pa.Table]:
    run(load(file), RunOptions(), session=spark)
    out = read_table(file.parent / "lake/out")
    bad = read_table(file.parent / "lake/quarantine")
    order = out.column("_penstock").combine_chunks()
    out = out.append_column("__offset", pc.struct_field(order, "offset"))
    out = out.append_column("__partition", pc.struct_field(order, "partition"))
    keys = [("partition", "ascending"), ("offset", "ascending")]
    return out.sort_by([("__partition", "ascending"), ("__offset", "ascending")]), bad.drop(["quarantined_at"]).sort_by(
        keys
    )


@pytest.mark.parametrize("name", [*CASES, *(f"failing-{name}" for name in FAILING)])
def test_lanes_same_pipeline_same_tables(
    name: str, topic: str, spark: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    found = {}
    steps = {**CASES, **{f"failing-{name}": steps for name, steps in FAILING.items()}}[name]
    for lane in ("direct", "frame"):
        file = pipeline_file(
            topic,
            folder=tmp_path / lane,
            lane=lane,
            transforms=steps,
            decode={"format": "json", "schema": WIDE},
            source={"max_offsets": 200},
        )
        found[lane] = tables(file, spark)
    (direct, direct_bad), (frame, frame_bad) = found["direct"], found["frame"]
    assert direct.schema == frame.schema
    assert direct.num_rows > 0
    assert direct.to_pylist() == frame.to_pylist()
    assert direct_bad.schema == frame_bad.schema
    assert direct_bad.to_pylist() == frame_bad.to_pylist()
    failed = direct_bad.filter(pc.equal(direct_bad.column("stage"), "transform")).num_rows
    assert direct_bad.num_rows - failed == 48
    assert (failed > 0) == name.startswith("failing")
