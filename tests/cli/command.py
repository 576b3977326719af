"""`penstock` as installed, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def penstock(*words: str, folder: Path, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with a wide page, so that lines are not broken."""
    return subprocess.run(
        [PENSTOCK, *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
