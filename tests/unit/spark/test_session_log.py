"""Spark's log is its owner's alone."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.spark.session import _private_log


def test_log_can_be_read_by_its_owner_alone_also_one_that_was_there(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("before\n")
    log.chmod(0o644)
    with _private_log(log) as output:
        output.write(b"after\n")
    assert log.stat().st_mode & 0o777 == 0o600 and log.read_text() == "before\nafter\n"


def test_log_that_is_a_device_keeps_its_mode() -> None:
    before = Path(os.devnull).stat().st_mode
    _private_log(Path(os.devnull)).close()
    assert Path(os.devnull).stat().st_mode == before
