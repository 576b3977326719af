"""Files that hold secrets."""

from __future__ import annotations

import os
from pathlib import Path


def put(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that from the start only its owner can read, unless `mode` says otherwise."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)
