"""Spark that cannot be started: what its process said, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys
from pathlib import Path
from penstock.errors import MissingError
from penstock.spark.session import start_session
try:
    start_session("orders", log=Path(sys.argv[1]))
except MissingError as error:
    print(error.code, error.context["log"])
"""


HELD_IN_CHILD = "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(600))"


@pytest.mark.parametrize("before", ["", HELD_IN_CHILD], ids=["alone", "with a lock that is held in forked children"])
def test_session_whose_jvm_ends_at_once_is_told_with_the_log(tmp_path: Path, before: str) -> None:
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    (tmp_path / "java/release").write_text('JAVA_VERSION="21.0.1"\n')
    java.write_text("#!/bin/sh\necho no memory for a heap; exit 1\n")
    java.chmod(0o755)
    log = tmp_path / "spark.log"
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{START}", str(log)],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "java")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["SPARK_NOT_STARTED", str(log)], done.stderr
    assert "no memory for a heap" in log.read_text()
