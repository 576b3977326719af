"""Which run is at work on a checkpoint: the note that it keeps next to Spark's files, and the request to stop it.

`.penstock.run` says which process, where, since when, and how far; it is rewritten after each batch and every few
seconds. `.penstock.stop` is how others ask it to stop, from wherever they reach the checkpoint.
Neither can disturb the run: once it has begun, nothing here raises. Whether a pipeline runs is decided on this host by
the lock, since the kernel frees it when its holder dies; of a run on another host, whose lock may not show here, by the
age of its note.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, Literal

from pydantic import AwareDatetime, TypeAdapter

from penstock.background import Repeating
from penstock.checkpoint.atomic import put_whole_at
from penstock.checkpoint.lock import held_by
from penstock.errors import MissingError, PenstockError
from penstock.storage import Storage, is_local
from penstock.storage.stores import SHORT

_SILENCE = timedelta(seconds=30)
"""How old the note of a run on another host may be while it counts as running: three beats."""

State = Literal["running", "stopped", "failed", "killed", "silent", "none"]
"""`silent`: on another host, and not heard of; killed there, or cut off. `none`: no run was ever noted."""


@dataclass(frozen=True)
class RunStatus:
    """The run of a checkpoint, if there is or was one."""

    state: State
    holder: str | None
    """Who runs, or holds the lock for something else."""
    note: RunNote | None
    """The note of that run or of the last one; None for a holder that is not a run."""

    @property
    def running(self) -> bool:
        """Whether the checkpoint is in use."""
        return self.state == "running"

    @property
    def ended_badly(self) -> str | None:
        """How the last run ended, in words, where it did not stop by itself and none has begun since."""
        match self.state, self.note:
            case "killed", _:
                return "the last run was killed"
            case "failed", RunNote(error=error):
                return f"the last run was ended by {error}"
            case "silent", RunNote() as note:
                return f"{note.who} has not been heard of since {note.at:%Y-%m-%d %H:%M:%S} UTC"
        return None


def shown_state(run: RunStatus | None) -> str:
    """`running`, or how the last run ended; `not running` where none was ever noted."""
    return "not running" if run is None or run.state == "none" else run.state


REPAIRS = "the next one repairs what it left"
"""What follows for a run that was killed."""


def find_run(checkpoint: str, storage: Storage = Storage()) -> RunStatus:
    """Find the run of a checkpoint."""
    presence = Presence(checkpoint, storage)
    note = presence.read()
    while True:
        # The note is read before and after the lock, and must be of one run: it may begin or end in the meantime.
        before, holder, note = note, held_by(checkpoint, storage), presence.read()
        if (before and before.started_at) == (note and note.started_at):
            break
    if holder is not None:
        current = note if note is not None and note.who == holder and note.ended_at is None else None
        return RunStatus("running", holder, current)
    if note is None:
        return RunStatus("none", None, None)
    if note.ended_at is not None:
        return RunStatus("failed" if note.error else "stopped", None, note)
    if note.host == socket.gethostname():
        return RunStatus("killed", None, note)
    heard = datetime.now(UTC) - note.at < _SILENCE
    return RunStatus("running" if heard else "silent", note.who if heard else None, note)


RUN_NOTE, STOP_NOTE = ".penstock.run", ".penstock.stop"
BEAT_SECONDS = 10.0
"""How old the note of a run that lives gets at most, unless its storage is away."""
_POLL_SECONDS = 0.5
_POLL_SECONDS_AWAY = 2.0
"""In an object store every check is a request that is paid for."""


@dataclass(frozen=True)
class RunFacts:
    """What a run reports about itself; the fields of the last batch are None until there is one."""

    pipeline: str = ""
    lane: str = ""
    doing: str = "starting"
    """For people: `starting`, `running`, `waiting to try again: CODE`, `stopping`."""
    phase: str | None = None
    """The phase of the open batch: `stage`, `commit:<sink>`; None between batches."""
    stalled: str | None = None
    """Why the open batch counts as stalled; None while it makes progress."""
    batches: int = 0
    """How many this run has done."""
    batch_id: int | None = None
    batch_at: str | None = None
    """When the last batch was over, RFC 3339."""
    batch_seconds: float | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    quarantined: int | None = None
    lag: int | None = None
    """The offsets that waited when the last batch was over."""


@dataclass(frozen=True)
class RunNote:
    """A run by its note. Without `ended_at` it runs or was killed: the lock shows which."""

    pid: int
    host: str
    started_at: AwareDatetime
    at: AwareDatetime
    """When the note was written."""
    version: str = ""
    ended_at: AwareDatetime | None = None
    error: str | None = None
    """The code of the error that ended it."""
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def who(self) -> str:
        """The run as the lock names it."""
        return f"process {self.pid} on {self.host}"


class Presence:
    """The notes of one checkpoint."""

    def __init__(self, checkpoint: str, storage: Storage = Storage()) -> None:
        self._path = checkpoint
        self._storage = storage
        self._note: RunNote | None = None
        self._writing = threading.Lock()

    def begin(self, facts: RunFacts) -> None:
        """The run, once it holds the lock: note that it has started, and clear requests to earlier runs."""
        now = datetime.now(UTC)
        note = RunNote(os.getpid(), socket.gethostname(), now, now, version("penstock"), facts=facts)
        try:
            filesystem, root = self._filesystem
            filesystem.makedirs(root, exist_ok=True)
            self._remove(STOP_NOTE)
            self._write(RUN_NOTE, _as_json(note))
        except OSError as error:
            raise MissingError(
                "CHECKPOINT_UNWRITABLE",
                f"writing into the checkpoint {self._path}: it cannot be written",
                context={"system": error.strerror or str(error)},
                hint="is the disk full, and may this user write there?",
            ) from None
        self._note = note

    def beat(self, facts: RunFacts | None = None, *, now: bool = True) -> None:
        """The run: renew the heartbeat with what has changed; unless `now`, it is written with the next one."""
        with self._writing:
            if self._note is not None and self._note.ended_at is None:
                self._note = replace(self._note, at=datetime.now(UTC), facts=facts or self._note.facts)
                if now:
                    self._rewrite()

    def end(self, error: str | None = None) -> None:
        """The run: note that it has ended, and the error that ended it."""
        with self._writing:
            if self._note is not None and self._note.ended_at is None:
                now = datetime.now(UTC)
                self._note = replace(self._note, at=now, ended_at=now, error=error)
                self._rewrite()
                with suppress(PenstockError, OSError):
                    self._remove(STOP_NOTE)

    @contextmanager
    def heartbeat(self, on_stop: Callable[[], None]) -> Iterator[None]:
        """While the run lasts: a thread writes the heartbeat, and calls `on_stop` once when a stop is requested."""
        poll = _POLL_SECONDS if is_local(self._path) else _POLL_SECONDS_AWAY
        asked, quiet = False, 0.0

        def attend() -> float:
            nonlocal asked, quiet
            quiet += poll
            if quiet >= BEAT_SECONDS / 2:
                quiet = 0.0
                self.beat()
            if not asked and self.stop_asked():
                asked = True
                on_stop()
            return poll

        attending = Repeating("presence", attend, poll)
        try:
            yield
        finally:
            attending.close(5)

    def read(self) -> RunNote | None:
        """Others: the run that was here last, over or not; None for a note that is missing or damaged."""
        text = self._text(RUN_NOTE)
        try:
            return _notes().validate_json(text) if text is not None else None
        except ValueError:
            return None

    def ask_stop(self, who: str) -> None:
        """Others: ask the run to finish its batch and stop. The next run ignores the request."""
        self._write(STOP_NOTE, json.dumps({"who": who, "at": datetime.now(UTC).isoformat()}))

    def stop_asked(self) -> bool:
        """Whether a stop is asked for; `begin` has cleared away what was asked before."""
        try:
            return bool(self._filesystem[0].isfile(f"{self._filesystem[1]}/{STOP_NOTE}"))
        except (PenstockError, OSError):
            # Unreachable storage is no request.
            return False

    def withdraw_stop(self) -> None:
        """Others: ask no longer."""
        self._remove(STOP_NOTE)

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        # Reading must not block for long: the next attempt is soon.
        return self._storage.filesystem(self._path, SHORT)

    def _rewrite(self) -> None:
        assert self._note is not None
        with suppress(PenstockError, OSError):
            self._write(RUN_NOTE, _as_json(self._note))

    def _write(self, name: str, text: str) -> None:
        filesystem, root = self._filesystem
        put_whole_at(filesystem, f"{root}/{name}", text.encode(), durable=False)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem[0].rm_file(f"{self._filesystem[1]}/{name}")

    def _text(self, name: str) -> str | None:
        try:
            return str(self._filesystem[0].cat_file(f"{self._filesystem[1]}/{name}").decode(errors="replace"))
        except (FileNotFoundError, NotADirectoryError):
            return None


def _as_json(note: RunNote) -> str:
    return json.dumps(asdict(note), default=lambda when: when.isoformat())


@cache
def _notes() -> TypeAdapter[RunNote]:
    return TypeAdapter(RunNote)
