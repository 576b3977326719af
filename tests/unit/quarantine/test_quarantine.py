from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.committing import commit, holds, last_commit
from tests.tables import read_table

from penstock.errors import TerminalError, from_wire
from penstock.model import BAD_SCHEMA, RAW_SCHEMA, BatchToken, OffsetRange, SlotAttempt, bad_records
from penstock.quarantine import GAPS_SCHEMA, Gap, Quarantine, RefusingQuarantine, gap_rows
from penstock.sinks import DeltaSink

TOKEN = BatchToken("orders", "query", 4, (OffsetRange("orders", 0, 0, 10),))
COLUMNS = "pipeline batch_id stage code message key value headers topic partition offset timestamp quarantined_at"


def bad(count: int = 2) -> pa.RecordBatch:
    raw = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"\xff\x00",
                "value": b"{broken" if n else None,
                "headers": [{"key": "h", "value": b"\x01"}, {"key": "h", "value": None}],
                "topic": "orders",
                "partition": 0,
                "offset": 7 + n,
                "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            }
            for n in range(count)
        ],
        schema=RAW_SCHEMA,
    )
    return bad_records(raw, "decode", pa.array(["MALFORMED"] * count), pa.array(["no closing brace"] * count))


def test_quarantine_table_has_exactly_the_columns_that_others_rely_on(tmp_path: Path) -> None:
    quarantine = Quarantine(DeltaSink("orders", "quarantine", str(tmp_path / "q")), "orders")
    quarantine.prepare(BAD_SCHEMA)
    assert [field.name for field in DeltaTable(tmp_path / "q").schema().fields] == COLUMNS.split()


def test_quarantined_records_keep_their_bytes_and_say_when_and_where(tmp_path: Path) -> None:
    quarantine = Quarantine(DeltaSink("orders", "quarantine", str(tmp_path / "q")), "orders")
    quarantine.prepare(BAD_SCHEMA)
    stage = pickle.loads(pickle.dumps(quarantine)).stage(TOKEN, SlotAttempt(0, "0"), BAD_SCHEMA)
    stage.write(bad(0))
    stage.write(bad())
    manifest = stage.finish()
    commit(quarantine, TOKEN, [manifest])
    commit(quarantine, TOKEN, [manifest])
    quarantine.discard(TOKEN, [manifest])
    rows = read_table(tmp_path / "q").to_pylist()
    kept = [{name: row.get(name) for name in BAD_SCHEMA.names} for row in rows]
    assert kept == bad().to_pylist()
    assert {(row["pipeline"], row["batch_id"]) for row in rows} == {("orders", 4)}
    assert all(timedelta(0) <= datetime.now(UTC) - row["quarantined_at"] < timedelta(minutes=1) for row in rows)
    assert holds(quarantine, TOKEN)
    assert last_commit(quarantine) == TOKEN
    assert (manifest.sink, quarantine.name, quarantine.target) == ("quarantine", "quarantine", str(tmp_path / "q"))


def test_quarantine_stage_aborted_leaves_no_file(tmp_path: Path) -> None:
    quarantine = Quarantine(DeltaSink("orders", "quarantine", str(tmp_path / "q")), "orders")
    quarantine.prepare(BAD_SCHEMA)
    stage = quarantine.stage(TOKEN, SlotAttempt(0, "0"), BAD_SCHEMA)
    stage.write(bad())
    stage.finish()
    stage.abort()
    assert list((tmp_path / "q").glob("*.parquet")) == []


def test_refusing_quarantine_stops_at_the_first_bad_record_with_its_coordinates() -> None:
    stage = RefusingQuarantine().stage(TOKEN, SlotAttempt(0, "0"), BAD_SCHEMA)
    with pytest.raises(TerminalError) as refused:
        stage.write(bad(3))
    error = refused.value
    assert error.code == "BAD_RECORD"
    assert error.summary == "orders[0] offset 7: MALFORMED: no closing brace"
    assert error.context["bad records"].startswith("3 ")
    assert "quarantine: {table:" in str(error.hint)
    assert "broken" not in str(error)
    assert str(from_wire(error.to_wire())) == str(error)


def test_refusing_quarantine_without_bad_records_commits_nothing() -> None:
    quarantine = pickle.loads(pickle.dumps(RefusingQuarantine()))
    quarantine.prepare(BAD_SCHEMA)
    stage = quarantine.stage(TOKEN, SlotAttempt(1, "0"), BAD_SCHEMA)
    stage.write(bad(0))
    manifest = stage.finish()
    assert (manifest.rows, manifest.items) == (0, ())
    commit(quarantine, TOKEN, [manifest])
    assert not holds(quarantine, TOKEN)
    assert last_commit(quarantine) is None


def test_gap_rows_with_known_and_unknown_ends_go_into_a_table(tmp_path: Path) -> None:
    gaps = [Gap("orders", 0, 5, 9, "log start moved"), Gap("orders", 1, 3, None, "the partition is gone")]
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = gap_rows(TOKEN, gaps, moment)
    assert rows.schema.equals(GAPS_SCHEMA)
    assert [(row["from_offset"], row["to_offset"]) for row in rows.to_pylist()] == [(5, 9), (3, None)]
    sink = DeltaSink("orders", "gaps", str(tmp_path / "g"), keep_coordinates=False)
    sink.prepare(GAPS_SCHEMA)
    stage = sink.stage(TOKEN, SlotAttempt(0, "0"), GAPS_SCHEMA)
    stage.write(rows)
    commit(sink, TOKEN, [stage.finish()])
    assert read_table(tmp_path / "g").to_pylist() == rows.to_pylist()
    assert str(gaps[1]) == "orders[1] 3-?: the partition is gone"


def test_gap_rows_of_no_gaps_is_empty() -> None:
    assert gap_rows(TOKEN, []).num_rows == 0


@pytest.mark.parametrize(
    ("one_sink", "stages"),
    [(False, ["decode", "sink pg", "transform returns"]), (True, ["decode", "sink", "transform returns"])],
)
def test_quarantine_says_behind_the_stage_who_refused_what_others_took(
    tmp_path: Path, one_sink: bool, stages: list[str]
) -> None:
    quarantine = Quarantine(DeltaSink("orders", "quarantine", str(tmp_path / "q")), "orders", one_sink=one_sink)
    quarantine.prepare(BAD_SCHEMA)
    raw = bad(3).select(RAW_SCHEMA.names)
    said = pa.array(["NO"] * 3)
    by = pa.array([None, "pg", "returns"])
    rows = bad_records(raw, pa.array(["decode", "sink", "transform"]), said, said, by)
    stage = quarantine.stage(TOKEN, SlotAttempt(0, "0"), BAD_SCHEMA)
    stage.write(rows)
    commit(quarantine, TOKEN, [stage.finish()])
    assert read_table(tmp_path / "q").column("stage").to_pylist() == stages
