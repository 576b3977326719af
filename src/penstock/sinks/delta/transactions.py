"""Delta's transaction ids, which outlive the log's clean-up, as a second place for a position.

A commit's metadata, where the whole position stands, is gone once Delta removes old log entries. The `txn` actions are
kept in every checkpoint of the log. So each commit also writes, under ids of the pipeline and sink (`p/s`):

- `p/s`: a counter that every commit raises by one: two drivers, of one query or of two, meet at it. RESTORE does not
  take it back, so it is not the number of the position;
- `p/s//number`: the number of the position;
- `p/s/query`: the batch id;
- `p/s/topic/partition`: the next offset of a partition, or -1 where it does not count any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from penstock.model import BatchToken, Position, TopicPartition
from penstock.sinks.files import TableFolder

LOG = "_delta_log"
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
