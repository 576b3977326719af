"""This pipeline's commits in a table's history, newest first, with what a RESTORE took back marked.

A commit carries its token in the log beside its data. RESTORE takes the data back but not Delta's transaction
id, so the history alone can tell that batches which the table calls seen are gone from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.files import TableFolder

TOKEN = "penstock.token"
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"
RESTORE = "RESTORE"

_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit of this pipeline. `kept` is false when a later RESTORE went back to before it."""

    version: int
    token: BatchToken
    kept: bool


def commit_metadata(token: BatchToken, sink: str) -> dict[str, object]:
    """What a commit says about itself."""
    return {PIPELINE: token.pipeline, SINK: sink, TOKEN: token.to_json()}


def commits_of(table: DeltaTable, pipeline: str, sink: str) -> Iterator[TableCommit]:
    """Yield the commits of one pipeline and sink, newest first, as far back as the log goes."""
    kept: Callable[[_Entry], bool] = _always
    for entry in _entries(table):
        token = own_token(entry, pipeline, sink)
        if token is not None:
            yield TableCommit(entry["version"], token, kept(entry))
        elif entry.get("operation") == RESTORE and kept(entry):
            kept = _kept_by(entry, sink)


def own_token(entry: _Entry, pipeline: str, sink: str) -> BatchToken | None:
    """The token that a commit carries, by what it says about itself, if it is one of this pipeline and sink."""
    said = _said(entry)
    own = said.get(PIPELINE) == pipeline and said.get(SINK) == sink and TOKEN in said
    return BatchToken.from_json(said[TOKEN]) if own else None


def files_added(folder: TableFolder, commit: TableCommit) -> set[str] | None:
    """The files that a commit added, or none if the log does not say any more."""
    log = folder.read(f"_delta_log/{commit.version:020}.json")
    if log is None:
        return None
    actions = [json.loads(line) for line in log.decode().splitlines()]
    if not any(action.get("commitInfo", {}).get(TOKEN) == commit.token.to_json() for action in actions):
        return None
    return {unquote(action["add"]["path"]) for action in actions if "add" in action}


def taken_back(sink: str, lost: TableCommit, token: BatchToken) -> TerminalError:
    """The error for batches that a RESTORE took out of the table."""
    return TerminalError(
        "SINK_TABLE_RESTORED",
        f"sink {sink}: a RESTORE of the table took batches of this pipeline back",
        context={
            "checkpoint": f"batch {token.batch_id}: {token.describe_ranges()}",
            "taken back": f"up to batch {lost.token.batch_id}, committed as version {lost.version}",
        },
        hint=(
            "to write those batches again: a new checkpoint and run --resume-from-table\n"
            f"to undo the restore: RESTORE TABLE ... TO VERSION AS OF {lost.version}"
        ),
    )


def _entries(table: DeltaTable) -> Iterator[_Entry]:
    """The history, read in growing pieces: the entry looked for is nearly always among the newest."""
    shown, limit = 0, 1
    while True:
        entries = table.history(limit)
        yield from entries[shown:]
        if len(entries) < limit:
            return
        shown, limit = len(entries), limit * 8


def _said(entry: _Entry) -> _Entry:
    """The commit's metadata: delta-rs puts it beside the other facts, Spark as text into one of them."""
    if TOKEN in entry:
        return entry
    try:
        said = json.loads(entry.get("userMetadata") or "{}")
    except (TypeError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _always(_: _Entry) -> bool:
    return True


def _kept_by(restore: _Entry, sink: str) -> Callable[[_Entry], bool]:
    """Which older commits a RESTORE left in the table."""
    goal = restore.get("operationParameters") or {}
    version, moment = (_number(goal.get(name)) for name in ("version", "datetime"))
    if version is not None:
        return lambda entry: bool(entry["version"] <= version)
    if moment is not None:
        return lambda entry: bool(entry["timestamp"] <= moment)

    def undecidable(_: _Entry) -> bool:
        # Spark notes a time given to RESTORE as text in a zone that the log does not name.
        raise TerminalError(
            "SINK_TABLE_RESTORED",
            f"sink {sink}: the table was restored to a time, and which batches are left cannot be told",
            context={"restore": f"version {restore['version']}, to {goal.get('timestamp')}"},
            hint="run: RESTORE TABLE ... TO VERSION AS OF n, with the version that the time stood for",
        )

    return undecidable


def _number(value: object) -> int | None:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return parsed if isinstance(parsed, int) else None
