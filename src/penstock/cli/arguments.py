"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The cluster: spark://..., k8s://..., yarn; else `spark.master` of the file."),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Drain what is there, then stop.")]
ResumeFromTable = Annotated[
    bool, typer.Option("--resume-from-table", help="Fresh checkpoint: start from the positions of the targets.")
]
CatchUp = Annotated[
    bool,
    typer.Option(
        "--catch-up",
        help="First bring targets that were restored from an older copy back to where the checkpoint stands.",
    ),
]
AcceptDuplicates = Annotated[
    bool, typer.Option("--accept-duplicates", help="Fresh checkpoint: read again what the table already has.")
]
LogFormat = Annotated[
    Literal["auto", "text", "json"], typer.Option(help="auto: a live view on a terminal, lines in a pipe.")
]
GIVE_UP_AFTER, STALLED_AFTER = 300.0, 3600.0
"""Seconds: the defaults of `run` and `submit`."""
StalledAfter = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds without any progress after which a batch is given up with exit code 75; 0 only warns.",
    ),
]
GiveUpAfter = Annotated[float, typer.Option(help="Seconds of failing retries before giving up with exit code 75.")]
