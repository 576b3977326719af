"""What a client says of its connections while a call waits: a refusal is then told at once, instead of a time-out.

librdkafka tries again for ever where a password is wrong or a certificate cannot be verified, and the call that waits
only times out; the reason is told to the client's `error_cb`. What may pass (a broker that hangs up while it stops) is
never taken for a refusal: for TLS a handshake of our own decides.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.kafka.failures import explain
from penstock.kafka.handshake import TlsFault, find_tls_fault, speaks_tls
from penstock.kafka.settings import KafkaSettings

Result = TypeVar("Result")

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


class Hearing:
    """Hears one client. To be given to it as `error_cb`; a client calls it while it is polled."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._said: deque[KafkaError] = deque(maxlen=50)
        self._refusal: MissingError | None = None

    def __call__(self, error: KafkaError) -> None:
        """One of the client's own reports."""
        self._said.append(error)

    @property
    def options(self) -> dict[str, Any]:
        """What a client is given to be heard."""
        return {"error_cb": self}

    def forget(self) -> None:
        """The brokers have let us in since."""
        self._said.clear()
        self._refusal = None

    def refusal(self, doing: str = "connecting to the brokers") -> MissingError | None:
        """The error where the brokers do not let this client in, or it them."""
        judged: set[tuple[int, str]] = set()
        while self._said and self._refusal is None:
            error = self._said.popleft()
            said = _AFTER.sub("", error.str())
            at = _AT.search(said)
            address = at[1] if at else self._settings.brokers.split(",")[0]
            # A broker says the same again and again, and a handshake may take its time.
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
        """What a failed call means: that one is not let in, or what it says itself."""
        serve(client)
        told = self.refusal(doing) or explain(error, doing, self._settings.brokers)
        if isinstance(told, TransientError) and self._is_asked_for_a_user():
            told.hint = "TLS comes about, and the broker hangs up: if it asks for a user, add mechanism to security"
        return told

    def _is_asked_for_a_user(self) -> bool:
        """Whether the broker is there and trusted, and a user is the one thing that it was not shown."""
        security, address = self._settings.security, self._settings.brokers.split(",")[0]
        if security is None or security.mechanism is not None:
            return False
        return speaks_tls(address) and find_tls_fault(address, self._settings) is None

    def _judge(self, code: int, said: str, address: str, doing: str) -> MissingError | None:
        if code == KafkaError._AUTHENTICATION and not _BROKE_OFF.search(said):
            return not_authenticated(self._settings, doing, said)
        # Behind a handshake of TLS 1.3 an alert comes as a connection that breaks off.
        if code == KafkaError._SSL or (code == KafkaError._TRANSPORT and "alert" in said):
            fault = find_tls_fault(address, self._settings)
            return not_trusted(doing, address, fault) if fault is not None else None
        if code in _DOWN and not self._settings.speaks_tls and speaks_tls(address):
            fault = TlsFault(
                "the broker speaks TLS, and the file does not", "add security: {...} to the source, or the sink"
            )
            return not_trusted(doing, address, fault)
        return None


class HeardConsumer(Consumer):  # type: ignore[misc]
    """A consumer, and what it says of its connections."""

    def __init__(self, settings: KafkaSettings, options: Mapping[str, Any]) -> None:
        self.hearing = Hearing(settings)
        super().__init__({**options, **self.hearing.options})


def serve(client: Any) -> None:
    """Let a client hand over what it has to say, without waiting."""
    poll: Callable[[float], Any] = client.poll
    for _ in range(20):
        if not poll(0):
            return


def ask_brokers(
    client: Any, hearing: Hearing, settings: KafkaSettings, timeout: float, doing: str, ask: Callable[[float], Result]
) -> Result:
    """What `ask` gives, which takes the seconds it may wait; where the brokers refuse, that is told early.

    Brokers are first waited for a short time; those that may refuse then as long as any.
    """
    for seconds in waits(settings, timeout):
        try:
            return ask(seconds)
        except KafkaException as error:
            serve(client)
            hearing.refuse(doing)
            last = error.args[0]
            if last.code() not in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                break
    raise KafkaException(last)


def check_access(client: Any, hearing: Hearing, settings: KafkaSettings, timeout: float, doing: str) -> None:
    """Be let in by the brokers, or raise why not; a client that has been is not asked twice by its owner."""
    ask_brokers(client, hearing, settings, timeout, doing, lambda seconds: client.list_topics(timeout=seconds))


def waits(settings: KafkaSettings, timeout: float) -> Iterator[float]:
    """How long to wait for an answer, again and again."""
    first = min(timeout, _FIRST_WAIT_SECONDS)
    yield first
    if settings.is_secured:
        yield timeout
    elif timeout > first:
        yield timeout - first


def refuse_known(settings: KafkaSettings) -> None:
    """Raise what these brokers said a moment ago to a client with the same settings: it would only wait again."""
    with _lock:
        when, error = _refused.get(settings.identity, (0.0, None))
    if error is not None and time.monotonic() - when < _REMEMBERED_SECONDS:
        raise error from None


def not_authenticated(settings: KafkaSettings, doing: str, said: str) -> MissingError:
    """The brokers do not take the user for who it says it is."""
    token = settings.security is not None and settings.security.mechanism == "OAUTHBEARER"
    return MissingError(
        "KAFKA_NOT_AUTHENTICATED",
        f"{doing}: the brokers do not let {_who(settings)} in",
        context={"brokers": settings.brokers, "client": said},
        hint="check token_url, client_id, client_secret and scope"
        if token
        else "check username, password and mechanism: the brokers know no such user, or it has another password",
    )


def not_trusted(doing: str, address: str, fault: TlsFault) -> MissingError:
    """The TLS handshake failed."""
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
