"""What Java's client says through Spark, in the words of the other client."""

from __future__ import annotations

import pytest

from penstock.assembly.faults import translate_error
from penstock.errors import MissingError, TransientError

KAFKA = "org.apache.kafka.common.errors"
STREAM = f"[STREAM_FAILED] Query terminated with exception: java.util.concurrent.ExecutionException: {KAFKA}"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            f"{STREAM}.SaslAuthenticationException: Authentication failed due to invalid credentials",
            "KAFKA_NOT_AUTHENTICATED",
            "the brokers rejected the credentials of this pipeline",
        ),
        (
            f"{STREAM}.TopicAuthorizationException: Not authorized to access topics: [orders]",
            "KAFKA_NOT_AUTHORIZED",
            "lacks permission on the topic",
        ),
        (f"{STREAM}.GroupAuthorizationException: no", "KAFKA_NOT_AUTHORIZED", "lacks permission on the consumer group"),
        (
            f"{STREAM}.SslAuthenticationException: SSL handshake failed\n"
            "Caused by: sun.security.validator.ValidatorException: PKIX path building failed: unable to find valid "
            "certification path to requested target",
            "KAFKA_TLS",
            "not signed by a trusted CA",
        ),
        (
            f"{STREAM}.SslAuthenticationException: SSL handshake failed\nCaused by: java.security.cert."
            "CertificateExpiredException: NotAfter: Sun Nov 15",
            "KAFKA_TLS",
            "has expired",
        ),
        (
            f"{STREAM}.SslAuthenticationException: SSL handshake failed\nCaused by: java.security.cert."
            "CertificateException: No subject alternative names matching IP address 127.0.0.1 found",
            "KAFKA_TLS",
            "is for another host",
        ),
    ],
)
def test_refusal_of_java_s_client_is_missing_with_its_cause(text: str, code: str, said: str) -> None:
    told = translate_error(RuntimeError(text), "a:1")
    assert isinstance(told, MissingError)
    assert told.code == code
    assert said in told.summary
    assert told.context["brokers"] == "a:1"


def test_refusal_wins_over_the_time_out_that_it_led_to() -> None:
    timed_out = f"{KAFKA}.TimeoutException: Timed out waiting for a node assignment"
    text = f"{timed_out}\nCaused by: {KAFKA}.SaslAuthenticationException: no"
    assert translate_error(RuntimeError(text)).code == "KAFKA_NOT_AUTHENTICATED"


def test_handshake_that_broke_off_may_pass() -> None:
    text = f"{KAFKA}.DisconnectException: gone\nSuppressed: javax.net.ssl.SSLHandshakeException: Remote host terminated"
    assert isinstance(translate_error(RuntimeError(text)), TransientError)
