"""A pipeline's own consumer group: what its sinks have committed, told to Kafka, so that Kafka's tools see it too.

Nobody joins the group: it stays empty, and no rebalance ever happens. It is a copy for others to look at. Nothing is
read from it to go on, and a stream whose copy cannot be written goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.errors import PenstockError, TerminalError, TransientError, back_off, one_line
from penstock.kafka.failures import NOT_ALLOWED, kafka_failures
from penstock.kafka.hearing import Hearing, check_access, refuse_known
from penstock.kafka.settings import KafkaSettings
from penstock.model import TopicPartition

_FLUSH_SECONDS = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
# Of batches that follow each other faster only the newest is told.
_SPACING_SECONDS = 1.0
# Kafka forgets the offsets of an empty group after a time without commits, seven days unless the brokers say otherwise.
_REFRESH_SECONDS = 3600.0
# What the coordinator says to a commit from outside while the group has members.
_IN_USE = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
# What brokers say for some seconds after one of them has started: groups are looked after there soon, not yet.
_COORDINATOR_MOVES = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
_AGAIN_SECONDS = 0.1


class GroupOffsets:
    """The offsets of one group, through one client that is kept. It joins nothing, and waits for an answer, and for a
    coordinator that is not there yet, as long as the option `socket.timeout.ms` says, or `timeout`.

    It is a consumer, not an admin client: librdkafka (2.x) looks for the consumer that an admin client does not have
    when a coordinator is not there yet, and takes the whole process down.
    """

    def __init__(self, settings: KafkaSettings, group: str, timeout: float = 10.0) -> None:
        self._settings, self._group = settings, group
        self._hearing = Hearing(settings)
        self._is_let_in = not settings.is_secured
        self._timeout = float(settings.options.get("socket.timeout.ms", timeout * 1000)) / 1000
        milliseconds = int(self._timeout * 1000)
        # How long a commit waits for the coordinator is the session's timeout, though there is no session; in the newer
        # protocol of groups it is not ours to set.
        waits = {"group.protocol": "classic", "session.timeout.ms": milliseconds, "socket.timeout.ms": milliseconds}
        owned = {"group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False, "log_level": 0}
        with kafka_failures("opening a Kafka client", settings.brokers):
            self._consumer = Consumer({**settings.for_librdkafka(), **waits, **owned, **self._hearing.options})

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Say that these are the next offsets to read."""
        if not offsets:
            return
        wanted = [ClientPartition(at.topic, at.partition, offset) for at, offset in sorted(offsets.items())]
        self._ask(
            lambda: self._consumer.commit(offsets=wanted, asynchronous=False),
            f"committing offsets to consumer group {self._group}",
        )

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the group has; a partition of which it has none is left out."""
        wanted = [ClientPartition(at.topic, at.partition) for at in sorted(set(partitions))]
        if not wanted:
            return {}
        found = self._ask(
            lambda: self._consumer.committed(wanted, timeout=self._timeout),
            f"asking for the offsets of consumer group {self._group}",
        )
        return {TopicPartition(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def close(self) -> None:
        """Let go of the client."""
        self._consumer.close()

    def _ask(self, ask: Callable[[], Iterable[Any] | None], doing: str) -> list[Any]:
        self._check_access(doing)
        deadline = time.monotonic() + self._timeout
        while True:
            answer, error, where = _answer(ask)
            if error is None:
                return answer
            error = self._told_meanwhile() or error
            moves = error.code() in _COORDINATOR_MOVES or error.code() == KafkaError._WAIT_COORD
            if not moves or time.monotonic() > deadline:
                raise self._failure(error, f"{doing}{where}")
            time.sleep(_AGAIN_SECONDS)

    def _told_meanwhile(self) -> KafkaError | None:
        """That the group is closed to us: the client waits for a coordinator all the same, and says so beside."""
        while (message := self._consumer.poll(0)) is not None:
            if message.error() is not None and message.error().code() in NOT_ALLOWED:
                return message.error()
        return None

    def _check_access(self, doing: str) -> None:
        if self._is_let_in:
            return
        refuse_known(self._settings)
        try:
            check_access(self._consumer, self._hearing, self._settings, self._timeout, doing)
        except KafkaException as error:
            raise self._hearing.failure(self._consumer, error.args[0], doing) from None
        self._is_let_in = True

    def _failure(self, error: KafkaError, doing: str) -> PenstockError:
        if error.code() == KafkaError._WAIT_COORD:
            error = KafkaError(KafkaError._TIMED_OUT, error.str())
        if error.code() in _COORDINATOR_MOVES:
            return TransientError(
                "GROUP_COORDINATOR_AWAY",
                f"{doing}: no broker looks after the group yet",
                context={"brokers": self._settings.brokers, "client": f"{error.name()}: {error.str()}"},
                hint="it takes some seconds after a broker has started; is __consumer_offsets there, with leaders?",
            )
        if error.code() not in _IN_USE:
            return self._hearing.failure(self._consumer, error, doing)
        return TerminalError(
            "GROUP_IN_USE",
            f"{doing}: the group has members",
            context={"client": f"{error.name()}: {error.str()}"},
            hint="end the consumers that joined it, or name another one in source.group",
        )


class GroupCommitter:
    """Commits to a group beside the stream, in a thread of its own: nothing here waits for brokers, or raises.

    What could not be committed is tried again, less and less often. `tell` hears once why it fails, and None when it
    works again; it is called in that thread.
    """

    def __init__(self, settings: KafkaSettings, group: str, tell: Callable[[str | None], None]) -> None:
        self._settings, self._group, self._tell = settings, group, tell
        self._news = threading.Condition()
        self._newest: dict[TopicPartition, int] = {}
        self._fresh = self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"group {group}", daemon=True)
        self._thread.start()

    def put(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have these committed soon: those of every partition. Of several only the newest are."""
        with self._news:
            self._newest = dict(offsets)
            self._fresh = True
            self._news.notify()

    def close(self) -> None:
        """Commit what waits, for a few seconds at most, and end."""
        with self._news:
            self._closing.set()
            self._news.notify()
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        group: GroupOffsets | None = None
        wait, failed = _REFRESH_SECONDS, 0
        while (offsets := self._next(wait)) is not None:
            try:
                group = group or GroupOffsets(self._settings, self._group)
                group.commit(offsets)
            except Exception as error:
                _let_go(group)
                group = None
                failed += 1
                wait = back_off(failed, _FIRST_WAIT, _LONGEST_WAIT)
                self._say(error)
                if self._closing.is_set():
                    return
                self._fresh = True
            else:
                wait, failed = _REFRESH_SECONDS, 0
                self._say(None)
                # Not for news: each batch brings some, and each time this thread would stand in its way.
                self._closing.wait(_SPACING_SECONDS)
        _let_go(group)

    def _next(self, wait: float) -> dict[TopicPartition, int] | None:
        """The offsets to commit, once there are new ones or `wait` is over; none at the end."""
        due = time.monotonic() + wait
        with self._news:
            # While it fails, new offsets do not hurry it: a refusal does not come once a batch.
            while not self._closing.is_set() and (self._failing or not self._fresh) and time.monotonic() < due:
                self._news.wait(due - time.monotonic())
            if self._closing.is_set() and not self._fresh:
                return None
            self._fresh = False
            return self._newest

    def _say(self, error: Exception | None) -> None:
        if (error is not None) == self._failing:
            return
        self._failing = error is not None
        # A listener of whatever kind does not end the thread.
        with suppress(Exception):
            self._tell(one_line(error) if error is not None else None)


def _answer(ask: Callable[[], Iterable[Any] | None]) -> tuple[list[Any], KafkaError | None, str]:
    """What the client gives; what the brokers refused, of all or of one partition, and of which."""
    try:
        answer = list(ask() or ())
    except KafkaException as error:
        return [], error.args[0], ""
    for at in answer:
        if at.error is not None:
            return [], at.error, f", {at.topic}[{at.partition}]"
    return answer, None, ""


def _let_go(group: GroupOffsets | None) -> None:
    if group is not None:
        with suppress(KafkaException, RuntimeError):
            group.close()
