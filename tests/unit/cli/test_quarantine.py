from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.command import command
from tests.unit.ops.quarantines import bad, pipeline

from penstock.cli.quarantine import hex_lines


def test_hex_lines_show_place_bytes_and_text() -> None:
    assert list(hex_lines(b'{"a": \x00\xff12345678901')) == [
        "00000000  7b 22 61 22 3a 20 00 ff  31 32 33 34 35 36 37 38  |{\"a\": ..12345678|",
        "00000010  39 30 31                                          |901|",
    ]  # fmt: skip
    assert list(hex_lines(b"")) == []


def test_list_shows_counts_times_and_records(tmp_path: Path) -> None:
    pipeline(tmp_path, [bad(0), bad(1, code="WRONG_TYPE", message="order_id: a [string]")])
    done = command("quarantine", "list", "orders.yaml", "--records", "1", folder=tmp_path)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert lines == [
        f"orders  2 records in {tmp_path}/lake/quarantine: 2 waiting",
        "code            topic   records  state      first                last",
        "MALFORMED_JSON  orders        1  1 waiting  2026-01-01 00:00:00  2026-01-01 00:00:00",
        "WRONG_TYPE      orders        1  1 waiting  2026-01-01 01:00:00  2026-01-01 01:00:00",
        "",
        "quarantined, by hour",
        f"  2026-01-01 00:00  {'█' * 40} 1",
        f"  2026-01-01 01:00  {'█' * 40} 1",
        "",
        "record       state    code        message               quarantined at",
        "orders[1]@1  waiting  WRONG_TYPE  order_id: a [string]  2026-01-01 01:00:00",
    ]


def test_redrive_dry_run_says_what_goes_where_and_writes_nothing(tmp_path: Path) -> None:
    pipeline(tmp_path, [bad(0), bad(1)])
    done = command("quarantine", "redrive", "orders.yaml", "--dry-run", "--json", folder=tmp_path)
    told = json.loads(done.stdout)
    assert (told["dry_run"], told["plan"]["records"]) == (True, 2)
    assert told["plan"]["ways"] == [{"sinks": ["out"], "records": 2}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "orders.yaml"]


def test_show_raw_writes_the_bytes_alone(tmp_path: Path) -> None:
    pipeline(tmp_path, [bad(0, value=b"\x00\n1")])
    script = "from penstock.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "quarantine", "show", "orders.yaml", "orders:0:0", "--raw"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"\x00\n1")


def test_reading_loads_no_spark(tmp_path: Path) -> None:
    pipeline(tmp_path, [bad(0)])
    script = (
        "import sys; from pathlib import Path; from penstock.config import load\n"
        "from penstock.cli import quarantine\n"
        "from penstock.ops.quarantine.listing import list_records\n"
        "from penstock.ops.quarantine.show import show_record\n"
        "config = load(Path('orders.yaml')); list_records(config); show_record(config, ('orders', 0, 0))\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 0
