"""Files of a checkpoint, written: each is there whole or not at all, whatever ends the writer.

Spark's own are written exactly as Spark writes them, and only where no run holds the checkpoint. Spark's local file
system keeps a checksum beside each file (`.N.crc`) and refuses a file that does not match it; a file without one is
taken as it is. So the checksum goes first, then the file comes in one rename.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from penstock.checkpoint.logs import NO_OFFSETS, RESTORING, LogFile, Offsets, to_spark_json
from penstock.errors import TerminalError
from penstock.storage import Storage


def put_whole(path: Path, body: bytes, *, durable: bool = True) -> None:
    """Write a local file by a draft beside it and a rename. One that need not outlive the machine is not synced."""
    # A draft is named so that no reader of the folder takes it for a file of Spark's or of a run.
    draft = path.with_name(f".draft{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with draft.open("wb") as file:
            file.write(body)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def put_whole_at(filesystem: Any, path: str, body: bytes, *, durable: bool = True) -> None:
    """The same wherever a path is: an object store shows an object only when it is whole."""
    if isinstance(filesystem, LocalFileSystem):
        put_whole(Path(path), body, durable=durable)
    else:
        filesystem.pipe_file(path, body)


@contextmanager
def restoring(checkpoint: str, what: str, storage: Storage = Storage()) -> Iterator[None]:
    """Note that the checkpoint is being written; the note stays where the writing did not come to its end."""
    put_file(checkpoint, RESTORING, what.encode(), storage)
    yield
    remove_file(checkpoint, RESTORING, storage)


def put_offsets(
    checkpoint: str, batch_id: int, ends: Offsets, like: int | None = None, storage: Storage = Storage()
) -> None:
    """Write `offsets/N`. Settings and the order of the sources are those of the batch `like`, the watermark is the one
    that `like` left when it was committed.

    Without such a batch there must be a single source, and Spark takes the settings of the session.
    """
    if like is None:
        head, known = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}', [""]
    else:
        head, *known = _read(checkpoint, f"offsets/{like}", storage).lines
        head = _watermarked(head, read_text(checkpoint, f"commits/{like}", storage))
    lines = [to_spark_json(ends, compact=True)] if len(known) == 1 else _by_source(checkpoint, ends, known, storage)
    put_file(checkpoint, f"offsets/{batch_id}", "\n".join(["v1", head, *lines]).encode(), storage)


def put_commit(checkpoint: str, batch_id: int, like: int | None = None, storage: Storage = Storage()) -> None:
    """Write `commits/N` as the batch `like` has it; without one, as a batch without a watermark."""
    body = _read(checkpoint, f"commits/{like}", storage).body if like is not None else b'v1\n{"nextBatchWatermarkMs":0}'
    put_file(checkpoint, f"commits/{batch_id}", body, storage)


def put_metadata(checkpoint: str, query_id: str, storage: Storage = Storage()) -> None:
    """Write `metadata`: from then on the checkpoint is one."""
    put_file(checkpoint, "metadata", json.dumps({"id": query_id}, separators=(",", ":")).encode(), storage)


def put_initial(checkpoint: str, starts: Sequence[Offsets], storage: Storage = Storage()) -> None:
    """Write `sources/K/0` for each source: where its first batch begins."""
    for source, offsets in enumerate(starts):
        # Spark writes a zero byte first, so that Spark 2.1.0 fails on the file instead of misreading it.
        put_file(checkpoint, f"sources/{source}/0", b"\0v1\n" + to_spark_json(offsets, compact=True).encode(), storage)


def put_file(checkpoint: str, name: str, body: bytes, storage: Storage = Storage()) -> None:
    """Write one file of the checkpoint, and leave no checksum of what was there."""
    filesystem, path = _at(checkpoint, name, storage)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    _remove(filesystem, _checksum(path))
    put_whole_at(filesystem, path, body)


def remove_file(checkpoint: str, name: str, storage: Storage = Storage()) -> None:
    """Remove one file of the checkpoint with its checksum; one that is not there is no error."""
    filesystem, path = _at(checkpoint, name, storage)
    _remove(filesystem, path)
    _remove(filesystem, _checksum(path))


def read_text(checkpoint: str, name: str, storage: Storage = Storage()) -> str | None:
    """The text of a file of the checkpoint; None where it is not there."""
    filesystem, path = _at(checkpoint, name, storage)
    try:
        return str(filesystem.cat_file(path).decode(errors="replace"))
    except FileNotFoundError:
        return None


def _at(checkpoint: str, name: str, storage: Storage) -> tuple[Any, str]:
    filesystem, root = storage.filesystem(checkpoint)
    return filesystem, f"{root.rstrip('/')}/{name}"


def _checksum(path: str) -> str:
    folder, own = posixpath.split(path)
    return f"{folder}/.{own}.crc"


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.rm_file(path)


def _read(checkpoint: str, name: str, storage: Storage) -> LogFile:
    filesystem, path = _at(checkpoint, name, storage)
    try:
        return LogFile(name, filesystem.cat_file(path))
    except FileNotFoundError:
        raise _unusable(checkpoint, name, "it is not there, and a file like it was to be written") from None


def _watermarked(head: str, commit: str | None) -> str:
    """The head of a batch's offsets, with the watermark that the commit of the batch before left."""
    if commit is None:
        return head
    left = json.loads(commit.partition("\n")[2] or "{}").get("nextBatchWatermarkMs")
    body = json.loads(head)
    return json.dumps(body | ({"batchWatermarkMs": left} if left is not None else {}), separators=(",", ":"))


def _by_source(checkpoint: str, ends: Offsets, known: Sequence[str], storage: Storage) -> list[str]:
    """A line for each source, which is told by the topics that it had before."""
    topics = [_topics(checkpoint, source, line, storage) for source, line in enumerate(known)]
    unknown = sorted({at.topic for at in ends} - set().union(*topics))
    if unknown:
        raise _unusable(checkpoint, "offsets", f"no source of it reads {', '.join(unknown)}")
    parts = [{at: end for at, end in ends.items() if at.topic in mine} for mine in topics]
    return [to_spark_json(part, compact=True) if part else NO_OFFSETS for part in parts]


def _topics(checkpoint: str, source: int, line: str, storage: Storage) -> set[str]:
    if line == NO_OFFSETS:
        [line] = _read(checkpoint, f"sources/{source}/0", storage).lines
    return set(json.loads(line))


def _unusable(checkpoint: str, name: str, found: str) -> TerminalError:
    return TerminalError(
        "CHECKPOINT_BROKEN",
        f"writing checkpoint {checkpoint}: {name} cannot be used",
        context={"found": found},
        hint="penstock checkpoint verify FILE says what is wrong with it",
    )
