"""The files of a checkpoint as data: which are there, what each says, and why Spark or a run could not use it if so.

Nothing here raises for a bad file. Spark needs few of them: the newest offsets and those before them, the newest
commit, the metadata; what is older is history. The formats of Spark's logs and of Penstock's notes are known here
alone.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from penstock.model import BatchToken, TopicPartition
from penstock.storage import Storage

RESTORING = ".penstock.restoring"
"""The note that is in a checkpoint while a restore or a repair writes: what was started, for people."""
STATE_NOTE = ".penstock.state"
TOPICS_NOTE = ".penstock.topics"
AGAIN_NOTE = ".penstock.again"

Offsets = dict[TopicPartition, int]
Checksum = Literal["none", "right", "wrong", "unreadable"]
"""What the `.crc` file of a file says about it. Spark ignores it when it reads its own logs."""

NO_OFFSETS = "-"
"""Stands for a source without offsets yet."""
_STRAY = re.compile(r"\..*(\.tmp|\.penstock-\d+)|\..*\.tmp\.crc|\.draft(?!\.penstock\.).+")


@dataclass(frozen=True)
class LogFile:
    """One file: what is in it, and why it could not be used if so."""

    name: str
    body: bytes = field(repr=False)
    checksum: Checksum = "none"

    @cached_property
    def problem(self) -> str | None:
        """Why it could not be used; none where it could."""
        return _note_problem(self.name, self.body) if self.name.startswith(".") else _problem(self.name, self.body)

    @property
    def query_id(self) -> str | None:
        """Of a metadata file that can be used: the id that Spark gave the query."""
        return str(json.loads(self.body)["id"]) if self.problem is None else None

    @property
    def tokens(self) -> tuple[BatchToken, ...]:
        """Of a note that can be used: the batches to be run again."""
        return tuple(_tokens(self.body)) if self.problem is None else ()

    @property
    def ids(self) -> dict[str, str]:
        """Of a note that can be used: the id of each topic."""
        return {str(topic): str(one) for topic, one in json.loads(self.body).items()} if self.problem is None else {}

    @property
    def version(self) -> str:
        """The format version that the file names; empty where it names none."""
        first = self.body.lstrip(b"\0").split(b"\n", 1)[0].decode(errors="replace")
        return first if re.fullmatch(r"v\d+", first) else ""

    @property
    def lines(self) -> list[str]:
        """The lines after the version."""
        return self.body.decode(errors="replace").lstrip("\0").splitlines()[1:]

    @property
    def initial(self) -> Offsets | None:
        """Of a source's file that can be used: where the first batch begins."""
        return _offsets(self.lines) if self.problem is None else None

    @property
    def ends(self) -> Offsets | None:
        """Of an offsets file that can be used: where its batch ends."""
        return _offsets(self.lines[1:]) if self.problem is None else None

    @property
    def head(self) -> Mapping[str, Any] | None:
        """The line of facts in an offsets or commits file, whatever source the lines after it are of."""
        return _object(self.lines[0]) if self.lines else None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of an offsets or commits file that can be used: watermark and settings; else nothing."""
        return {} if self.problem is not None or not self.lines else json.loads(self.lines[0])


def compare_checksum(body: bytes, checksum: bytes | None) -> Checksum:
    """Compare a file with its `.crc`: `crc` and a zero byte, the length of a piece, then a CRC32 for each piece."""
    if checksum is None:
        return "none"
    size = int.from_bytes(checksum[4:8], "big")
    if checksum[:4] != b"crc\0" or len(checksum) < 8 or size == 0:
        return "unreadable"
    sums = b"".join(zlib.crc32(body[at : at + size]).to_bytes(4, "big") for at in range(0, len(body), size))
    if sums == checksum[8:]:
        return "right"
    return "unreadable" if sums.startswith(checksum[8:]) else "wrong"


def _problem(name: str, body: bytes) -> str | None:
    """Why Spark could not use a file; none where it could."""
    if not body:
        return "it is empty"
    try:
        lines = body.decode().lstrip("\0").splitlines()
    except UnicodeDecodeError:
        return "it is not text"
    if name == "metadata":
        found = _object("\n".join(lines))
        return None if found is not None and isinstance(found.get("id"), str) else "it names no query"
    if not lines or not re.fullmatch(r"v\d+", lines[0]):
        return f"it begins with {body[:20]!r}, not with a version"
    kind = name.split("/")[0]
    if lines[0] != "v1" and not (kind == "commits" and lines[0] == "v2"):
        return f"it is of format {lines[0]}, which this version does not know"
    if kind == "commits":
        return None if len(lines) == 1 or _object(lines[1]) is not None else "it is cut short"
    offsets = lines[1:] if kind == "sources" else lines[2:]
    head = kind == "sources" or (len(lines) > 1 and _object(lines[1]) is not None)
    if not head or not offsets or not all(line == NO_OFFSETS or _is_offsets(line) for line in offsets):
        return "it is cut short"
    return None


def _note_problem(name: str, body: bytes) -> str | None:
    """Why a run could not use a note of Penstock's; none where it could."""
    if not body.strip(b"\0 "):
        return "it is empty"
    try:
        if name == AGAIN_NOTE:
            _tokens(body)
        elif not isinstance(json.loads(body), dict) and name == TOPICS_NOTE:
            return "it is no JSON object"
    except (ValueError, KeyError, TypeError):
        return "it is cut short"
    return None


def _tokens(body: bytes) -> list[BatchToken]:
    return [BatchToken.from_json(line) for line in body.decode().splitlines()]


def _offsets(lines: Iterable[str]) -> Offsets:
    found: Offsets = {}
    for line in lines:
        if line != NO_OFFSETS:
            found |= {TopicPartition(t, int(p)): at for t, parts in json.loads(line).items() for p, at in parts.items()}
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_offsets(line: str) -> bool:
    found = _object(line)
    return found is not None and all(
        isinstance(parts, dict) and all(p.isdigit() and isinstance(at, int) for p, at in parts.items())
        for parts in found.values()
    )


def to_spark_json(offsets: Offsets, *, compact: bool = False) -> str:
    """Offsets in the form of Spark's `startingOffsets` option; compact as in the files of a checkpoint."""
    topics: dict[str, dict[str, int]] = {}
    for at, offset in sorted(offsets.items()):
        topics.setdefault(at.topic, {})[str(at.partition)] = offset
    return json.dumps(topics, separators=(",", ":") if compact else None)


@dataclass(frozen=True)
class CheckpointFiles:
    """Every file but the state, as it was when it was read."""

    metadata: LogFile | None
    offsets: Mapping[int, LogFile]
    commits: Mapping[int, LogFile]
    sources: Mapping[str, LogFile]
    strays: tuple[str, ...]
    """Files left over from a write that did not finish."""
    restoring: str | None
    """The restore or repair that was started here and did not finish."""
    notes: Mapping[str, LogFile] = field(default_factory=dict)
    """Penstock's own, as far as a run depends on them."""

    @property
    def again(self) -> tuple[BatchToken, ...]:
        """The batches that a restore left to be run again: the sinks have them, and the state has not."""
        note = self.notes.get(AGAIN_NOTE)
        return note.tokens if note is not None else ()

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that the offsets belong to, as far as they were noted."""
        note = self.notes.get(TOPICS_NOTE)
        return note.ids if note is not None else {}

    @property
    def newest(self) -> int | None:
        """The newest batch that this checkpoint knows of, run again or not yet."""
        return max((*self.offsets, *(token.batch_id for token in self.again)), default=None)

    @property
    def begun(self) -> int | None:
        """The newest batch with a file of offsets, which may be unusable."""
        return max(self.offsets, default=None)

    @property
    def committed(self) -> int | None:
        """The newest batch with a commit file, which may be unusable."""
        return max(self.commits, default=None)

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and has not committed."""
        return open_batch(self.begun, self.committed)

    @property
    def needed(self) -> list[str]:
        """The files that Spark reads when it starts; the others are history."""
        begun, committed = self.begun, self.committed
        names = ["metadata"]
        if begun is not None:
            names += [f"offsets/{begun}", *([f"offsets/{begun - 1}"] if begun > 0 else [])]
        if committed is not None:
            names.append(f"commits/{committed}")
        if begun == 0 and committed is None:
            names += list(self.sources)
        return names

    @property
    def initial(self) -> Offsets | None:
        """Where the first batch begins, if a file says so."""
        known = [file.initial for file in self.sources.values() if file.initial is not None]
        return {at: offset for one in known for at, offset in one.items()} if known else None

    def ends(self, batch_id: int | None) -> Offsets | None:
        """Where a batch ends, if Spark could use its file of offsets."""
        file = self.offsets.get(batch_id) if batch_id is not None else None
        return file.ends if file is not None and self.problem_of(file) is None else None

    def problem_of(self, file: LogFile) -> str | None:
        """Why a file cannot be used.

        One that was cut at the end of a line parses; only its neighbours show that it lacks a source.
        """
        if file.problem is not None or not file.name.startswith("offsets/"):
            return file.problem
        most, here = self._most_lines, len(file.lines)
        return f"offsets of {here - 1} sources, and others have {most - 1}" if here < most else None

    @cached_property
    def _most_lines(self) -> int:
        return max((len(one.lines) for one in self.offsets.values() if one.problem is None), default=0)

    @property
    def query_id(self) -> str | None:
        """The id in the metadata file; None if it cannot be read."""
        return self.metadata.query_id if self.metadata is not None else None

    @property
    def all(self) -> list[LogFile]:
        """Every file that was read."""
        first = [self.metadata] if self.metadata is not None else []
        return [*first, *self.sources.values(), *self.offsets.values(), *self.commits.values()]


def describe_batches(begun: int | None, committed: int | None) -> str:
    """How far a checkpoint is, by its newest batches."""
    if begun is None and committed is None:
        return "no batch has begun"
    text = "no batch committed" if committed is None else f"batch {committed} committed"
    return text if begun == committed else f"{text}, batch {begun if begun is not None else 'none'} begun"


def open_batch(begun: int | None, committed: int | None) -> int | None:
    """The batch that has begun and has not committed, by the newest of each."""
    return begun if begun is not None and (committed is None or committed < begun) else None


def read_files(path: str, storage: Storage = Storage()) -> CheckpointFiles:
    """Read every file of a checkpoint but the state. Of a checkpoint in use: commits first, so none is ahead."""
    filesystem, root = storage.filesystem(path)
    root = root.rstrip("/")
    top = _names(filesystem, root)
    commits = _names(filesystem, f"{root}/commits")
    offsets = _names(filesystem, f"{root}/offsets")
    sources = {
        f"sources/{one}/{name}"
        for one in _names(filesystem, f"{root}/sources")
        if one.isdigit()
        for name in _names(filesystem, f"{root}/sources/{one}")
    }
    there = top | {f"commits/{n}" for n in commits} | {f"offsets/{n}" for n in offsets} | sources
    logs = [name for name in there if name == "metadata" or _own(name).isdigit()]
    sums = [checksum_name(name) for name in logs if checksum_name(name) in there]
    noted = [name for name in (AGAIN_NOTE, TOPICS_NOTE, STATE_NOTE) if name in top]
    bodies = _bodies(filesystem, root, [*logs, *sums, *noted, *([RESTORING] if RESTORING in top else [])])
    notes = [name for name in noted if name in bodies]
    files = {
        name: LogFile(name, bodies[name], compare_checksum(bodies[name], bodies.get(checksum_name(name))))
        for name in logs
        if name in bodies
    }
    restoring = bodies.get(RESTORING)
    return CheckpointFiles(
        metadata=files.get("metadata"),
        offsets=_numbered(files, "offsets/"),
        commits=_numbered(files, "commits/"),
        sources={name: files[name] for name in sorted(files) if name.startswith("sources/")},
        strays=tuple(sorted(name for name in there if _STRAY.fullmatch(_own(name)) and not _penstock(name))),
        restoring=None if restoring is None else restoring.decode(errors="replace").strip(),
        notes={name: LogFile(name, bodies[name]) for name in notes},
    )


def written_at(path: str, name: str, storage: Storage = Storage()) -> datetime | None:
    """When a file of a checkpoint was written, where the storage says."""
    filesystem, root = storage.filesystem(path)
    try:
        found: datetime = filesystem.modified(f"{root.rstrip('/')}/{name}")
    except (OSError, NotImplementedError, KeyError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _numbered(files: Mapping[str, LogFile], folder: str) -> dict[int, LogFile]:
    found = {int(_own(name)): file for name, file in files.items() if name.startswith(folder)}
    return dict(sorted(found.items()))


def _names(filesystem: Any, folder: str) -> set[str]:
    try:
        return {str(path).rstrip("/").rsplit("/", 1)[-1] for path in filesystem.ls(folder, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _bodies(filesystem: Any, root: str, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files, requested together; one that is gone meanwhile is left out."""
    paths = {f"{root}/{name}": name for name in names}
    found = filesystem.cat(list(paths), on_error="return") if paths else {}
    for body in found.values():
        if isinstance(body, Exception) and not isinstance(body, FileNotFoundError):
            raise body
    return {paths[path]: body for path, body in found.items() if isinstance(body, bytes)}


def checksum_name(name: str) -> str:
    """The name of the file in which Spark keeps the checksum of another."""
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}.{own}.crc"


def _own(name: str) -> str:
    return name.rpartition("/")[2]


def _penstock(name: str) -> bool:
    """A run rewrites its notes all the time; Spark does not read them."""
    return name.startswith(".penstock.")
