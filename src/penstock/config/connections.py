"""How brokers, registries, databases and object stores are reached: addresses, TLS, certificates, users, tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import Count, Duration, Location, Secret, SecretKind, Section, Settings, Text, wrong
from penstock.config.yaml_source import Given

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_USER = ("username", "password")
_OAUTH = ("token_url", "client_id", "client_secret", "scope")
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
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _check_token_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise wrong("the address of a token endpoint begins with https://")
    if parts.scheme == "http" and host not in _LOCAL:
        raise wrong("the secret would be sent in the clear", "write https://; http:// is for this machine alone")
    return url


class SecurityConfig(Section):
    """TLS and authentication. TLS is on wherever this section is written, and certificates and host names are always
    verified. The files are read on the driver, and their contents are sent to the tasks."""

    needs: ClassVar[Mapping[str, str]] = {
        "certificate_file": "key_file",
        "key_file": "certificate_file",
        "key_password": "key_file",
    }

    tls: bool = Field(
        default=True,
        description="`false` sends everything in the clear, passwords too: only where the network is safe.",
    )
    ca_file: Location | None = Field(
        default=None,
        description="The certificate authority to trust, as PEM. Left out, the authorities that the system trusts.",
    )
    certificate_file: Location | None = Field(
        default=None, description="The client's own certificate, with its chain, as PEM (mTLS)."
    )
    key_file: Location | None = Field(default=None, description="The key of that certificate, as PEM.")
    key_password: Secret | None = Field(default=None, description="The password of the key, by reference.")
    mechanism: Mechanism | None = Field(
        default=None, description="How the user authenticates with Kafka's brokers (SASL)."
    )
    username: Text | None = Field(default=None, description="The user.")
    password: Secret | None = Field(default=None, description="The user's password, by reference.")
    token_url: Annotated[Text, AfterValidator(_check_token_url), SecretKind.URL] | None = Field(
        default=None,
        description="For `OAUTHBEARER`: where tokens come from, by client credentials. Its certificate is verified by "
        "the authorities that the system trusts.",
        examples=["https://login.example.com/oauth2/token"],
    )
    client_id: Text | None = Field(default=None, description="For `OAUTHBEARER`: the client.")
    client_secret: Secret | None = Field(default=None, description="Its secret, by reference.")
    scope: Text | None = Field(default=None, description="The scope to ask for.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Without TLS there are no certificates."""
        if given["tls"] is False:
            files = ("ca_file", "certificate_file", "key_file", "key_password")
            given.refuse(files, "means nothing with tls: false", "remove it, or tls: false")
        else:
            super().check_keys(given)


def check_kafka_security(owner: Given) -> None:
    """Report what is wrong with the `security` of a source or a Kafka sink, and options that repeat it."""
    security = owner.section("security")
    if security is None:
        return
    mechanism = security["mechanism"]
    if mechanism == "OAUTHBEARER":
        _need(security, ("token_url", "client_id", "client_secret"), mechanism)
        security.refuse(_USER, "is for PLAIN and SCRAM, and the mechanism is OAUTHBEARER", "remove it")
    elif mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        _need(security, _USER, mechanism)
        security.refuse(_OAUTH, f"is for OAUTHBEARER, and the mechanism is {mechanism}", "remove it")
    elif mechanism is None:
        hint = "add mechanism: SCRAM-SHA-512, or the one that the brokers use"
        security.refuse(_USER, "means nothing without mechanism", hint)
        security.refuse(_OAUTH, "means nothing without mechanism", "add mechanism: OAUTHBEARER")
        if security["tls"] is False:
            security.report("tls", "without TLS and without a mechanism nothing is secured", "remove security")
    options = owner["options"]
    for name in options if isinstance(options, dict) else ():
        if name in SAME:
            hint = f"remove it: security says this with {SAME[name]}"
            owner.report(("options", name), f"{name} and security exclude each other", hint)


def _need(security: Given, keys: Iterable[str], mechanism: str) -> None:
    for key in keys:
        if key not in security:
            security.report((), f"mechanism: {mechanism} needs {key}", f"add {key}")


def check_database_security(owner: Given) -> None:
    """Report what is wrong with the `security` of a database, whose URL has the user."""
    security = owner.section("security")
    if security is None:
        return
    security.refuse(_USER, "of a database is in its url", "remove it; the url comes by reference")
    security.refuse(("mechanism", *_OAUTH), "is for Kafka's brokers", "remove it")
    if found := _URL_SAYS.search(str(owner["url"] or "")):
        owner.report("url", f"the url says {found[1]}, and security says the same", f"leave {found[1]} out of the url")


def check_client_options(options: Iterable[str], owned: Mapping[str, str], given: Given) -> None:
    """Report options of a Kafka client that Penstock sets itself: `owned` says why."""
    for name in options:
        plain = name.removeprefix("kafka.")
        if plain in owned:
            given.report(("options", name), f"{plain} is set by Penstock: {owned[plain]}", "remove it")
        elif plain != name:
            given.report(("options", name), "options are written without the kafka. prefix", f"write {plain}")


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("the address of a registry begins with http:// or https://")
    return url


class RegistryConfig(Section):
    """A schema registry with the Confluent API."""

    needs: ClassVar[Mapping[str, str]] = {"password": "username", "key_file": "certificate_file"}

    url: Annotated[Text, AfterValidator(_check_url), SecretKind.URL] = Field(
        description="The address of the API; `penstock dev status --json` gives that of the local one.",
        examples=["http://localhost:8081"],
    )
    security: SecurityConfig | None = Field(
        default=None,
        description="TLS, a client certificate, a user and password, in the shape of `source.security`; instead of the "
        "six keys below.",
    )
    username: SecretStr | None = Field(
        default=None, description="The user or the API key, if the registry asks for one."
    )
    password: Secret | None = Field(default=None, description="The password or the API secret, by reference.")
    token: Secret | None = Field(default=None, description="A bearer token instead, by reference.")
    ca_file: Location | None = Field(default=None, description="The certificate authority to trust, as PEM.")
    certificate_file: Location | None = Field(default=None, description="The client's own certificate, as PEM.")
    key_file: Location | None = Field(default=None, description="The key of that certificate, as PEM.")
    timeout: Duration = Field(default=timedelta(seconds=10), description="How long one request may take.")
    retries: Count = Field(default=3, description="How often a request is tried before the batch is tried again.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """There is one way to identify oneself, and `security` agrees with the address."""
        super().check_keys(given)
        user = next((key for key in _USER if key in given), None)
        if "token" in given and user is not None:
            message = f"a token replaces user and password, and {user} is given too"
            given.report("token", message, f"remove token or {user}")
        security = given.section("security")
        if security is None:
            return
        if security["mechanism"] not in (None, "PLAIN"):
            why = "of a registry can only be PLAIN: a user and password over HTTP"
            security.refuse(("mechanism",), why, "remove it")
        hint = "remove it; a bearer token is registry.token, without security"
        security.refuse(_OAUTH, "is for Kafka's brokers", hint)
        for key, other in (_USER, reversed(_USER)):
            if key in security and other not in security:
                security.report(key, f"{key} means nothing without {other}", f"add {other}")
        own = (*_USER, "token", "ca_file", "certificate_file", "key_file")
        given.refuse(own, "and security exclude each other", "write one or the other")
        url = str(given["url"] or "")
        if security["tls"] is not False and url.startswith("http://"):
            hint = "write https:// in the url, or tls: false here"
            security.report((), "the url says http://, which has no TLS", hint)
        elif security["tls"] is False and url.startswith("https://"):
            hint = "write http:// in the url, or remove tls: false"
            security.report("tls", "the url says https://, which is TLS", hint)


def _check_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("the address of a store begins with http:// or https://")
    return url.rstrip("/")


class StorageConfig(Section):
    """How stores are reached, for every `s3://`, `gs://`, `abfss://` and `hdfs://` place of the file."""

    needs: ClassVar[Mapping[str, str]] = {"access_key": "secret_key", "secret_key": "access_key"}

    endpoint: Annotated[Text, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="The address of a server that speaks like S3. Left out, `AWS_ENDPOINT_URL`, or AWS itself.",
        examples=["http://localhost:9000"],
    )
    region: Text | None = Field(default=None, description="The region of the buckets. Left out, `AWS_REGION`.")
    access_key: Secret | None = Field(
        default=None,
        description="The id of the key, by reference. Left out, `AWS_ACCESS_KEY_ID`, or the role of the machine.",
    )
    secret_key: Secret | None = Field(default=None, description="The key itself, by reference.")
    session_token: Secret | None = Field(
        default=None, description="The token of a key that is good for a time only, by reference."
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is in the path of a request and not in its host name. Left out, where "
        "`endpoint` is set.",
    )
    options: Settings = Field(
        default_factory=dict,
        description="Any other option of the stores' client, as delta-rs names it: `google_service_account`, "
        "`azure_storage_account_name`, `azure_storage_account_key`, ...; for HDFS Hadoop's settings: "
        "`dfs.nameservices`, ...",
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Credentials are complete."""
        super().check_keys(given)
        if "session_token" in given and "access_key" not in given and "secret_key" not in given:
            message = "session_token means nothing without access_key"
            given.report("session_token", message, "add access_key and secret_key")
