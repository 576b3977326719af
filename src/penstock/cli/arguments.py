"""Arguments and options that several commands share, and how times and durations are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.errors import MissingError
from penstock.wording import roughly


def ago(when: datetime | None) -> str:
    """How long ago something was: `12 s ago`, `3 min ago`, `2 h ago`, `5 days ago`; `-` for never."""
    if when is None:
        return "-"
    return f"{roughly((datetime.now(UTC) - when).total_seconds())} ago"


def duration(text: str, option: str) -> timedelta:
    """The value of an option such as `120s` or `2 minutes`."""
    from penstock.config.fields import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def moment(text: str) -> datetime:
    """An option such as `2026-01-31T08:00:00Z`, `2026-01-31` (that day's beginning in UTC), or `2 hours` (ago)."""
    from penstock.config.fields import parse_duration

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - parse_duration(text.removesuffix("ago"))
        except ValueError:
            raise typer.BadParameter(
                "expected a time such as 2026-01-31T08:00:00Z, a day such as 2026-01-31, or how long ago: 2 hours"
            ) from None
    if found.tzinfo is None and len(text) > len("2026-01-31"):
        raise typer.BadParameter(f"the time has no zone: write {text}Z, or an offset such as +02:00")
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def files_in(given: Sequence[Path], or_else: str | None) -> list[Path]:
    """The pipeline files that are named, and those of folders; with `or_else`, the end of the hint, at least one."""
    from penstock.config.files import pipeline_files

    missing = [str(path) for path in given if not path.exists()]
    if missing:
        raise MissingError("FILE_MISSING", f"there is no {', '.join(missing)}", hint="give pipeline files or folders")
    found = pipeline_files(given)
    if not found and or_else is not None:
        where = "this folder" if list(given) == [Path()] else ", ".join(map(str, given))
        raise MissingError("NO_PIPELINES", f"no *.yaml found in {where}", hint=f"give the pipeline files{or_else}")
    return found


File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.", show_default=False)]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="The pipeline files, or a folder with *.yaml files.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The cluster: spark://..., k8s://..., yarn; defaults to `spark.master` in the file."
    ),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Process everything available now, then stop.")]
ResumeFromTable = Annotated[
    bool, typer.Option("--resume-from-table", help="Fresh checkpoint: start from the positions of the targets.")
]
CatchUp = Annotated[
    bool,
    typer.Option(
        "--catch-up",
        help="First let targets that were restored from an older copy catch up to the position of the checkpoint.",
    ),
]
AcceptDuplicates = Annotated[
    bool, typer.Option("--accept-duplicates", help="Fresh checkpoint: read records again that the table already has.")
]
LogFormat = Annotated[
    Literal["auto", "text", "json"], typer.Option(help="auto: a live view on a terminal, lines in a pipe.")
]
StalledAfter = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds without any progress after which a batch is abandoned with exit code 75; 0 only warns.",
    ),
]
GiveUpAfter = Annotated[float, typer.Option(help="Seconds of failing retries before giving up with exit code 75.")]
