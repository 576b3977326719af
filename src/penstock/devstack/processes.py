"""A service as a child process: started apart from the terminal, everything it says in one log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from penstock.devstack.state import Service


def spawn(
    command: list[str], service: Service, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in the service's folder, with its log for whatever it prints; `environment` is added to ours."""
    service.folder.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        # A session of its own: a Ctrl-C at the terminal reaches Penstock alone, which then ends the services.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=service.folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def log_context(log: Path) -> dict[str, object]:
    """Where a service's log is and how it ends, for the error about a service that did not come up."""
    return {"log": log, "its last lines": "".join(f"\n    {line}" for line in _last_lines(log))}


def _last_lines(log: Path, count: int = 8) -> list[str]:
    """The last lines that say something, each cut to a readable length."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    telling = [line[:200] for line in lines if line.strip() and not line.lstrip().startswith("at ")]
    return telling[-count:]
