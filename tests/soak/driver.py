"""`penstock`, and where `PENSTOCK_SOAK_BREAK` says so, broken on purpose, in one way or several: to be noticed.

`thread`, `handle` and `memory` leak one of these a batch; `lost` and `twice` remove and double a file that the Parquet
sink has committed, in one batch of ten.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from penstock.cli.main import main
from penstock.engine.batch import Batch

BREAK, FILES = "PENSTOCK_SOAK_BREAK", "PENSTOCK_SOAK_FILES"
WAYS = ("thread", "handle", "memory", "lost", "twice")
_kept: list[Any] = []


def break_batches(way: str) -> None:
    batch: Any = Batch
    commit = batch._commit

    def commit_batch(self: Batch) -> None:
        commit(self)
        if way in ("lost", "twice"):
            if self.token.batch_id % 10 == 3:
                _spoil(way)
        else:
            _leak(way)

    batch._commit = commit_batch


def _leak(way: str) -> None:
    if way == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif way == "handle":
        _kept.append(open(os.devnull))  # noqa: PTH123, SIM115
    else:
        _kept.append(bytearray(os.urandom(8 << 20)))


def _spoil(way: str) -> None:
    files = [file for file in Path(os.environ[FILES]).rglob("*.parquet") if not file.name.startswith(("_", "."))]
    if not files:
        return
    newest = max(files, key=lambda file: file.stat().st_mtime_ns)
    if way == "lost":
        newest.unlink()
    else:
        shutil.copy(newest, newest.with_name(f"again-{newest.name}"))


if __name__ == "__main__":
    for way in os.environ.get(BREAK, "").split():
        break_batches(way)
    main()
