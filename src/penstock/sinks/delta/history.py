"""The position of one pipeline and sink in a table's log: the newest of its commits that no RESTORE took back.

A commit carries its position in its metadata. RESTORE takes the data back but not Delta's transaction ids, so the
history decides as far as it reaches. Where Delta's clean-up has removed the entries, the transaction ids do, as they
were at the version that the table shows: the `txn` actions are kept in every checkpoint of the log. So each commit also
writes, under ids of the pipeline and sink (`p/s`):

- `p/s`: a counter that every commit raises by one: two drivers, of one query or of two, meet at it. RESTORE does not
  take it back, so it is not the number of the position;
- `p/s//number`: the number of the position;
- `p/s/query`: the batch id;
- `p/s/topic/partition`: the next offset of a partition, or -1 where it does not count any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from deltalake import DeltaTable

from penstock.errors import TerminalError
from penstock.model import BatchToken, Position, TopicPartition
from penstock.sinks.files import TableFolder

LOG = "_delta_log"
_READERS, _MOST_AT_ONCE = 16, 512
_GONE = -1
_NUMBER = ("", "number")
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?\.(?:parquet|json)"
)


class Applied(NamedTuple):
    """The newest transaction of an id, and when it was made."""

    version: int
    updated: int


Transactions = Mapping[str, Applied]


def app_id(*parts: str | int) -> str:
    """The transaction id of these parts. They are encoded, so that no two sets of parts have one id."""
    return "/".join(quote(str(part), safe="") for part in parts)


def transactions_of(
    pipeline: str, sink: str, position: Position, onto: Position | None, *, whole: bool
) -> dict[str, int]:
    """What a commit writes besides the counter, with the partitions that it changes, or all of them."""
    before = {} if onto is None else onto.next
    changed = {at: end for at, end in position.next.items() if whole or before.get(at) != end}
    changed |= {at: _GONE for at in before if at not in position.next}
    last = position.last
    found = {app_id(pipeline, sink, *_NUMBER): position.number}
    if last.batch_id >= 0:
        found[app_id(pipeline, sink, last.query_id)] = last.batch_id
    return found | {app_id(pipeline, sink, at.topic, at.partition): end for at, end in sorted(changed.items())}


def position_of(found: Transactions, pipeline: str, sink: str) -> Position | None:
    """The position that the transactions of a table give; the ranges of its last batch are not known any more."""
    begin = f"{app_id(pipeline, sink)}/"
    ends: dict[TopicPartition, int] = {}
    queries: list[tuple[int, str, int]] = []
    for name, applied in found.items():
        if not name.startswith(begin):
            continue
        parts = [unquote(part) for part in name.removeprefix(begin).split("/")]
        if len(parts) == 1:
            queries.append((applied.updated, parts[0], applied.version))
        elif len(parts) == 2 and parts[1].isdecimal() and applied.version != _GONE:
            ends[TopicPartition(parts[0], int(parts[1]))] = applied.version
    if not ends or not queries:
        return None
    _, query_id, batch_id = max(queries)
    number = found.get(app_id(pipeline, sink, *_NUMBER), Applied(0, 0)).version
    return Position(BatchToken(pipeline, query_id, batch_id, ()), ends, {}, number)


def has_written(found: Transactions, pipeline: str, sink: str) -> bool:
    """Whether any transaction is one of this pipeline and sink."""
    own = app_id(pipeline, sink)
    return any(name == own or name.startswith(f"{own}/") for name in found)


def writers_of(found: Transactions) -> set[tuple[str, str]]:
    """The pipelines and sinks that have written to the table: those with an id of their own and one of a query."""
    parts = [tuple(unquote(part) for part in name.split("/")) for name in found]
    queries = {(one[0], one[1]) for one in parts if len(one) == 3}
    return {(one[0], one[1]) for one in parts if len(one) == 2} & queries


def transactions_at(folder: TableFolder, version: int) -> Transactions | None:
    """The transactions of a version: from the newest checkpoint before it, and the entries since.

    None where the log does not reach back so far any more.
    """
    found: dict[str, Applied] = {}
    start = -1
    for checkpoint, names in sorted(_checkpoints(folder.names(LOG)).items(), reverse=True):
        if checkpoint <= version:
            start = checkpoint
            for name in names:
                found.update(_in_checkpoint(folder, f"{LOG}/{name}"))
            break
    for number in range(start + 1, version + 1):
        body = folder.read(f"{LOG}/{number:020}.json")
        if body is None:
            return None
        found.update(_applied(json.loads(line) for line in body.splitlines() if line.strip()))
    return found


def _checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """The checkpoints that are whole, by their versions, each with its files."""
    found: dict[int, dict[int, list[str]]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None:
            found.setdefault(int(match["version"]), {}).setdefault(int(match["parts"] or 1), []).append(name)
    whole = {}
    for version, kinds in found.items():
        for parts, files in kinds.items():
            if parts == 1:
                whole[version] = files[:1]
            elif len(files) == parts:
                whole.setdefault(version, files)
    return whole


def _in_checkpoint(folder: TableFolder, path: str) -> Iterator[tuple[str, Applied]]:
    """The transactions in one file of a checkpoint. Sidecars have none, so only the files of the log itself count."""
    if path.endswith(".json"):
        yield from _applied(json.loads(line) for line in (folder.read(path) or b"").splitlines() if line.strip())
        return
    data = folder.dataset([path])
    if "txn" in data.schema.names:
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        held = data.to_table(columns=["txn"], use_threads=False).column("txn").drop_null()
        yield from _applied({"txn": one} for one in held.to_pylist())


def _applied(actions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Applied]]:
    for action in actions:
        txn = action.get("txn")
        if txn is not None:
            yield txn["appId"], Applied(int(txn["version"]), int(txn.get("lastUpdated") or 0))


TOKEN = "penstock.token"
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"
ATTEMPT = "penstock.attempt"
"""No two attempts to commit have the same: positions of two drivers that commit the same batch are equal."""
RESTORE = "RESTORE"

_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """The position that a commit made current, and which attempt that was, where it is known."""

    position: Position | None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """A commit of this pipeline and sink. `kept` is false where a later RESTORE went back to before it."""

    version: int
    at: float
    """When it was made, in seconds since 1970."""
    position: Position
    attempt: str | None
    kept: bool


def commit_metadata(
    pipeline: str, sink: str, position: Position | None = None, attempt: str | None = None
) -> dict[str, object]:
    """What an entry says about its writer, and the position that it makes current."""
    said: dict[str, object] = {PIPELINE: pipeline, SINK: sink}
    return said if position is None else {**said, ATTEMPT: attempt, TOKEN: position.to_json()}


def own_commit(entry: _Entry, pipeline: str, sink: str) -> tuple[Position, str | None] | None:
    """The position that an entry carries, and its attempt, if it is a commit of this pipeline and sink."""
    said = _said(entry)
    if said.get(PIPELINE) != pipeline or said.get(SINK) != sink or TOKEN not in said:
        return None
    return Position.from_json(said[TOKEN]), said.get(ATTEMPT)


def read_position(table: DeltaTable, folder: TableFolder, pipeline: str, sink: str) -> CommittedPosition:
    """What the table, at the version it was opened at, holds of this pipeline and sink."""
    walk = _Walk(table, folder, pipeline, sink)
    newest: Position | None = None
    older: list[Position] = []
    lost: OwnCommit | None = None
    for commit in walk.commits():
        if not commit.kept:
            lost = lost or commit
        elif newest is not None:
            older.append(commit.position)
        elif commit.position.number:
            return CommittedPosition(commit.position, commit.attempt)
        else:  # versions before 0.8 stored the last batch alone
            newest = commit.position
    if newest is not None:
        return CommittedPosition(Position.united(newest, older))
    rebuilt = _rebuilt(folder, walk, lost) if walk.oldest > 0 else None
    if rebuilt is None and lost is not None:
        return CommittedPosition(Position.nothing_left(lost.position))
    return CommittedPosition(rebuilt)


def own_commits(table: DeltaTable, folder: TableFolder, pipeline: str, sink: str) -> Iterator[OwnCommit]:
    """Yield the commits of this pipeline and sink, newest first, as far back as the log goes."""
    yield from _Walk(table, folder, pipeline, sink).commits()


def writers(table: DeltaTable, folder: TableFolder) -> set[tuple[str, str]]:
    """Every pipeline and sink that has committed to the table, as far as the log and the transaction ids say."""
    said = [_said(entry) for entry in entries(table, folder)]
    found = {(str(one[PIPELINE]), str(one[SINK])) for one in said if PIPELINE in one and SINK in one}
    return found | writers_of(transactions_at(folder, table.version()) or {})


def files_added(folder: TableFolder, version: int) -> set[str] | None:
    """The files that a version added; none where the log does not say any more."""
    log = folder.read(entry_path(version))
    if log is None:
        return None
    actions = [json.loads(line) for line in log.decode().splitlines()]
    return {unquote(action["add"]["path"]) for action in actions if "add" in action}


@dataclass
class _Walk:
    """A walk through the history, newest entry first, with what each RESTORE took back left out."""

    table: DeltaTable
    folder: TableFolder
    pipeline: str
    sink: str
    oldest: int = 0
    """The oldest version that was checked."""
    shown: int = field(init=False)
    """The version up to which the table shows what is older than the last RESTORE; -1 where only a time is known."""
    undecided: _Entry | None = None
    """A RESTORE to a time that cannot be resolved."""
    _kept: Callable[[_Entry], bool] = field(default=lambda _: True)

    def __post_init__(self) -> None:
        self.shown = self.table.version()

    def commits(self) -> Iterator[OwnCommit]:
        """Yield the commits of this pipeline and sink."""
        for entry in entries(self.table, self.folder):
            self.oldest = entry["version"]
            own = own_commit(entry, self.pipeline, self.sink)
            if own is not None:
                yield OwnCommit(entry["version"], entry.get("timestamp", 0) / 1000, *own, self._is_kept(entry))
            elif entry.get("operation") == RESTORE:
                if self.undecided is None and self._kept(entry):
                    self._go_back(entry)
            elif self.shown < 0 and self.undecided is None and self._kept(entry):
                self.shown = entry["version"]

    def refuse(self) -> TerminalError:
        """The error for a RESTORE to a time: Spark notes the time as text, in a zone that the log does not name."""
        restore = self.undecided or {}
        time = (restore.get("operationParameters") or {}).get("timestamp")
        return _cannot_tell(
            f"sink {self.sink}: the table was restored to a time, so it is unknown which batches are left",
            {"restore": f"version {restore.get('version')}, to {time}"},
            "run: RESTORE TABLE ... TO VERSION AS OF n, with the version for that time",
        )

    def _is_kept(self, entry: _Entry) -> bool:
        if self.undecided is not None:
            raise self.refuse()
        return self._kept(entry)

    def _go_back(self, restore: _Entry) -> None:
        goal = restore.get("operationParameters") or {}
        version, moment = (_number(goal.get(name)) for name in ("version", "datetime"))
        if version is not None:
            self.shown, self._kept = version, lambda entry: bool(entry["version"] <= version)
        elif moment is not None:
            self.shown, self._kept = -1, lambda entry: "timestamp" in entry and bool(entry["timestamp"] <= moment)
        else:
            self.undecided = restore


def _rebuilt(folder: TableFolder, walk: _Walk, lost: OwnCommit | None) -> Position | None:
    """The position by the transaction ids, where no commit of this pipeline and sink is left in the history."""
    version = walk.shown if walk.shown >= 0 else walk.oldest - 1
    found = transactions_at(folder, version)
    if found is not None:
        position = position_of(found, walk.pipeline, walk.sink)
        wrote = has_written(found, walk.pipeline, walk.sink)
        if walk.undecided is not None and wrote:
            raise walk.refuse()
        if position is not None or not wrote:
            return position
    if lost is None:
        return None
    raise _cannot_tell(
        f"sink {walk.sink}: the table was restored to a version whose log entries are gone, so it is unknown which "
        "batches of this pipeline are left",
        {
            "restored to": f"version {version}",
            "taken back": f"up to {lost.position.describe()}, version {lost.version}",
        },
        f"undo the restore: RESTORE TABLE ... TO VERSION AS OF {lost.version}",
    )


def _cannot_tell(summary: str, context: Mapping[str, object], hint: str) -> TerminalError:
    return TerminalError("TARGET_WENT_BACK", summary, context=context, hint=hint)


def entries(table: DeltaTable, folder: TableFolder) -> Iterator[_Entry]:
    """What each version says of itself, newest first, from the version of `table` on to the oldest that the log has.

    Not by `DeltaTable.history`, which counts back from that version although it lists the entries that others committed
    since as well: each of these moves all older ones by one version. Pieces grow, as the entry that is looked for is
    nearly always among the newest.
    """
    newest, size = table.version(), 1
    with ThreadPoolExecutor(1 if folder.local is not None else _READERS) as pool:
        while newest >= 0:
            versions = range(newest, max(-1, newest - size), -1)
            for version, body in zip(versions, pool.map(folder.read, map(entry_path, versions)), strict=True):
                if body is None:
                    return
                said = (json.loads(line).get("commitInfo") for line in body.splitlines() if line.strip())
                yield {**next(filter(None, said), {}), "version": version}
            newest, size = newest - size, min(_MOST_AT_ONCE, size * 8)


def entry_path(version: int) -> str:
    """Where in the table's folder the entry of a version is."""
    return f"{LOG}/{version:020}.json"


def _said(entry: _Entry) -> _Entry:
    """The commit's metadata: delta-rs adds it to the other fields, Spark puts it as text into one of them."""
    if PIPELINE in entry:
        return entry
    try:
        said = json.loads(entry.get("userMetadata") or "{}")
    except (TypeError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _number(value: object) -> int | None:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return parsed if isinstance(parsed, int) else None
