"""One set of Kafka client settings, written out twice: for librdkafka and for Spark's Java client.

The pipeline file names settings as librdkafka does; the two clients agree on most names and differ on
security, which is translated here. Penstock's own settings (isolation, offsets) win over the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.kafka.security import KafkaSecurity, jaas

_JAVA_NAMES: Mapping[str, str] = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
}
# With its own 60 s the Java client would be silent for minutes about a broker that is away.
_JAVA_DEFAULTS: Mapping[str, str] = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_LIBRDKAFKA_ONLY = frozenset({"debug", "log_level", "socket.keepalive.enable", "broker.address.family"})
_UNVERIFIED: Mapping[str, str] = {
    "ssl.endpoint.identification.algorithm": "none",
    "enable.ssl.certificate.verification": "false",
}


@dataclass(frozen=True)
class KafkaSettings:
    """Brokers, options and security, secrets in the clear: never shown, never logged."""

    brokers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    security: KafkaSecurity | None = field(default=None, repr=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells these settings from others; to be looked up by, never to be shown."""
        return self.brokers, tuple(sorted(self.options.items())), self.security

    @property
    def is_secured(self) -> bool:
        """Whether the brokers may refuse to let this client in."""
        protocol = self.options.get("security.protocol", "plaintext")
        return self.security is not None or protocol.lower() != "plaintext"

    @property
    def speaks_tls(self) -> bool:
        """Whether connections are encrypted."""
        if self.security is not None:
            return self.security.tls
        return self.options.get("security.protocol", "").lower() in ("ssl", "sasl_ssl")

    @property
    def unverified(self) -> tuple[str, ...]:
        """The options that turn off the authentication of the brokers."""
        return tuple(name for name, off in _UNVERIFIED.items() if self.options.get(name, "").lower() == off)

    def for_librdkafka(self) -> dict[str, str | int | float | bool]:
        """The settings of a confluent-kafka client."""
        let_in = self.security.for_librdkafka() if self.security is not None else {}
        return {**let_in, **self.options, "bootstrap.servers": self.brokers}

    def for_spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source. It reads committed records only."""
        java = self.security.for_java() if self.security is not None else {}
        java |= {
            _JAVA_NAMES.get(name, name): value
            for name, value in self.options.items()
            if name not in _LIBRDKAFKA_ONLY and name not in ("sasl.username", "sasl.password")
        }
        for store, holds in (("truststore", ("location", "certificates")), ("keystore", ("certificate.chain",))):
            if any(f"ssl.{store}.{name}" in java for name in holds):
                java.setdefault(f"ssl.{store}.type", "PEM")
        if "sasl.username" in self.options:
            java["sasl.jaas.config"] = self._jaas()
        if java.get("ssl.endpoint.identification.algorithm") == "none":
            java["ssl.endpoint.identification.algorithm"] = ""
        if "request.timeout.ms" in java:
            # The Java client refuses a whole call that may take less time than one request.
            java.setdefault("default.api.timeout.ms", str(int(java["request.timeout.ms"]) * 3 // 2))
        java = {**_JAVA_DEFAULTS, **java}
        java["bootstrap.servers"] = self.brokers
        java["isolation.level"] = "read_committed"
        return {f"kafka.{name}": value for name, value in java.items()}

    def _jaas(self) -> str:
        mechanism = self.options.get("sasl.mechanism") or self.options.get("sasl.mechanisms", "PLAIN")
        return jaas(mechanism, {part: self.options.get(f"sasl.{part}", "") for part in ("username", "password")})
