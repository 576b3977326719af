"""Both HTTP servers of a run in a process of their own with few descriptors, to be attacked from outside.

Prints the ports and the token as JSON, then answers each line of its input with how many descriptors it has open and
whether it can open another one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from penstock.dashboard import Dashboard
from penstock.metrics import http_server
from penstock.metrics.prometheus import Exposition


def main(limit: int, folder: Path) -> None:
    """Serve until the input ends."""
    # Seconds that a test can wait for; the bounds as they are: tests/unit/metrics/test_http_server.py.
    http_server.REQUEST_SECONDS = http_server.WRITE_SECONDS = 1.5
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    exposition = Exposition("orders")
    port = exposition.serve("127.0.0.1", 0)
    with Dashboard([folder / "orders.yaml"]) as dashboard:
        print(json.dumps({"metrics": port, "dashboard": dashboard.port, "token": dashboard.token}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"open": len([*Path("/proc/self/fd").iterdir()]), "can_open": _can_open()}), flush=True)
    exposition.close()


def _can_open() -> bool:
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
