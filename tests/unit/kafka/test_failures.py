"""Errors of the client in Penstock's terms."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.kafka.failures import explain


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (KafkaError.POLICY_VIOLATION, TerminalError, "KAFKA_REFUSED"),
        (KafkaError.INVALID_REPLICATION_FACTOR, TerminalError, "KAFKA_REFUSED"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, MissingError, "KAFKA_NOT_AUTHORIZED"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, MissingError, "KAFKA_NOT_AUTHENTICATED"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TransientError, "TOPIC_GONE"),
        (KafkaError.REQUEST_TIMED_OUT, TransientError, "BROKER_UNREACHABLE"),
        # Its own deadline and the client's are the same minute: either may be first to say that the broker is away.
        (KafkaError._MSG_TIMED_OUT, TransientError, "BROKER_UNREACHABLE"),
        (KafkaError._WAIT_COORD, TransientError, "BROKER_UNREACHABLE"),
        (KafkaError._DESTROY_BROKER, TransientError, "BROKER_UNREACHABLE"),
    ],
)
def test_failure_of_the_client_is_told_with_what_was_done_and_whether_it_passes(
    error: int, kind: type[PenstockError], code: str
) -> None:
    told = explain(KafkaError(error), "creating topic orders", "one:9092")
    assert (type(told), told.code) == (kind, code)
    assert told.summary.startswith("creating topic orders: ")
    assert told.context["brokers"] == "one:9092"
    assert told.context["client"].startswith(KafkaError(error).name())
