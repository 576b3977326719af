"""What has to hold of every `security` section: its keys fit together, fit the place, and say nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.sinks import KafkaSinkConfig
from penstock.config.yaml_source import value_at

_FILES = ("ca_file", "certificate_file", "key_file", "key_password")
_USER = ("username", "password")
_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CLIENT = ("token_url", "client_id", "client_secret", "scope")
_OF_REGISTRY = (*_USER, "token", "ca_file", "certificate_file", "key_file")
SAME: Mapping[str, str] = {
    "security.protocol": "tls and mechanism",
    **dict.fromkeys(("ssl.ca.location", "ssl.ca.pem", "ssl.ca.certificate.stores"), "ca_file"),
    **{f"ssl.truststore.{name}": "ca_file" for name in ("location", "certificates", "password", "type")},
    **dict.fromkeys(("ssl.certificate.location", "ssl.certificate.pem"), "certificate_file"),
    **{f"ssl.keystore.{name}": "certificate_file" for name in ("location", "certificate.chain", "password", "type")},
    **dict.fromkeys(("ssl.key.location", "ssl.key.pem", "ssl.keystore.key"), "key_file"),
    "ssl.key.password": "key_password",
    **dict.fromkeys(("sasl.mechanism", "sasl.mechanisms"), "mechanism"),
    "sasl.username": "username",
    "sasl.password": "password",
    "sasl.jaas.config": "username and password",
    "sasl.oauthbearer.token.endpoint.url": "token_url",
    "sasl.oauthbearer.client.id": "client_id",
    "sasl.oauthbearer.client.secret": "client_secret",
    "sasl.oauthbearer.scope": "scope",
    "sasl.oauthbearer.method": "mechanism",
    "sasl.login.callback.handler.class": "mechanism",
}
"""Settings of the Kafka clients, and the key of `security` that says the same."""
_URL_SAYS = re.compile(r"[?&\s](ssl(?:mode|rootcert|cert|key|password))\s*=")


def check_security(parts: Parts) -> None:
    """Report everything that is wrong with the `security` sections."""
    for path in list(parts.file.positions.keys):
        given = value_at(parts.file.data, path)
        if not _is_section(path) or not isinstance(given, dict):
            continue
        where = _Where(parts, path, given)
        where.check_files()
        if path[-2] == "registry":
            _check_registry(where)
        elif _is_database(parts, path[:-1]):
            _check_database(where)
        else:
            _check_kafka(where)
    _check_inherited(parts)


def _is_section(path: Path) -> bool:
    """Whether this is such a section: a topic, a table or an option may have the name too."""
    if path[-1] != "security" or len(path) < 2:
        return False
    return (
        path[-2] == "registry"
        or path == ("source", "security")
        or (len(path) == 3 and path[0] in ("sources", "sinks", "tables"))
    )


class _Where:
    """One section, and how to report what is wrong in it."""

    def __init__(self, parts: Parts, path: Path, given: Mapping[str, Any]) -> None:
        self.parts, self.path, self.given = parts, path, given
        self.tls = given.get("tls", True) is not False

    def report(self, key: str | None, message: str, hint: str) -> None:
        path = self.path if key is None else (*self.path, key)
        self.parts.report(path, message, hint=hint, at_key=True)

    def refuse(self, keys: Sequence[str], why: str, hint: str) -> None:
        for key in keys:
            if key in self.given:
                self.report(key, f"{key} {why}", hint)

    def need(self, keys: Sequence[str], of: str) -> None:
        for key in keys:
            if key not in self.given:
                self.report(None, f"{of} needs {key}", f"add {key}")

    def check_files(self) -> None:
        if not self.tls:
            self.refuse(_FILES, "means nothing with tls: false", "remove it, or tls: false")
            return
        for key, needed in (
            ("certificate_file", "key_file"),
            ("key_file", "certificate_file"),
            ("key_password", "key_file"),
        ):
            if key in self.given and needed not in self.given:
                self.report(key, f"{key} means nothing without {needed}", f"add {needed}")


def _check_kafka(where: _Where) -> None:
    mechanism = where.given.get("mechanism")
    if mechanism == "OAUTHBEARER":
        where.need(("token_url", "client_id", "client_secret"), "mechanism: OAUTHBEARER")
        where.refuse(_USER, "is for PLAIN and SCRAM, and the mechanism is OAUTHBEARER", "remove it")
    elif mechanism in _BY_PASSWORD:
        where.need(_USER, f"mechanism: {mechanism}")
        where.refuse(_CLIENT, f"is for OAUTHBEARER, and the mechanism is {mechanism}", "remove it")
    elif mechanism is None:
        where.refuse(
            _USER, "means nothing without mechanism", "add mechanism: SCRAM-SHA-512, or as the brokers have it"
        )
        where.refuse(_CLIENT, "means nothing without mechanism", "add mechanism: OAUTHBEARER")
        if not where.tls:
            where.report("tls", "without TLS and without a mechanism nothing is secured", "remove security")
    options = (*where.path[:-1], "options")
    beside = value_at(where.parts.file.data, options)
    for name in beside if isinstance(beside, dict) else ():
        if name in SAME:
            where.parts.report(
                (*options, name),
                f"{name} and security exclude each other",
                hint=f"remove it: security says this with {SAME[name]}",
                at_key=True,
            )


def _check_registry(where: _Where) -> None:
    if where.given.get("mechanism") not in (None, "PLAIN"):
        where.refuse(("mechanism",), "of a registry can only be PLAIN: a user and password over HTTP", "remove it")
    where.refuse(_CLIENT, "is for Kafka's brokers", "remove it; a bearer token is registry.token, without security")
    for key, needed in (("username", "password"), ("password", "username")):
        if key in where.given and needed not in where.given:
            where.report(key, f"{key} means nothing without {needed}", f"add {needed}")
    registry = where.path[:-1]
    for key in _OF_REGISTRY:
        if where.parts.written(*registry, key):
            message = f"{key} and security exclude each other"
            where.parts.report((*registry, key), message, hint="write one or the other", at_key=True)
    url = str(value_at(where.parts.file.data, (*registry, "url")) or "")
    if where.tls and url.startswith("http://"):
        where.report(None, "the url says http://, which has no TLS", "write https:// in the url, or tls: false here")
    elif not where.tls and url.startswith("https://"):
        where.report("tls", "the url says https://, which is TLS", "write http:// in the url, or remove tls: false")


def _check_database(where: _Where) -> None:
    where.refuse(_USER, "of a database is in its url", "remove it; the url comes by reference")
    where.refuse(("mechanism", *_CLIENT), "is for Kafka's brokers", "remove it")
    url = str(value_at(where.parts.file.data, (*where.path[:-1], "url")) or "")
    if found := _URL_SAYS.search(url):
        message = f"the url says {found[1]}, and security says the same"
        where.parts.report((*where.path[:-1], "url"), message, hint=f"leave {found[1]} out of the url", at_key=True)


def _is_database(parts: Parts, path: Path) -> bool:
    here = value_at(parts.file.data, path)
    return isinstance(here, dict) and here.get("type") == "postgres"


def _check_inherited(parts: Parts) -> None:
    """A Kafka sink on the cluster of the source is let in as the source is: its options cannot say otherwise."""
    source = parts.source
    if source is None or source.security is None:
        return
    for index, sink in _kafka_sinks(parts):
        if sink.security is not None or sink.brokers not in (None, source.brokers):
            continue
        for name in sink.options:
            if name in SAME:
                parts.report(
                    ("sinks", index, "options", name),
                    f"{name} contradicts source.security, which this sink has too",
                    hint="give the sink a security section of its own",
                    at_key=True,
                )


def _kafka_sinks(parts: Parts) -> Iterator[tuple[int, KafkaSinkConfig]]:
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, KafkaSinkConfig):
            yield index, sink
