"""Clients of librdkafka: how one is opened and used, and what its failures mean.

Where a password is wrong or a certificate cannot be verified, librdkafka retries forever, and the call that waits only
times out; the reason goes to the client's `error_cb`. `ConnectionErrors` keeps these reports, so that a refusal is
raised at once. A fault that may be transient (a broker that closes connections while it stops) is never taken for a
refusal: for TLS a handshake of our own decides.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.kafka.failures import explain
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.tls import TlsFault, find_tls_fault, speaks_tls

_REMEMBERED_SECONDS = 30.0
_FIRST_WAIT_SECONDS = 2.0
_AT = re.compile(r"(?:sasl_)?(?:ssl|plaintext)://(\S+?:\d+)/", re.IGNORECASE)
_BROKE_OFF = re.compile(
    r"transport failure|disconnected|timed? ?out|connection (?:refused|reset)|could ?n.t (?:connect|resolve)"
    r"|failed to connect|host resolution|(?<!SHA-)\b5\d\d\b",
    re.IGNORECASE,
)
_DOWN = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
_AFTER = re.compile(r" \(after \d+ms in state \w+\)$")
_refused: dict[tuple[object, ...], tuple[float, MissingError]] = {}
_lock = threading.Lock()


class ConnectionErrors:
    """The `error_cb` of one client, which calls it while it is polled."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._reports: deque[KafkaError] = deque(maxlen=50)
        self._refusal: MissingError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep one report of the client."""
        self._reports.append(error)

    @property
    def options(self) -> dict[str, Any]:
        """The options of a client whose errors are kept here."""
        return {"error_cb": self}

    def forget(self) -> None:
        """Drop the reports, because the brokers have accepted the client since."""
        self._reports.clear()
        self._refusal = None

    def refusal(self, doing: str = "connecting to the brokers") -> MissingError | None:
        """The error where the brokers refuse this client, or it does not trust them."""
        judged: set[tuple[int, str]] = set()
        while self._reports and self._refusal is None:
            error = self._reports.popleft()
            said = _AFTER.sub("", error.str())
            at = _AT.search(said)
            address = at[1] if at else self._settings.brokers.split(",")[0]
            # Reports repeat, and a handshake takes time.
            if (error.code(), address) not in judged:
                judged.add((error.code(), address))
                self._refusal = self._judge(error.code(), said, address, doing)
        if self._refusal is not None:
            with _lock:
                _refused[self._settings.identity] = (time.monotonic(), self._refusal)
        return self._refusal

    def refuse(self, doing: str = "connecting to the brokers") -> None:
        """Raise that error, if there is one."""
        if (found := self.refusal(doing)) is not None:
            raise found from None

    def failure(self, client: Any, error: KafkaError, doing: str) -> PenstockError:
        """What a failed call means: a refusal, or else the error itself."""
        poll_reports(client)
        found = self.refusal(doing) or explain(error, doing, self._settings.brokers)
        if isinstance(found, TransientError) and self._may_want_a_user():
            found.hint = (
                "the TLS handshake succeeds, and then the broker closes the connection: "
                "if it asks for a user, add mechanism to security"
            )
        return found

    def _may_want_a_user(self) -> bool:
        """Whether TLS works with a broker, and no user is configured."""
        security, address = self._settings.security, self._settings.brokers.split(",")[0]
        if security is None or security.mechanism is not None:
            return False
        return speaks_tls(address) and find_tls_fault(address, self._settings) is None

    def _judge(self, code: int, said: str, address: str, doing: str) -> MissingError | None:
        if code == KafkaError._AUTHENTICATION and not _BROKE_OFF.search(said):
            return _not_authenticated(self._settings, doing, said)
        # Behind a handshake of TLS 1.3 an alert comes as a connection that breaks off.
        if code == KafkaError._SSL or (code == KafkaError._TRANSPORT and "alert" in said):
            fault = find_tls_fault(address, self._settings)
            return _not_trusted(doing, address, fault) if fault is not None else None
        if code in _DOWN and not self._settings.speaks_tls and speaks_tls(address):
            fault = TlsFault(
                "the broker speaks TLS, and the file does not", "add security: {...} to the source, or the sink"
            )
            return _not_trusted(doing, address, fault)
        return None


class ObservedConsumer(Consumer):  # type: ignore[misc]
    """A consumer with the errors of its connections."""

    def __init__(self, settings: KafkaSettings, options: Mapping[str, Any]) -> None:
        self.errors = ConnectionErrors(settings)
        super().__init__({**options, **self.errors.options})


class BrokerClient:
    """An admin client, or a consumer that joins no group, kept while the brokers answer it.

    `make` is its class. `options` are all of its options, the user's settings among them.

    librdkafka drops the requests of an admin client that is collected, and may crash: hold this object until the
    futures are done.
    """

    def __init__(
        self,
        make: Callable[[dict[str, Any]], Any],
        settings: KafkaSettings,
        options: Mapping[str, Any],
        timeout: float,
        *,
        reopens: bool = True,
    ) -> None:
        self.settings = settings
        self.timeout = timeout
        self.errors = ConnectionErrors(settings)
        self._make = make
        self._reopens = reopens
        self._options = {"log_level": 0, **options, **self.errors.options}
        self._is_accepted = not settings.is_secured
        self.client = self._open()

    @contextmanager
    def asking(self, doing: str) -> Iterator[Any]:
        """The client, accepted by the brokers. What it raises inside is raised as an error of Penstock.

        Brokers that refused these settings a moment ago are not asked.
        """
        refuse_known(self.settings)
        try:
            if not self._is_accepted:
                self._list_topics(doing)
            yield self.client
        except KafkaException as error:
            raise self.failure(error.args[0], doing) from None

    def topics(self, doing: str = "listing topics") -> Any:
        """The metadata of the cluster. Brokers are first waited for briefly, so that a refusal shows early."""
        refuse_known(self.settings)
        try:
            return self._list_topics(doing)
        except KafkaException as error:
            raise self.failure(error.args[0], doing) from None

    def failure(self, error: KafkaError, doing: str) -> PenstockError:
        """What a failed call means. After a transient failure an admin client is opened anew."""
        found = self.errors.failure(self.client, error, doing)
        if self._reopens and isinstance(found, TransientError):
            # It stays with the broker that it took for the controller, also when that one hangs.
            self.client = self._open()
        return found

    def _open(self) -> Any:
        try:
            return self._make(self._options)
        except KafkaException as error:
            raise MissingError(
                "KAFKA_SETTINGS_INVALID",
                "opening a Kafka client: a setting is refused",
                context={"client": error.args[0].str()},
                hint="check the Kafka options of the source, or of the sink",
            ) from None

    def _list_topics(self, doing: str) -> Any:
        first = min(self.timeout, _FIRST_WAIT_SECONDS)
        last: KafkaError | None = None
        for seconds in (first, self.timeout if self.settings.is_secured else self.timeout - first):
            if seconds <= 0:
                break
            try:
                found = self.client.list_topics(timeout=seconds)
                self._is_accepted = True
                return found
            except KafkaException as error:
                poll_reports(self.client)
                self.errors.refuse(doing)
                last = error.args[0]
                if last.code() not in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                    break
        raise KafkaException(last)


def poll_reports(client: Any) -> None:
    """Let a client deliver its reports, without waiting."""
    poll: Callable[[float], Any] = client.poll
    for _ in range(20):
        if not poll(0):
            return


def refuse_known(settings: KafkaSettings) -> None:
    """Raise the refusal that a client with the same settings met a moment ago: another one would only wait again."""
    with _lock:
        when, error = _refused.get(settings.identity, (0.0, None))
    if error is not None and time.monotonic() - when < _REMEMBERED_SECONDS:
        raise error from None


def _not_authenticated(settings: KafkaSettings, doing: str, said: str) -> MissingError:
    token = settings.security is not None and settings.security.mechanism == "OAUTHBEARER"
    return MissingError(
        "KAFKA_NOT_AUTHENTICATED",
        f"{doing}: the brokers do not let {_who(settings)} in",
        context={"brokers": settings.brokers, "client": said},
        hint="check token_url, client_id, client_secret and scope"
        if token
        else "check username, password and mechanism: the user does not exist, or the password is wrong",
    )


def _not_trusted(doing: str, address: str, fault: TlsFault) -> MissingError:
    return MissingError(
        "KAFKA_TLS",
        f"{doing}: the TLS handshake failed: {fault.cause}",
        context={"broker": address, **fault.context},
        hint=fault.hint,
    )


def _who(settings: KafkaSettings) -> str:
    if settings.security is not None:
        return settings.security.who
    return f"user {settings.options['sasl.username']}" if "sasl.username" in settings.options else "this client"
