"""`penstock`, run to its end: as a process of its own as it is installed, or within this one, which is much faster."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
_PAGE = {"COLUMNS": "200", "TERM": "dumb"}
"""A wide page, so that lines are not broken."""


def penstock(*words: str, folder: Path, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, as a process."""
    return subprocess.run(
        [PENSTOCK, *words],
        cwd=folder,
        env={**os.environ, **_PAGE, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same within this process, for commands that start no Spark: it would be that of the tests."""
    from penstock.cli import main as program

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        chdir(folder),
        patch.dict(os.environ, {**_PAGE, **environment}),
        patch.object(sys, "argv", [PENSTOCK, *words]),
        patch.dict(program._state),
        patch("penstock.spark.session.find_java", side_effect=AssertionError("it starts Spark")),
        _as_a_program(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            program.main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([PENSTOCK, *words], status, *texts)


@contextmanager
def _as_a_program() -> Iterator[None]:
    """What `main` sets for its process is this one's only while it runs, and so is the name in the usage line."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    module = sys.modules["__main__"]
    # By this module the usage line tells how the program was started.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = module
        for number, handler in signals.items():
            signal.signal(number, handler)
