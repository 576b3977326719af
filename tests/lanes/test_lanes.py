"""The same pipelines through both lanes must give the same tables: row for row, value for value, type for type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.orders import drain
from tests.tables import read_table

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


ALL = {**CASES, **{f"failing-{name}": steps for name, steps in FAILING.items()}}
BAD = 48
"""How many of the messages are no rows."""


@pytest.fixture(scope="module")
def topic(topics: Any) -> str:
    name: str = topics.create(3, prefix="lanes")
    topics.send(name, messages())
    return name


@dataclass(frozen=True)
class Lanes:
    """Runs a pipeline in both lanes: in the direct lane on the stand-in, in the frame lane on Spark."""

    write: Callable[[str], Path]
    sessions: Mapping[str, Any]

    def compare(self, *tables: str) -> list[pa.Table]:
        """The tables of the direct lane; those of the frame lane are the same."""
        found = {}
        for lane, session in self.sessions.items():
            file = self.write(lane)
            drain(file, session)
            found[lane] = [in_order(read_table(file.parent / "lake" / table)) for table in tables]
        for name, direct, frame in zip(tables, found["direct"], found["frame"], strict=True):
            assert direct.schema == frame.schema, name
            assert direct.to_pylist() == frame.to_pylist(), name
        return found["direct"]


def in_order(table: pa.Table) -> pa.Table:
    """The rows in the order of their records, and without the time at which they were quarantined."""
    if "quarantined_at" in table.schema.names:
        keys = [(name, "ascending") for name in ("partition", "offset", "stage")]
        return table.drop_columns(["quarantined_at"]).sort_by(keys)
    places = table.column("_penstock").combine_chunks()
    for name in ("partition", "offset"):
        table = table.append_column(f"__{name}", pc.struct_field(places, name))
    return table.sort_by([("__partition", "ascending"), ("__offset", "ascending")])


@pytest.fixture
def lanes(
    topic: str, session: Any, spark: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> Callable[..., Lanes]:
    def make(**keys: Any) -> Lanes:
        def write(lane: str) -> Path:
            return pipeline_file(
                topic, folder=tmp_path / lane, lane=lane, decode={"format": "json", "schema": WIDE}, **keys
            )

        return Lanes(write, {"direct": session, "frame": spark})

    return make


IN_EVERYTHING = {"nothing", "where", "derive-date", "rename-drop", "dedupe", "everything"}


@pytest.mark.parametrize("left_out", [IN_EVERYTHING, pytest.param(set(), marks=pytest.mark.long)], ids=["some", "all"])
def test_lanes_one_pipeline_with_a_route_for_each_case_same_tables(
    left_out: set[str], lanes: Callable[..., Lanes]
) -> None:
    cases = {name: steps for name, steps in ALL.items() if name not in left_out}
    routes = [{"where": "TRUE", "transforms": steps, "sinks": [name]} for name, steps in cases.items()]
    sinks = [{"name": name, "type": "delta", "path": f"lake/{name}"} for name in cases]
    *found, bad = lanes(routes=routes, sinks=sinks).compare(*cases, "quarantine")
    assert all(table.num_rows > 0 for table in found)
    stages = Counter(bad.column("stage").to_pylist())
    assert stages.pop("decode") == BAD
    failing = [number for number, name in enumerate(cases) if name.startswith("failing")]
    assert set(stages) == {f"transform routes[{number}]" for number in failing}


@pytest.mark.parametrize(
    "name", [name if name == "everything" else pytest.param(name, marks=pytest.mark.long) for name in ALL]
)
def test_lanes_same_pipeline_same_tables(name: str, lanes: Callable[..., Lanes]) -> None:
    found, bad = lanes(transforms=ALL[name], source={"max_offsets": 200}).compare("out", "quarantine")
    assert found.num_rows > 0
    failed = bad.filter(pc.equal(bad.column("stage"), "transform")).num_rows
    assert bad.num_rows - failed == BAD
    assert (failed > 0) == name.startswith("failing")
