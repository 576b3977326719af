"""A fleet: pipelines that share one Spark application and nothing else.

Each runs as in `run`: in its own thread and session, in its own pool of a fair scheduler, with its own checkpoint,
patience and history. A failed one stops alone, and is retried. With watched files, a changed one finishes its batch and
continues with the new definition; an invalid one leaves the running pipeline unchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from penstock.assembly.user_code import code_behind, refuse_missing_code
from penstock.config import InvalidDefinition, PipelineConfig, load
from penstock.config.files import files_behind, pipeline_files
from penstock.config.locations import find_collisions
from penstock.engine.listener import BatchDone, Notice
from penstock.engine.patience import StopRequest
from penstock.errors import DefinitionError, PenstockError, one_line
from penstock.preflight.options import RunSummary
from penstock.supervision.fleet_events import (
    FileChanged,
    FileRefused,
    FleetEvent,
    FleetListener,
    FleetOptions,
    FleetSummary,
)
from penstock.supervision.member import NEVER, FleetApplication, Member

_TICK = 0.1
_AFTER_INTERRUPT = 5.0
_READS = 3
"""How many times to read a file that is being written."""


def run_fleet(
    paths: Sequence[Path],
    options: FleetOptions = FleetOptions(),
    listener: FleetListener = lambda name, event: None,
    stop: StopRequest | None = None,
    session: Any = None,
) -> FleetSummary:
    """Run the pipelines of some files and folders until all have ended or a stop is requested.

    A given session is used and left open. Raises `InvalidDefinition` before anything starts if they cannot run
    together.
    """
    return Fleet(paths, options, listener, stop or StopRequest()).run(session)


class Fleet:
    """The pipelines of some files, supervised by one thread."""

    def __init__(
        self, paths: Sequence[Path], options: FleetOptions, listener: FleetListener, stop: StopRequest
    ) -> None:
        self._paths, self._options, self._stop = tuple(paths), options, stop
        self._listener, self._telling = listener, Lock()
        self._carried = RunSummary()
        self._watch = FileWatch(paths)
        self._made_of: dict[Path, frozenset[Path]] = {}
        self._application: FleetApplication | None = None
        self.members: dict[Path, Member] = {}

    def run(self, session: Any = None) -> FleetSummary:
        """Run until the end."""
        for file in pipeline_files(self._paths):
            self.members[file] = Member(file, self._options, self._tell)
            self._read(self.members[file], time.monotonic())
        configs = self._configs()
        application = FleetApplication(configs, len(self.members), self._options)
        if problems := [*find_collisions(configs), *application.problems]:
            raise InvalidDefinition(problems)
        self._application = application
        try:
            if configs or self._options.watch:
                opened = self._application.opened(lambda text: self._tell("", Notice(text)))
                with opened if session is None else nullcontext(session) as base:
                    self._tend(base)
        finally:
            deadline = time.monotonic() + _AFTER_INTERRUPT
            for member in self.members.values():
                member.join(max(0.0, deadline - time.monotonic()))
        return FleetSummary({member.name: member.outcome for member in self.members.values()}, self._carried)

    def _tend(self, session: Any) -> None:
        """Start what is due, handle what has ended, check the files; until all have ended."""
        assert self._application is not None
        looked, asked = time.monotonic(), False
        while True:
            now = time.monotonic()
            if self._stop.asked() and not asked:
                asked = True
                for member in self.members.values():
                    member.ask_stop()
            for member in list(self.members.values()):
                self._see_to(member, session, now)
            if not any(member.running for member in self.members.values()) and (asked or self._is_over()):
                return
            if self._options.watch and not asked and now - looked >= self._options.look_every:
                looked = now
                self._take_up(self._watch.look(self._made_of), now)
            self._application.refuse_lost(session)
            if asked:
                time.sleep(_TICK)
            else:
                self._stop.asked(within=_TICK)

    def _is_over(self) -> bool:
        """Whether nothing runs, nothing will, and no files are watched."""
        return not self._options.watch and all(member.due == NEVER for member in self.members.values())

    def _see_to(self, member: Member, session: Any, now: float) -> None:
        if member.settle(now) and member.removed:
            del self.members[member.file]
        elif member.due <= now and not member.running:
            if member.config is None:
                self._read(member, now)
            else:
                member.start(session, len(self.members))

    def _read(self, member: Member, now: float) -> None:
        """Load the definition from its file, if there is none yet."""
        try:
            member.take(self._load(member), now)
        except PenstockError as error:
            self._watch.know(member.file, self._made_of.get(member.file, ()))
            member.refuse(error, now)

    def _take_up(self, changes: Changes, now: float) -> None:
        for file in changes.removed:
            self._let_go(self.members[file])
        for file in (*changes.added, *changes.changed):
            known = file in self.members
            member = self.members.setdefault(file, Member(file, self._options, self._tell))
            try:
                config = self._load(member)
            except PenstockError as error:
                self._tell(member.name, FileRefused(file, error, member.running))
                if not member.running:
                    member.refuse(error, now, told=True)
                continue
            self._tell(config.name, FileChanged(file, "changed" if known else "added"))
            member.take(config, now)

    def _let_go(self, member: Member) -> None:
        self._tell(member.name, FileChanged(member.file, "removed"))
        member.removed = True
        member.ask_stop()
        if not member.running:
            del self.members[member.file]

    def _load(self, member: Member) -> PipelineConfig:
        """The definition, if it can join the others; its files are recorded as they were read.

        Raises only `PenstockError`: any other error with a file is also the state of that pipeline, and the others
        continue.
        """
        try:
            return self._load_unguarded(member)
        except PenstockError:
            raise
        except Exception as error:
            raise DefinitionError("FILE_UNUSABLE", f"reading {member.file}: {one_line(error)}") from error

    def _load_unguarded(self, member: Member) -> PipelineConfig:
        file = member.file
        for _ in range(_READS):
            before = _written(file)
            config = load(file)
            refuse_missing_code(config)
            self._made_of[file] = files_behind(config) | code_behind(config)
            self._watch.know(file, self._made_of[file])
            if _written(file) == before:
                break
        if self._application is not None:
            others = [one.next or one.config for one in self.members.values() if one is not member]
            problems = find_collisions([*(one for one in others if one is not None), config])
            problems += self._application.problems_with(config)
            if problems:
                raise InvalidDefinition(problems)
        return config

    def _configs(self) -> list[PipelineConfig]:
        return [member.config for member in self.members.values() if member.config is not None]

    def _tell(self, name: str, event: FleetEvent) -> None:
        with self._telling:
            if isinstance(event, BatchDone):
                self._carried.add(event.metrics)
            self._listener(name, event)


def _written(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


# Polls the files of a fleet: what was added, changed or removed since the last time.
#
# A definition is its file and what that is made of: schemas, certificates, secrets in files, code. Only what has been
# the same at two looks is reported, so that a file that is being written is not taken half, and only what differs in
# its bytes. A folder that cannot be read says nothing about its files.

Stats = tuple[tuple[str, int, int, int], ...]
"""For each file its path, modification time and identity on disk."""


@dataclass(frozen=True)
class Changes:
    """The files that are not what they were."""

    added: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()


@dataclass
class _Known:
    stats: Stats
    digest: str


class FileWatch:
    """Polls the files of some paths. Those that exist at the start are known."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._folders = tuple(path for path in paths if path.is_dir())
        self._known: dict[Path, _Known] = {}
        self._seen: dict[Path, Stats | None] = {}

    def know(self, file: Path, made_of: Iterable[Path] = ()) -> None:
        """Record the current state of a file and the files it depends on."""
        whole = _whole(file, made_of)
        self._known[file] = _Known(_stats(whole), _digest(whole))

    def look(self, made_of: Mapping[Path, Iterable[Path]]) -> Changes:
        """What is new since the last look, each once; `made_of` are the files of each definition."""
        try:
            there = pipeline_files(self._paths)
            if any(not folder.is_dir() for folder in self._folders):
                return Changes()
        except OSError:
            return Changes()
        now: dict[Path, Stats | None] = {
            file: _stats(_whole(file, made_of.get(file, ()))) for file in there if file.is_file()
        }
        now |= {file: None for file in self._known if file not in now}
        steady = [file for file, stats in now.items() if file in self._seen and self._seen[file] == stats]
        self._seen = now
        added = tuple(file for file in steady if now[file] is not None and file not in self._known)
        removed = tuple(file for file in steady if now[file] is None)
        changed = tuple(file for file in steady if file not in added and self._differs(file, now[file], made_of))
        for file in removed:
            del self._known[file]
        for file in (*added, *changed):
            self.know(file, made_of.get(file, ()))
        return Changes(added, changed, removed)

    def _differs(self, file: Path, stats: Stats | None, made_of: Mapping[Path, Iterable[Path]]) -> bool:
        known = self._known[file]
        if stats is None or stats == known.stats:
            return False
        digest = _digest(_whole(file, made_of.get(file, ())))
        known.stats = stats
        return digest != known.digest


def _whole(file: Path, made_of: Iterable[Path]) -> list[Path]:
    return sorted({file.absolute(), *made_of})


def _stats(files: Iterable[Path]) -> Stats:
    found = []
    for file in files:
        try:
            stat = file.stat()
            found.append((str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append((str(file), 0, 0, 0))
    return tuple(found)


def _digest(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        try:
            inner = hashlib.sha256(file.read_bytes()).digest()
        except OSError:
            inner = b""
        whole.update(str(file).encode(errors="replace") + b"\0" + inner)
    return whole.hexdigest()
