"""A history: what operators do to one pipeline with every sink, against real targets, and what must hold at its end.

Each record is once in every target or once in the quarantine, or the run has stopped with a code whose ways out lead to
such a state. A second pipeline writes to two of the targets; copies that replays make elsewhere have no record twice.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from tests.local_spark import LocalSession
from tests.operators.local import Phase, rewriting, run_local
from tests.operators.targets import Targets
from tests.tables import read_table

from penstock.config import PipelineConfig, load
from penstock.errors import PenstockError
from penstock.ops.quarantine.place import Selection, quarantine_of
from penstock.ops.redrive.redrive import _CLOSED, _returned, apply_redrive, plan_redrive
from penstock.ops.replay.folder import ReplayRequest
from penstock.ops.replay.replay import apply_replay, give_up_replay, plan_replay
from penstock.preflight.options import RunOptions

SINKS = ("delta", "iceberg", "files", "pg", "out")
SHARED = ("delta", "pg")
"""The targets that the second pipeline writes to as well."""
REPLAYED = ("delta", "iceberg", "pg")
"""The targets that a replay in place can replace rows of."""
OTHER_NAMES = {"delta": "lake", "out": "outbox"}
"""What sinks are called once they are renamed."""
STRICT, LENIENT = "order_id BIGINT, amount DOUBLE NOT NULL", "order_id BIGINT, amount DOUBLE"
"""Under the first schema a record without an amount is bad, under the second it is good."""
FIRST_OTHER = 1_000_000
"""The first record of the second pipeline."""

Action = tuple[str, ...]


class Killed(BaseException):
    """The driver is dead: nothing may catch this and go on."""


@dataclass
class Definition:
    """The file of one pipeline, as it is now."""

    file: Path
    name: str
    brokers: str
    topic: str
    clean: str
    sinks: dict[str, str]
    """For each target the name of the sink that writes to it."""
    schema: str = STRICT
    checkpoints: str = "checkpoints"
    quarantine: str = "quarantine"
    checkpoint: int = 0

    def write(self) -> None:
        """Write the file."""
        places: dict[str, dict[str, Any]] = {
            "delta": {"type": "delta", "path": "lake/delta"},
            "iceberg": {"type": "iceberg", "table": "shop.orders", "warehouse": "lake/iceberg"},
            "files": {"type": "parquet", "path": "lake/files"},
            "pg": {
                **{"type": "postgres", "url": "${env:TEST_DB}", "table": "orders"},
                **{"create": True, "coordinates": True},
            },
            "out": {"type": "kafka", "topic": self.clean, "key": "order_id", "slots": 2},
            "extra": {"type": "delta", "path": "lake/extra"},
        }
        body = {
            "name": self.name,
            "source": {
                **{"type": "kafka", "brokers": self.brokers, "topics": [self.topic]},
                **{"start": "earliest", "max_offsets": 4},
            },
            "decode": {"format": "json", "schema": self.schema},
            "quarantine": {"table": f"lake/{self.quarantine}"},
            "sinks": [{"name": name, **places[target]} for target, name in self.sinks.items()],
            "checkpoint": f"{self.checkpoints}/{self.checkpoint}",
            "trigger": {"available_now": True},
        }
        self.file.write_text(yaml.safe_dump(body, sort_keys=False))

    def load(self) -> PipelineConfig:
        """The file as the product reads it."""
        return load(self.file)


@dataclass
class World:
    """The pipelines, their targets, and what was done so far."""

    folder: Path
    topics: Any
    topic: str
    clean: str
    database: Any
    name: str
    sent: list[bool] = field(default_factory=list)
    """For each record whether it has an amount."""
    sent_to_other: int = 0
    accepted: int = 0
    """Up to which record duplicates were accepted."""
    given_up: int = 0
    """Up to which record it was accepted that a quarantine which went back has lost some."""
    since: dict[str, int] = field(default_factory=dict)
    """The first record that must be in a target whose sink was added later."""
    replayed: set[int] = field(default_factory=set)
    """Records that a replay in place has found bad, or brought to some targets alone: they may be in both places."""
    unfinished: list[tuple[str, Action]] = field(default_factory=list)
    """Redrives and replays that were killed, each with the schema it was begun with."""
    copies: int = 0
    wrong: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        brokers = self.topics.brokers
        self.targets = Targets(self.folder, brokers, self.clean, self.database)
        sinks = {name: name for name in SINKS}
        self.main = Definition(self.folder / "orders.yaml", self.name, brokers, self.topic, self.clean, sinks)
        self.main.write()
        self.other: Definition | None = None

    def do(self, action: Action) -> None:
        """Carry one action out; an error that stops a run is noted."""
        what, *with_ = action
        text = " ".join(action)
        try:
            getattr(self, f"_{what}")(*with_)
            self.log.append(text)
        except Killed:
            self.log.append(f"{text}: killed")
            if what in ("redrive", "replay"):
                self.unfinished.append((self.main.schema, action[:-1]))
        except PenstockError as error:
            self.log.append(f"{text}: {error.code}")

    def settle(self) -> None:
        """Take the ways out that errors name until runs drain the topics and what was killed is finished."""
        self._settle(self.main, lambda options: self._drain(options))
        if self.other is not None:
            other = self.other
            self._settle(other, lambda options: self._drain(options, definition=other))
        # A redrive waits for replays in place of the same targets.
        for schema, (what, *with_) in sorted(self.unfinished, key=lambda one: one[1][0] == "redrive"):
            self.main.schema = schema
            self.main.write()
            self._settle(self.main, lambda _: getattr(self, f"_{what}")(*with_))  # noqa: B023  called at once
        if self.unfinished:
            # To finish them a sink may have been put back, which has missed what the stream did meanwhile.
            self._settle(self.main, lambda options: self._drain(options))

    def check(self) -> list[str]:
        """What is wrong, where anything is."""
        wrong, quarantined = self.wrong, self.quarantined()
        for target in self.main.sinks:
            held, bad = self.targets.ids(target), quarantined[target]
            for number in range(len(self.sent)):
                if not held[number] and not bad[number] and number >= max(self.since.get(target, 0), self.given_up):
                    wrong.append(f"record {number} is neither in {target} nor in the quarantine")
                if number < self.accepted:
                    continue
                if held[number] > 1:
                    wrong.append(f"record {number} is {held[number]} times in {target}")
                if bad[number] > 1:
                    wrong.append(f"record {number} is {bad[number]} times in the quarantine for {target}")
                if held[number] and bad[number] and number not in self.replayed:
                    wrong.append(f"record {number} is in {target} and in the quarantine")
            if target in SHARED:
                others = range(FIRST_OTHER, FIRST_OTHER + self.sent_to_other)
                wrong += [f"record {n} is {held[n]} times in {target}" for n in others if held[n] != 1]
        for copy in range(self.copies + 1):
            twice = [number for number, count in self.targets.ids(f"copy-{copy}").items() if count > 1]
            wrong += [f"record {number} is twice in copy {copy}" for number in twice]
        return wrong

    def quarantined(self) -> dict[str, Counter[int]]:
        """For each target, how often each record is in the quarantine for its sink, and waits to be redriven."""
        found: dict[str, Counter[int]] = {target: Counter() for target in self.main.sinks}
        config = self.main.load()
        place = quarantine_of(config)
        marks = place.read_marks()
        states = place.read(marks=pl.concat([marks, _returned(config, marks)])).iter_rows(named=True)
        waiting = {(r["offset"], r["refused_by"]): r["wanted_by"] for r in states if r["state"] not in _CLOSED}
        table = self.folder / "lake/quarantine"
        for row in read_table(table).to_pylist() if (table / "_delta_log").is_dir() else ():
            identity = (row["offset"], row["stage"].partition(" ")[2] or None)
            if identity not in waiting:
                continue
            wanted = waiting[identity]
            for target in self.main.sinks:
                names = {target, OTHER_NAMES.get(target, target)}
                found[target][row["offset"]] += wanted is None or not names.isdisjoint(wanted.split(","))
        return found

    # --- actions: the stream ---

    def _send(self, good: str, bad: str) -> None:
        kinds = [True] * int(good) + [False] * int(bad)
        random.Random(len(self.sent)).shuffle(kinds)
        numbers = range(len(self.sent), len(self.sent) + len(kinds))
        self.sent += kinds
        self.topics.send(self.topic, [{"order_id": n, **({"amount": 1.0} if self.sent[n] else {})} for n in numbers])

    def _run(self) -> None:
        self._drain()

    def _kill(self, phase: str, batch: str) -> None:
        """The driver dies when the n-th batch of its run enters a phase."""
        self._drain(enter=_at(phase, int(batch), _die))

    def _take_over(self, phase: str, batch: str) -> None:
        """The driver hangs; another one resumes with a new checkpoint and drains; then the first wakes up."""

        def another() -> None:
            before = self.main.checkpoint
            try:
                self._resume()
            except PenstockError as error:
                self.log.append(f"  the second driver: {error.code}")
                self.main.checkpoint = before
                self.main.write()

        self._drain(enter=_at(phase, int(batch), another))

    def _beside(self, phase: str, batch: str) -> None:
        """The driver hangs; another one with the same checkpoint drains; then the first wakes up."""
        self._drain(enter=_at(phase, int(batch), self._run))

    def _beside_edited(self, phase: str, batch: str) -> None:
        """The same, and the other one has an edited definition."""

        def another() -> None:
            self._edit()
            self._run()

        self._drain(enter=_at(phase, int(batch), another))

    def _resume(self) -> None:
        self._lose_checkpoint()
        self._drain(RunOptions(resume_from_table=True))

    def _catch_up(self) -> None:
        self._drain(RunOptions(catch_up=True))

    def _accept(self) -> None:
        """Everything is read again, with a fresh checkpoint."""
        self._lose_checkpoint()
        self.accepted = len(self.sent)
        self._drain(RunOptions(accept_duplicates=True))

    def _other(self, count: str) -> None:
        """The second pipeline gets some records and runs."""
        if self.other is None:
            self.other = Definition(
                self.folder / "other.yaml",
                f"{self.name}-other",
                self.topics.brokers,
                self.topics.create(1),
                self.clean,
                {target: target for target in SHARED},
                LENIENT,
                "other-checkpoints",
                "other-quarantine",
            )
            self.other.write()
        first = FIRST_OTHER + self.sent_to_other
        self.sent_to_other += int(count)
        self.topics.send(self.other.topic, [{"order_id": first + n, "amount": 2.0} for n in range(int(count))])
        self._drain(definition=self.other)

    # --- actions: the definition ---

    def _edit(self) -> None:
        self.main.schema = LENIENT if self.main.schema == STRICT else STRICT
        self.main.write()

    def _no_topic(self) -> None:
        """Without the Kafka sink: its topic cannot tell what a quarantine has lost."""
        del self.main.sinks["out"]
        self.main.write()

    def _add_sink(self) -> None:
        if "extra" not in self.main.sinks:
            self.main.sinks["extra"] = "extra"
            if not self.targets.ids("extra"):
                self.since["extra"] = len(self.sent)
            self.main.write()

    def _remove_sink(self) -> None:
        self.main.sinks.pop("extra", None)
        self.main.write()

    def _rename_sink(self, target: str) -> None:
        if target not in self.main.sinks:
            return
        self.main.sinks[target] = OTHER_NAMES[target] if self.main.sinks[target] == target else target
        self.main.write()

    # --- actions: things are lost and restored ---

    def _save(self, target: str) -> None:
        self.targets.save(target)

    def _put_back(self, target: str) -> None:
        if not self.targets.put_back(target):
            self.log.append("  nothing to put back")

    def _undo(self, target: str) -> None:
        if not self.targets.undo(target):
            self.log.append("  nothing to undo")

    def _lose_checkpoint(self) -> None:
        self.main.checkpoint += 1
        self.main.write()

    def _save_checkpoint(self) -> None:
        here, kept = self.folder / f"checkpoints/{self.main.checkpoint}", self.folder / "kept-checkpoint"
        shutil.rmtree(kept, ignore_errors=True)
        if here.is_dir():
            shutil.copytree(here, kept)

    def _put_back_checkpoint(self) -> None:
        here, kept = self.folder / f"checkpoints/{self.main.checkpoint}", self.folder / "kept-checkpoint"
        if kept.is_dir():
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(kept, here)

    # --- actions: redrives and replays, killed when they enter a phase ---

    def _redrive(self, phase: str = "") -> None:
        with rewriting(_at(phase, 0, _die)):
            apply_redrive(plan_redrive(self.main.load(), Selection()), session=LocalSession(copies=False))

    def _replay(self, targets: str, phase: str = "") -> None:
        """In place, of everything that the stream has committed."""
        before = self._waiting()
        try:
            names = tuple(self.main.sinks[target] for target in targets.split(","))
            self._apply_replay(ReplayRequest("earliest", "committed", sinks=names, again=True), phase)
        finally:
            now = self._waiting()
            self.replayed |= (now - before) | {n for target in REPLAYED for n in now & {*self.targets.ids(target)}}

    def _replay_into(self, phase: str = "") -> None:
        """Into another table, and once more into the same one, which must be refused."""
        name, table = self.main.sinks["delta"], f"copy-{self.copies}"
        into = (f"{name}={self.folder / 'lake' / table}",)
        request = ReplayRequest("earliest", "committed", sinks=(name,), into=into)
        try:
            end = self._apply_replay(request, phase)
            held, rejects = self.targets.ids(table), self.folder / f"lake/{table}_quarantine"
            bad = {row["offset"] for row in read_table(rejects).to_pylist()}
            lost = [number for number in range(end) if not held[number] and number not in bad]
            self.wrong += [f"record {number} is not in {table}" for number in lost]
            self._apply_replay(request)
            self.wrong.append(f"the replay into {table} was done twice")
        except PenstockError as error:
            self.copies += 1
            if error.code != "REPLAY_FINISHED":
                raise

    # --- what the actions are made of ---

    def _drain(
        self,
        options: RunOptions = RunOptions(),
        enter: Phase = lambda batch, phase: None,
        definition: Definition | None = None,
    ) -> None:
        run_local((definition or self.main).load(), options, enter)

    def _apply_replay(self, request: ReplayRequest, phase: str = "") -> int:
        """Up to which offset it went."""
        plan = plan_replay(self.main.load(), request)
        with rewriting(_at(phase, 0, _die)):
            apply_replay(plan, session=LocalSession(copies=False))
        return plan.ranges[0].end

    def _waiting(self) -> set[int]:
        return {number for bad in self.quarantined().values() for number in +bad}

    # --- ways out ---

    def _settle(self, definition: Definition, carry: Callable[[RunOptions], object]) -> None:
        options = RunOptions()
        for _ in range(12):
            try:
                carry(options)
                return
            except PenstockError as error:
                self.log.append(f"way out of {error.code}: {error.line[:150]}")
                if error.code in ("REPLAY_SHARED_TARGET", "REPLAY_EMPTY"):
                    return  # a replay that was killed is not finished: its targets are as they were
                options = self._way_out(definition, error, options)
        raise AssertionError(f"no way out: {self.log}")

    def _way_out(self, definition: Definition, error: PenstockError, before: RunOptions) -> RunOptions:
        match error.code:
            case "TARGET_WENT_BACK":
                return RunOptions(catch_up=True, resume_from_table=before.resume_from_table)
            case "SINK_HOLDS_OTHER_RUN":
                return RunOptions(resume_from_table=True)
            case "RESUME_SINKS_DISAGREE":
                return RunOptions(resume_from_table=True, catch_up=True)
            case "FENCED" | "CHECKPOINT_WENT_BACK" | "SINK_TOKEN_MISMATCH" | "RESUME_NEEDS_FRESH_CHECKPOINT":
                definition.checkpoint += 1
                definition.write()
                return RunOptions(resume_from_table=True, catch_up=before.catch_up and "RESUME" in error.code)
            case "SINK_RENAMED":
                name = error.summary.split()[1].rstrip(":")
                self._rename_sink(next(target for target, now in self.main.sinks.items() if now == name))
                return before
            case "REDRIVE_SINK_GONE" | "REPLAY_SINK_GONE":
                for name in str(error.context["gone"]).split(", "):
                    renamed = [target for target, other in OTHER_NAMES.items() if name in (target, other)]
                    self._rename_sink(renamed[0]) if renamed else self._add_sink()
                return before
            case "REPLAY_UNFINISHED":
                give_up_replay(definition.load(), str(error.context["replay"]))
                return before
            case "QUARANTINE_NOT_RECOVERABLE":
                if self.targets.undo("quarantine"):
                    return RunOptions(resume_from_table=before.resume_from_table)
                self.given_up = self.accepted = len(self.sent)
                return RunOptions(accept_duplicates=True)
            case "SINK_COMMIT_CONFLICT":
                return before
        raise AssertionError(f"{error.code} has no way out: {self.log}")


def _at(phase: str, nth: int, do: Callable[[], None]) -> Phase:
    """Do something once, when the n-th batch enters a phase."""
    seen: list[int] = []
    done: list[bool] = []

    def enter(batch: int, now: str) -> None:
        if batch not in seen:
            seen.append(batch)
        if not done and now == phase and len(seen) > nth:
            done.append(True)
            do()

    return enter


def _die() -> None:
    raise Killed


def draw(seed: int, length: int) -> list[Action]:
    """A history at random, always the same for a seed.

    Every third has few kinds of actions and two targets: what needs several of them together comes up sooner.
    """
    chance = random.Random(seed)
    narrow = seed % 3 == 2
    targets = [*SINKS[:4], "quarantine", "extra"]
    targets = chance.sample(targets[:-1], 2) if narrow else targets
    drawn: list[Action] = [*([("no_topic",)] if seed % 2 else []), ("send", "3", "1"), ("run",)]

    def one_of(*some: str) -> str:
        return chance.choice(some)

    def target(after: str = "") -> str:
        """A target, rather one that something was done to."""
        return chance.choice([a[1] for a in drawn if a[0] == after] or targets)

    def in_batch() -> tuple[str, str]:
        commits = [f"commit:{name}" for name in ("quarantine", *SINKS, "lake", "extra")]
        return one_of("stage", "commit", *commits, "spark-commit"), one_of("0", "1")

    def phase(*more: str) -> tuple[str, ...]:
        """Half of the redrives and replays are killed."""
        return (one_of("stage", *more),) if chance.random() < 0.5 else ()

    replayed = (",".join(REPLAYED), "iceberg", *REPLAYED)
    ends = ("rejects", *(f"publish:{name}" for name in REPLAYED), "marks")
    redriven = ("commit:delta", "commit:files", "commit:pg", "commit:redrives", "commit:redrives")
    kinds: dict[str, tuple[int, Callable[[], tuple[str, ...]]]] = {
        "send": (8, lambda: (one_of(*"012345"), one_of(*"012"))),
        "run": (6, tuple),
        "kill": (6, in_batch),
        "take_over": (2, in_batch),
        "beside": (1, in_batch),
        "beside_edited": (2, in_batch),
        "edit": (6, tuple),
        "save": (5, lambda: (target(),)),
        "put_back": (5, lambda: (target("save"),)),
        "undo": (2, lambda: (target("put_back"),)),
        "lose_checkpoint": (1, tuple),
        "save_checkpoint": (1, tuple),
        "put_back_checkpoint": (1, tuple),
        "resume": (1, tuple),
        "catch_up": (3, tuple),
        "accept": (1, tuple),
        "redrive": (5, lambda: phase(*redriven)),
        "replay": (5, lambda: (one_of(*replayed), *phase(*ends))),
        "replay_into": (2, lambda: phase("commit:delta", "commit:quarantine")),
        "add_sink": (2, tuple),
        "remove_sink": (1, tuple),
        "rename_sink": (2, lambda: (one_of(*OTHER_NAMES),)),
        "other": (2, lambda: (one_of(*"123"),)),
    }
    few = {"send", "run", "kill", "save", "put_back", *chance.sample([*kinds], 3)} if narrow else {*kinds}
    names = [name for name, (weight, _) in kinds.items() if name in few for _ in range(weight)]
    for _ in range(length):
        name = chance.choice(names)
        drawn.append((name, *kinds[name][1]()))
    return drawn


def play(world: World, actions: Sequence[Action]) -> list[str]:
    """Play a history to its end; what is wrong then."""
    for action in actions:
        world.do(action)
    world.do(("send", "1", "1"))
    world.settle()
    return world.check()
