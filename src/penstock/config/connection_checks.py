"""What has to hold of how brokers, registries, databases and stores are reached: keys that fit together, fit the place,
and say nothing twice; and client settings that are not Penstock's to set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.config.fields import is_uri
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.sinks import IcebergCatalogConfig, IcebergSinkConfig, KafkaSinkConfig
from penstock.config.tables import IcebergTableConfig
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


def check_connections(parts: Parts) -> None:
    """Report everything that is wrong with `security`, registries, storage and the settings of clients and of Spark."""
    _check_security(parts)
    _check_registries(parts)
    _check_storage(parts)
    _check_settings(parts)


def _check_security(parts: Parts) -> None:
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
        pairs = ("certificate_file", "key_file"), ("key_file", "certificate_file"), ("key_password", "key_file")
        self.parts.need_pairs(self.path, pairs)


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
    where.parts.need_pairs(where.path, (("username", "password"), ("password", "username")))
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
    for index, sink in enumerate(parts.sinks):
        if not isinstance(sink, KafkaSinkConfig) or sink.security or sink.brokers not in (None, source.brokers):
            continue
        for name in sink.options:
            if name in SAME:
                parts.report(
                    ("sinks", index, "options", name),
                    f"{name} contradicts source.security, which this sink has too",
                    hint="give the sink a security section of its own",
                    at_key=True,
                )


def _check_registries(parts: Parts) -> None:
    for path in list(parts.file.positions.keys):
        given = value_at(parts.file.data, path)
        if path[-1] != "registry" or not isinstance(given, dict):
            continue
        user = next((key for key in ("username", "password") if key in given), None)
        if "token" in given and user is not None:
            message = f"a token is shown instead of a user and password, and {user} is there too"
            parts.report((*path, "token"), message, hint=f"remove token or {user}", at_key=True)
        parts.need_pairs(path, (("password", "username"), ("key_file", "certificate_file")))


def _check_storage(parts: Parts) -> None:
    """Credentials that are not whole, and catalogs whose commits no object store makes safe."""
    parts.need_pairs(("storage",), (("access_key", "secret_key"), ("secret_key", "access_key")))
    given = parts.written("storage", "access_key") or parts.written("storage", "secret_key")
    if parts.written("storage", "session_token") and not given:
        parts.report(
            ("storage", "session_token"),
            "session_token means nothing without access_key",
            hint="add access_key and secret_key",
            at_key=True,
        )
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, IcebergSinkConfig):
            _check_catalog(parts, ("sinks", index), sink.warehouse, sink.catalog)
    for name, table in parts.tables.items():
        if isinstance(table, IcebergTableConfig):
            _check_catalog(parts, ("tables", name), table.warehouse, table.catalog)


def _check_catalog(parts: Parts, path: tuple[str | int, ...], warehouse: str, catalog: IcebergCatalogConfig) -> None:
    """A catalog decides which of two commits counts. A file in an object store cannot."""
    if not is_uri(warehouse) or warehouse.startswith("file://"):
        return
    if catalog.type == "sqlite" and catalog.uri is None:
        parts.report(
            (*path, "warehouse"),
            "a SQLite catalog can only lie on a disk of this machine",
            hint="name a catalog that decides between writers: catalog: {type: rest, uri: ...} or {type: sql, uri: "
            "...}; for runs of one machine a file of it: catalog: {uri: sqlite:///path}",
        )


_CONSUMER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "group.id": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.commit": "progress is kept in the checkpoint, not in a consumer group",
    "auto.commit.interval.ms": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.offset.store": "progress is kept in the checkpoint, not in a consumer group",
    "auto.offset.reset": "it is start, and for lost data on_data_loss",
    "isolation.level": "only committed records are read, always",
    "enable.partition.eof": "the end of a batch is known from its offsets",
    "key.deserializer": "the bytes are decoded by decode",
    "value.deserializer": "the bytes are decoded by decode",
}
_PRODUCER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "transactional.id": "it identifies the slot that writes",
    "enable.idempotence": "a transaction needs it on",
    "acks": "a transaction needs all",
    "key.serializer": "the value is the row as JSON",
    "value.serializer": "the value is the row as JSON",
}
_SPARK = {
    "spark.sql.session.timeZone": "times are in UTC in both lanes",
    "spark.sql.ansi.enabled": "both lanes follow the ANSI rules",
    "spark.sql.streaming.checkpointLocation": "it is checkpoint",
    "spark.app.name": "it is name",
    "spark.submit.deployMode": "it is the option --deploy-mode of penstock submit",
}


def _check_settings(parts: Parts) -> None:
    """Client settings and Spark settings that a pipeline file cannot have."""
    for name, source in parts.sources.items():
        if source is not None:
            _check_client(parts, ("sources", name, "options"), source.options, _CONSUMER)
    if parts.source and not parts.sources:
        _check_client(parts, ("source", "options"), parts.source.options, _CONSUMER)
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, KafkaSinkConfig):
            _check_client(parts, ("sinks", index, "options"), sink.options, _PRODUCER)
    for name in parts.spark or ():
        if not name.startswith("spark."):
            hint = f'did you mean "spark.{name}"?'
            parts.report(
                ("spark", name),
                f'"{name}" is no Spark setting: they start with spark.',
                hint=hint,
                at_key=True,
            )
        elif name in _SPARK:
            parts.report(("spark", name), f"{name} is set by Penstock: {_SPARK[name]}", hint="remove it", at_key=True)


def _check_client(parts: Parts, path: Path, options: Iterable[str], owned: dict[str, str]) -> None:
    for name in options:
        plain = name.removeprefix("kafka.")
        if plain in owned:
            message = f"{plain} is set by Penstock: {owned[plain]}"
            parts.report((*path, name), message, hint="remove it", at_key=True)
        elif plain != name:
            parts.report(
                (*path, name),
                "options are written without the kafka. prefix",
                hint=f"write {plain}",
                at_key=True,
            )
