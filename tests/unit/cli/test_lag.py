"""What `penstock lag` prints, and how it ends where the brokers are away."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.status import drawn_lag, lag
from penstock.errors import DefinitionError, TransientError
from penstock.ops.lag import LagReport, PartitionLag

FILE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:1", topics: [orders], options: {socket.timeout.ms: 300}}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""
app = typer.Typer()
app.command()(lag)


def printed(report: LagReport, most: int | None = 20) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(drawn_lag(report, most))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def report(count: int) -> LagReport:
    partitions = tuple(
        PartitionLag("orders", n, 1000, 1000 + n, n, 2.0 if n else 0.0, -1.5, 990 if n == 7 else 1000, n == count - 1)
        for n in range(count)
    )
    total = sum(one.lag for one in partitions)
    return LagReport(
        "orders", datetime.now(UTC), partitions, total, 2.0, -10.0, 100.0, 110.0, total / 10, "penstock.orders",
        ("sink out cannot be asked",), running=True, group_note="consumer group penstock.orders differs",
    )  # fmt: skip


def test_lag_of_many_partitions_shows_the_worst_and_counts_the_rest() -> None:
    lines = printed(report(30))
    rows = [line for line in lines if line.startswith("orders[")]
    assert [row.split()[0] for row in rows] == [f"orders[{n}]" for n in range(29, 9, -1)]
    assert rows[0].split() == ["orders[29]", "1,000", "1,029", "29", "2.0", "s", "-1.5/s", "1,000", "hot"]
    assert "and 10 more partitions, 45 behind: --all" in lines
    assert "hot: orders[29] 29: several times the lag of the others" in lines
    assert lines[0] == (
        "orders: 435 behind, the oldest unread record is 2.0 s old; shrinking by 10/s: caught up in about 44 s"
    )


def test_lag_with_all_shows_every_partition_and_marks_where_the_group_differs() -> None:
    lines = printed(report(30), None)
    rows = {line.split()[0]: line for line in lines if line.startswith("orders[")}
    assert len(rows) == 30
    assert "990 !" in rows["orders[7]"] and "!" not in rows["orders[8]"]
    assert not any("more" in line for line in lines)
    assert lines[-2:] == ["note: sink out cannot be asked", "note: consumer group penstock.orders differs"]


def test_lag_with_brokers_away_is_an_error_that_may_pass(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(FILE)
    for options in ([], ["--json"], ["--watch"]):
        done = CliRunner().invoke(app, [str(tmp_path / "orders.yaml"), *options])
        assert isinstance(done.exception, TransientError)
        assert (done.exception.code, done.exception.exit_code) == ("BROKER_UNREACHABLE", 75)
        assert done.stdout == ""


def test_lag_of_a_wrong_file_is_a_definition_error(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("name: orders\n")
    done = CliRunner().invoke(app, [str(tmp_path / "orders.yaml")])
    assert isinstance(done.exception, DefinitionError)
