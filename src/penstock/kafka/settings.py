"""One set of Kafka client settings, written out twice: for librdkafka and for Spark's Java client.

The pipeline file names settings as librdkafka does; the two clients agree on most names and differ on
security, which is translated here. Penstock's own settings (isolation, offsets) win over the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_JAVA_NAMES: Mapping[str, str] = {
    "ssl.ca.location": "ssl.truststore.location",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
}
# With its own 60 s the Java client would be silent for minutes about a broker that is away.
_JAVA_DEFAULTS: Mapping[str, str] = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_LIBRDKAFKA_ONLY = frozenset({"debug", "log_level", "socket.keepalive.enable", "broker.address.family"})
_JAAS_MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class KafkaSettings:
    """Brokers and options, secrets in the clear: never shown, never logged."""

    brokers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def for_librdkafka(self) -> dict[str, str | int | float | bool]:
        """The settings of a confluent-kafka client."""
        return {**self.options, "bootstrap.servers": self.brokers}

    def for_spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source. It reads committed records only."""
        java = {
            _JAVA_NAMES.get(name, name): value
            for name, value in self.options.items()
            if name not in _LIBRDKAFKA_ONLY and name not in ("sasl.username", "sasl.password")
        }
        if "ssl.truststore.location" in java and "ssl.truststore.type" not in java:
            java["ssl.truststore.type"] = "PEM"
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
        user, password = (
            self.options.get(f"sasl.{part}", "").replace("\\", "\\\\").replace('"', '\\"')
            for part in ("username", "password")
        )
        module = _JAAS_MODULES.get(mechanism, _JAAS_MODULES["PLAIN"])
        return f'{module} required username="{user}" password="{password}";'
