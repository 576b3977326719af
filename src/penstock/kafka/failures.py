"""Errors of a Kafka client as errors of Penstock: transient, not authorized, or refused for good."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError

BROKERS_CHANGED = frozenset({KafkaError._DESTROY_BROKER, KafkaError._UNKNOWN_BROKER, KafkaError._NODE_UPDATE})
"""The client dropped a broker after a metadata update, with a request to it still open. Nobody refused the request."""
_AWAY = BROKERS_CHANGED | frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        # A handshake that breaks off. One that is refused is recognized by `ConnectionErrors`.
        KafkaError._SSL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
LEADER_MOVES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""The client's metadata about leaders is older, or newer, than that of the broker it asks."""
MOVED_OR_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""No leader yet after a start of the broker, a partition too new for the client's metadata, or one that is gone."""
_LACKS: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "permission on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "permission on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "permission on the transactional id",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "permission on the consumer group",
}
_UNKNOWN_USER = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION})
NOT_ALLOWED = frozenset(_LACKS) | _UNKNOWN_USER
"""The client is not authenticated, or not authorized."""
REFUSALS = frozenset({"KAFKA_NOT_AUTHENTICATED", "KAFKA_NOT_AUTHORIZED", "KAFKA_TLS"})
"""The codes of refusals by the brokers: after one, no further request succeeds."""
RIGHTS_HINT = "grant it: `penstock plan FILE --acls` prints every right that the pipeline needs"


def explain(error: KafkaError, doing: str, brokers: str) -> PenstockError:
    """A client's error as an error of Penstock, whose class says whether it is transient."""
    context = {"brokers": brokers, "client": f"{error.name()}: {error.str()}"}
    if error.code() in _LACKS:
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"{doing}: the user of this pipeline lacks {_LACKS[error.code()]}",
            context=context,
            hint=RIGHTS_HINT,
        )
    if error.code() in _UNKNOWN_USER:
        return MissingError(
            "KAFKA_NOT_AUTHENTICATED",
            f"{doing}: the brokers do not let this client in",
            context=context,
            hint="check username, password and mechanism: the user does not exist, or the password is wrong",
        )
    if error.code() in MOVED_OR_GONE:
        return TransientError(
            "TOPIC_GONE",
            f"{doing}: the brokers do not know the topic or the partition",
            context=context,
            hint="was the topic deleted?  after a start of the brokers it may take a moment until they know it",
        )
    if error.code() in _AWAY | LEADER_MOVES or error.retriable():
        return TransientError(
            "BROKER_UNREACHABLE",
            f"{doing}: no answer from the brokers",
            context=context,
            hint="is the broker running, and are source.brokers right?  try: penstock dev status",
        )
    return TerminalError("KAFKA_REFUSED", f"{doing}: the brokers refused", context=context)


def answer(future: Future[Any], seconds: float | None = None) -> Any:
    """The result of an admin client's future, or its error raised as a new one.

    The error that a future keeps references the frames that it was raised through, and these the future and the client:
    a cycle, whose threads and sockets stay until the garbage collector finds it.
    """
    error = future.exception(seconds)
    if error is not None:
        raise type(error)(*error.args)
    return future.result()
