"""Why a TLS handshake with a broker fails: one handshake of our own, with the same authority and certificate.

The Kafka client only says that a certificate could not be verified. Nothing is sent but the handshake.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.kafka.settings import KafkaSettings

_SECONDS = 3.0
_CONNECT_SECONDS = 1.0
# With TLS 1.3 a broker refuses our certificate only after the handshake.
_AFTERWARDS_SECONDS = 0.5
# OpenSSL's X509_V_ERR_*.
_EXPIRED, _NOT_YET = 10, 9
_OTHER_HOST = frozenset({62, 64})
_ASKED_FOR = ("CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE", "BAD_CERTIFICATE")


@dataclass(frozen=True, slots=True)
class TlsFault:
    """What is wrong, the facts of both sides, and what to do."""

    cause: str
    hint: str
    context: dict[str, object] = field(default_factory=dict)


def find_tls_fault(address: str, settings: KafkaSettings) -> TlsFault | None:
    """Why this client does not trust the broker at `host:port`, or the broker this client.

    None where the handshake succeeds, or where nothing answers, which may be transient.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context, trusted = _context(settings)
    except (OSError, ssl.SSLError) as error:
        return TlsFault(f"the certificates cannot be loaded: {error}", "check the files that the settings name")
    try:
        _shake(context, host, int(port))
    except ssl.SSLCertVerificationError as error:
        return _of_their_certificate(error, host, int(port), trusted)
    except ssl.SSLError as error:
        return _of_our_certificate(error, settings)
    except (OSError, ValueError):
        return None
    return None


def takes_connections(brokers: str) -> bool:
    """Whether any of the first three addresses of `host:port,...` takes a TCP connection."""
    for address in brokers.split(",")[:3]:
        host, _, port = address.strip().rpartition(":")
        with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    return False


def speaks_tls(address: str) -> bool:
    """Whether TLS is spoken at `host:port`, whoever it is."""
    host, _, port = address.rpartition(":")
    try:
        return _peer(host.strip("[]"), int(port)) is not None
    except (OSError, ValueError):
        return False


def _context(settings: KafkaSettings) -> tuple[ssl.SSLContext, str]:
    """The context that the client would have, and what it trusts, for messages."""
    options, security = settings.options, settings.security
    pem = security.pem if security is not None else None
    ca = (pem.ca if pem is not None else None) or options.get("ssl.ca.pem")
    file = options.get("ssl.ca.location")
    context = ssl.create_default_context(cadata=ca, cafile=file) if ca or file else ssl.create_default_context()
    certificate = pem.certificate_path if pem is not None else options.get("ssl.certificate.location")
    key = pem.key_path if pem is not None else options.get("ssl.key.location")
    if certificate is not None:
        context.load_cert_chain(certificate, key, options.get("ssl.key.password") or "")
    named = (security.ca_file if security is not None else None) or file
    return context, named or "the authorities that the system trusts"


def _shake(context: ssl.SSLContext, host: str, port: int) -> None:
    with (
        socket.create_connection((host, port), _SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host) as shaken,
    ):
        shaken.settimeout(_AFTERWARDS_SECONDS)
        try:
            shaken.recv(1)
        except TimeoutError:
            return


def _of_their_certificate(error: ssl.SSLCertVerificationError, host: str, port: int, trusted: str) -> TlsFault:
    theirs = _peer(host, port)
    if error.verify_code in (_EXPIRED, _NOT_YET):
        expired = error.verify_code == _EXPIRED
        until = (
            {"valid": f"{_day(theirs.not_valid_before_utc)} to {_day(theirs.not_valid_after_utc)}"}
            if theirs is not None
            else {}
        )
        return TlsFault(
            f"the broker's certificate {'has expired' if expired else 'is not valid yet'}",
            "give the broker a new certificate" if expired else "look at the clocks of both machines",
            {**until, "it is now": _day(datetime.now(UTC))},
        )
    if error.verify_code in _OTHER_HOST:
        names = ", ".join(_names(theirs)) if theirs is not None else "other hosts"
        return TlsFault(
            "the broker's certificate is for another host",
            "use a broker host name that is in their certificate, or issue a certificate with this one",
            {"connected to": host, "the certificate is for": names or "no host"},
        )
    issuer = {"the certificate is of": theirs.issuer.rfc4514_string()} if theirs is not None else {}
    return TlsFault(
        "the broker's certificate is not signed by a trusted CA",
        "check ca_file: it must contain the CA that signed the brokers' certificates",
        {**issuer, "trusted": trusted, "OpenSSL": error.verify_message},
    )


def _of_our_certificate(error: ssl.SSLError, settings: KafkaSettings) -> TlsFault | None:
    reason = error.reason or ""
    if "ALERT" not in reason:
        # Not a TLS server, or the connection broke off: the client's own message has to do.
        return None
    shown = settings.security is not None and settings.security.pem.certificate is not None
    shown = shown or "ssl.certificate.location" in settings.options
    if not shown and any(sign in reason for sign in _ASKED_FOR):
        return TlsFault(
            "the broker asks for a client certificate", "add certificate_file and key_file", {"OpenSSL": reason}
        )
    return TlsFault(
        "the broker refuses the client certificate" if shown else "the broker refuses the handshake",
        "check certificate_file: is it signed by a CA that the brokers trust, and still valid?",
        {"OpenSSL": reason},
    )


def _peer(host: str, port: int) -> Any:
    """The broker's certificate, trusted or not, if TLS is spoken there."""
    from cryptography import x509

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), _SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=host) as shaken,
        ):
            der = shaken.getpeercert(binary_form=True)
    except OSError:
        return None
    return x509.load_der_x509_certificate(der) if der else None


def _names(certificate: Any) -> list[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [certificate.subject.rfc4514_string()]
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
