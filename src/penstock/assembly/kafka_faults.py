"""What Java's Kafka client says where the brokers do not let it in, in the words that librdkafka's is told in.

Spark's source asks on the driver, and reads in tasks where a step has state; Spark wraps what it hears in its own
errors, so the text alone is left to go by.
"""

from __future__ import annotations

import re

from penstock.errors import MissingError
from penstock.kafka.failures import RIGHTS_HINT

_PACKAGE = r"org\.apache\.kafka\.common\.errors\."
_UNKNOWN_USER = re.compile(rf"{_PACKAGE}SaslAuthenticationException:? ?([^\n]*)")
_TLS = re.compile(rf"(?:{_PACKAGE}SslAuthenticationException|javax\.net\.ssl\.SSL\w*Exception):? ?([^\n]*)")
_LACKS = re.compile(rf"{_PACKAGE}(Topic|Group|TransactionalId|Cluster)AuthorizationException:? ?([^\n]*)")
_ON = {
    "Topic": "a right on the topic",
    "Group": "a right on the consumer group",
    "TransactionalId": "a right on the transactional id",
    "Cluster": "a right on the cluster",
}
_TLS_CAUSES = (
    (
        re.compile(r"CertificateExpiredException|certificate expired|NotAfter", re.IGNORECASE),
        "the broker's certificate has expired",
        "give the broker a new certificate",
    ),
    (
        re.compile(r"No subject alternative (?:DNS|names?)|No name matching|subject alternative names present"),
        "the broker's certificate is for another host",
        "write the brokers by a name that their certificate has, or give them a certificate with this one",
    ),
    (
        re.compile(r"PKIX path|unable to find valid certification path|signature check failed", re.IGNORECASE),
        "the broker's certificate is of an authority that is not trusted",
        "check ca_file: it must hold the authority that signed the brokers' certificates",
    ),
    (
        re.compile(r"fatal alert: (?:certificate_required|bad_certificate|certificate_unknown|unknown_ca)"),
        "the broker refuses the client certificate, or asks for one",
        "check certificate_file and key_file",
    ),
)


def not_let_in(text: str, brokers: str | None) -> MissingError | None:
    """The error where a report of Spark says that the brokers do not let its client in, or it them."""
    where = {"brokers": brokers} if brokers else {}
    if found := _UNKNOWN_USER.search(text):
        return MissingError(
            "KAFKA_NOT_AUTHENTICATED",
            "asking through Spark: the brokers do not let the user of this pipeline in",
            context={**where, "client": found[1]},
            hint="check username, password and mechanism: the brokers know no such user, or it has another password",
        )
    if found := _LACKS.search(text):
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"asking through Spark: the user of this pipeline lacks {_ON[found[1]]}",
            context={**where, "client": found[2]},
            hint=RIGHTS_HINT,
        )
    tls = _TLS.search(text)
    if tls is None:
        return None
    for sign, cause, hint in _TLS_CAUSES:
        if sign.search(text):
            said = {**where, "client": tls[1]}
            return MissingError(
                "KAFKA_TLS", f"asking through Spark: the TLS handshake failed: {cause}", context=said, hint=hint
            )
    # A handshake that broke off: the broker may have gone meanwhile.
    return None
