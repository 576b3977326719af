"""A pipeline's own consumer group: the offsets that its sinks have committed, so that Kafka's tools show them too.

Nobody joins the group: it stays empty, and no rebalance ever happens. The offsets in it are a copy for others: a
stream never starts from them, and goes on where they cannot be written.
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
from penstock.kafka.client import BrokerClient
from penstock.kafka.failures import NOT_ALLOWED
from penstock.kafka.settings import KafkaSettings
from penstock.model import TopicPartition

_FLUSH_SECONDS = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
# Of batches that follow each other faster only the newest is committed.
_SPACING_SECONDS = 1.0
# Kafka forgets the offsets of an empty group after a time without commits, seven days unless the brokers say otherwise.
_REFRESH_SECONDS = 3600.0
# What the coordinator says to a commit from outside while the group has members.
_IN_USE = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
# What brokers answer for some seconds after one of them has started.
_COORDINATOR_MOVES = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
_AGAIN_SECONDS = 0.1


class GroupOffsets:
    """The offsets of one group. Requests time out after the option `socket.timeout.ms`, or `timeout`, also while the
    group has no coordinator yet.

    The client is a consumer that joins nothing, not an admin client: librdkafka (2.x) looks for the consumer that an
    admin client does not have when a coordinator is not there yet, and takes the whole process down.
    """

    def __init__(self, settings: KafkaSettings, group: str, timeout: float = 10.0) -> None:
        self._group = group
        self._timeout = float(settings.options.get("socket.timeout.ms", timeout * 1000)) / 1000
        milliseconds = int(self._timeout * 1000)
        # How long a commit waits for the coordinator is the session's timeout, though there is no session; in the newer
        # protocol of groups it is not ours to set.
        waits = {"group.protocol": "classic", "session.timeout.ms": milliseconds, "socket.timeout.ms": milliseconds}
        owned = {"group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False, "log_level": 0}
        self._brokers = BrokerClient(
            Consumer, settings, {**settings.for_librdkafka(), **waits, **owned}, self._timeout, reopens=False
        )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these as the next offsets to read."""
        if not offsets:
            return
        wanted = [ClientPartition(at.topic, at.partition, offset) for at, offset in sorted(offsets.items())]
        self._ask(
            lambda: self._brokers.client.commit(offsets=wanted, asynchronous=False),
            f"committing offsets to consumer group {self._group}",
        )

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the group has; a partition without one is left out."""
        wanted = [ClientPartition(at.topic, at.partition) for at in sorted(set(partitions))]
        if not wanted:
            return {}
        found = self._ask(
            lambda: self._brokers.client.committed(wanted, timeout=self._timeout),
            f"asking for the offsets of consumer group {self._group}",
        )
        return {TopicPartition(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def close(self) -> None:
        """Close the client."""
        self._brokers.client.close()

    def _ask(self, ask: Callable[[], Iterable[Any] | None], doing: str) -> list[Any]:
        deadline = time.monotonic() + self._timeout
        with self._brokers.asking(doing):
            while True:
                answer, error, where = _answer(ask)
                if error is None:
                    return answer
                error = self._refusal_in_events() or error
                moves = error.code() in _COORDINATOR_MOVES or error.code() == KafkaError._WAIT_COORD
                if not moves or time.monotonic() > deadline:
                    raise self._failure(error, f"{doing}{where}")
                time.sleep(_AGAIN_SECONDS)

    def _refusal_in_events(self) -> KafkaError | None:
        """A missing right on the group: the client waits for a coordinator all the same, and reports it as an event."""
        while (message := self._brokers.client.poll(0)) is not None:
            if message.error() is not None and message.error().code() in NOT_ALLOWED:
                return message.error()
        return None

    def _failure(self, error: KafkaError, doing: str) -> PenstockError:
        said = f"{error.name()}: {error.str()}"
        if error.code() in _COORDINATOR_MOVES:
            return TransientError(
                "GROUP_COORDINATOR_AWAY",
                f"{doing}: no broker is the coordinator of the group yet",
                context={"brokers": self._brokers.settings.brokers, "client": said},
                hint="it takes some seconds after a broker has started; is __consumer_offsets there, with leaders?",
            )
        if error.code() in _IN_USE:
            return TerminalError(
                "GROUP_IN_USE",
                f"{doing}: the group has members",
                context={"client": said},
                hint="end the consumers that joined it, or name another one in source.group",
            )
        if error.code() == KafkaError._WAIT_COORD:
            error = KafkaError(KafkaError._TIMED_OUT, error.str())
        return self._brokers.failure(error, doing)


class GroupCommitter:
    """Commits to a group in a thread of its own, next to the stream: no method waits for brokers, or raises.

    A failed commit is retried with back-off. `tell` is called in that thread, once with the reason when commits begin
    to fail, and with None when they succeed again.
    """

    def __init__(self, settings: KafkaSettings, group: str, tell: Callable[[str | None], None]) -> None:
        self._settings, self._group, self._tell = settings, group, tell
        self._changed = threading.Condition()
        self._newest: dict[TopicPartition, int] = {}
        self._fresh = self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"group {group}", daemon=True)
        self._thread.start()

    def put(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets of all partitions soon. Newer ones replace those that are not committed yet."""
        with self._changed:
            self._newest = dict(offsets)
            self._fresh = True
            self._changed.notify()

    def close(self) -> None:
        """Commit what is pending, for a few seconds at most, and end."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        group: GroupOffsets | None = None
        wait, failed = _REFRESH_SECONDS, 0
        while (offsets := self._next(wait)) is not None:
            try:
                group = group or GroupOffsets(self._settings, self._group)
                group.commit(offsets)
            except Exception as error:
                _close_quietly(group)
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
                # Not woken by new offsets: each batch brings some, and this thread would get in its way each time.
                self._closing.wait(_SPACING_SECONDS)
        _close_quietly(group)

    def _next(self, wait: float) -> dict[TopicPartition, int] | None:
        """The offsets to commit, once there are new ones or `wait` is over; none at the end."""
        due = time.monotonic() + wait
        with self._changed:
            # While commits fail, new offsets do not shorten the back-off.
            while not self._closing.is_set() and (self._failing or not self._fresh) and time.monotonic() < due:
                self._changed.wait(due - time.monotonic())
            if self._closing.is_set() and not self._fresh:
                return None
            self._fresh = False
            return self._newest

    def _say(self, error: Exception | None) -> None:
        if (error is not None) == self._failing:
            return
        self._failing = error is not None
        # A listener that raises must not end the thread.
        with suppress(Exception):
            self._tell(one_line(error) if error is not None else None)


def _answer(ask: Callable[[], Iterable[Any] | None]) -> tuple[list[Any], KafkaError | None, str]:
    """The client's answer, or the error of the call or of one partition, and which partition it was."""
    try:
        answer = list(ask() or ())
    except KafkaException as error:
        return [], error.args[0], ""
    for at in answer:
        if at.error is not None:
            return [], at.error, f", {at.topic}[{at.partition}]"
    return answer, None, ""


def _close_quietly(group: GroupOffsets | None) -> None:
    if group is not None:
        with suppress(KafkaException, RuntimeError):
            group.close()
