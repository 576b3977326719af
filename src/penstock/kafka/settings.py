"""One set of Kafka client settings, written out twice: for librdkafka and for Spark's Java client.

The pipeline file names settings as librdkafka does; the two clients agree on most names and differ on
security, which is translated here. Penstock's own settings (isolation, offsets) win over the user's. Host names are
verified. Certificates and keys are carried as text, so that they reach tasks whose machines do not have the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model.pem import NO_FILES, Pem, read_pem

# Tasks load this module too, and have no use for the models of the file.
if TYPE_CHECKING:
    from pydantic import SecretStr

    from penstock.config import SecurityConfig

_JAVA_NAMES: Mapping[str, str] = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
}
# With its own 60 s the Java client would wait for minutes for a broker that is down.
_JAVA_DEFAULTS: Mapping[str, str] = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_LIBRDKAFKA_ONLY = frozenset({"debug", "log_level", "socket.keepalive.enable", "broker.address.family"})
_UNVERIFIED: Mapping[str, str] = {
    "ssl.endpoint.identification.algorithm": "none",
    "enable.ssl.certificate.verification": "false",
}
_MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSecurity:
    """TLS and credentials; secrets in the clear, never shown."""

    tls: bool = True
    pem: Pem = NO_FILES
    mechanism: str | None = None
    username: str = ""
    password: str = ""
    token_url: str | None = None
    client_id: str = ""
    client_secret: str = ""
    scope: str | None = None
    ca_file: str | None = None
    """The file of the authority, for messages."""

    def __repr__(self) -> str:
        return f"KafkaSecurity({self.protocol}, {self.who})"

    @property
    def protocol(self) -> str:
        """As both clients name it."""
        if self.mechanism is None:
            return "SSL"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    @property
    def who(self) -> str:
        """The identity of the client, for messages."""
        if self.mechanism == "OAUTHBEARER":
            return f"client {self.client_id} with a token of {self.token_url}"
        if self.mechanism is not None:
            return f"user {self.username} by {self.mechanism}"
        return "a client certificate" if self.pem.certificate is not None else "an anonymous client"

    def for_librdkafka(self) -> dict[str, str]:
        """The settings of a confluent-kafka client."""
        found = {"security.protocol": self.protocol}
        if self.tls:
            found["ssl.endpoint.identification.algorithm"] = "https"
            given = {"ca": self.pem.ca, "certificate": self.pem.certificate, "key": self.pem.key}
            found |= {f"ssl.{name}.pem": text for name, text in given.items() if text is not None}
        if self.mechanism is None:
            return found
        found["sasl.mechanisms"] = self.mechanism
        if self.mechanism != "OAUTHBEARER":
            return {**found, "sasl.username": self.username, "sasl.password": self.password}
        oidc = {
            "method": "oidc",
            "token.endpoint.url": self.token_url or "",
            "client.id": self.client_id,
            "client.secret": self.client_secret,
            **({"scope": self.scope} if self.scope is not None else {}),
        }
        return {**found, **{f"sasl.oauthbearer.{name}": value for name, value in oidc.items()}}

    def for_java(self) -> dict[str, str]:
        """The settings of Java's client."""
        found = {"security.protocol": self.protocol}
        if self.tls:
            found["ssl.endpoint.identification.algorithm"] = "https"
            if self.pem.ca is not None:
                found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.pem.ca}
            if self.pem.certificate is not None and self.pem.key is not None:
                found |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.certificate.chain": self.pem.certificate,
                    "ssl.keystore.key": self.pem.key,
                }
        if self.mechanism is None:
            return found
        found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.mechanism == "OAUTHBEARER":
            found |= {
                "sasl.login.callback.handler.class": _LOGIN,
                "sasl.oauthbearer.token.endpoint.url": self.token_url or "",
            }
        return found

    def _jaas(self) -> str:
        if self.mechanism == "OAUTHBEARER":
            given = {"clientId": self.client_id, "clientSecret": self.client_secret}
            given |= {"scope": self.scope} if self.scope is not None else {}
        else:
            given = {"username": self.username, "password": self.password}
        return _login_line(self.mechanism or "", given)


@dataclass(frozen=True)
class KafkaSettings:
    """Brokers, options and security, secrets in the clear: never shown, never logged."""

    brokers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    security: KafkaSecurity | None = field(default=None, repr=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is equal for equal settings; never to be shown."""
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
        return _login_line(mechanism, {part: self.options.get(f"sasl.{part}", "") for part in ("username", "password")})


def _login_line(mechanism: str, given: Mapping[str, str]) -> str:
    """The line by which Java's client logs in."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in given.items()}
    module = _MODULES.get(mechanism, _MODULES["PLAIN"])
    options = " ".join(f'{name}="{value}"' for name, value in quoted.items())
    return f"{module} required {options};"


def read_security(config: SecurityConfig | None, where: str) -> KafkaSecurity | None:
    """The settings of a section, with its files read; `where` the section is, for messages."""
    if config is None:
        return None
    return KafkaSecurity(
        config.tls,
        read_pem(where, config.ca_file, config.certificate_file, config.key_file, _shown(config.key_password) or None),
        config.mechanism,
        config.username or "",
        _shown(config.password),
        config.token_url,
        config.client_id or "",
        _shown(config.client_secret),
        config.scope,
        config.ca_file,
    )


def _shown(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret is not None else ""
