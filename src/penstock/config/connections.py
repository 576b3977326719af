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
"""Kafka client settings, and the equivalent key of `security`."""
_URL_SAYS = re.compile(r"[?&\s](ssl(?:mode|rootcert|cert|key|password))\s*=")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _check_token_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise wrong("a token endpoint URL starts with https://")
    if parts.scheme == "http" and host not in _LOCAL:
        raise wrong("the secret would be sent unencrypted", "use https://; http:// is only allowed on this machine")
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
        description="`false` sends everything unencrypted, including passwords: only for trusted networks.",
    )
    ca_file: Location | None = Field(
        default=None,
        description="The CA certificate to trust, as PEM. Defaults to the system's trust store.",
    )
    certificate_file: Location | None = Field(
        default=None, description="The client certificate with its chain, as PEM (mTLS)."
    )
    key_file: Location | None = Field(default=None, description="The private key of the client certificate, as PEM.")
    key_password: Secret | None = Field(default=None, description="The password of the private key, by reference.")
    mechanism: Mechanism | None = Field(default=None, description="The SASL mechanism for the Kafka brokers.")
    username: Text | None = Field(default=None, description="The user.")
    password: Secret | None = Field(default=None, description="The password, by reference.")
    token_url: Annotated[Text, AfterValidator(_check_token_url), SecretKind.URL] | None = Field(
        default=None,
        description="For `OAUTHBEARER`: the token endpoint (client credentials flow). Its certificate is verified "
        "against the system's trust store.",
        examples=["https://login.example.com/oauth2/token"],
    )
    client_id: Text | None = Field(default=None, description="For `OAUTHBEARER`: the client ID.")
    client_secret: Secret | None = Field(default=None, description="The client secret, by reference.")
    scope: Text | None = Field(default=None, description="The scope to request.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Without TLS there are no certificates."""
        if given["tls"] is False:
            files = ("ca_file", "certificate_file", "key_file", "key_password")
            given.refuse(files, "has no effect with tls: false", "remove it, or remove tls: false")
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
        security.refuse(_USER, "applies to PLAIN and SCRAM, but the mechanism is OAUTHBEARER", "remove it")
    elif mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        _need(security, _USER, mechanism)
        security.refuse(_OAUTH, f"applies to OAUTHBEARER, but the mechanism is {mechanism}", "remove it")
    elif mechanism is None:
        hint = "add mechanism: SCRAM-SHA-512, or the one that the brokers use"
        security.refuse(_USER, "has no effect without mechanism", hint)
        security.refuse(_OAUTH, "has no effect without mechanism", "add mechanism: OAUTHBEARER")
        if security["tls"] is False:
            security.report("tls", "security without TLS and without a mechanism secures nothing", "remove security")
    options = owner["options"]
    for name in options if isinstance(options, dict) else ():
        if name in SAME:
            hint = f"remove it: security sets this as {SAME[name]}"
            owner.report(("options", name), f"{name} and security cannot be combined", hint)


def _need(security: Given, keys: Iterable[str], mechanism: str) -> None:
    for key in keys:
        if key not in security:
            security.report((), f"mechanism: {mechanism} needs {key}", f"add {key}")


def check_database_security(owner: Given) -> None:
    """Report what is wrong with the `security` of a database, whose URL has the user."""
    security = owner.section("security")
    if security is None:
        return
    security.refuse(_USER, "for a database belongs in its url", "remove it, and give the url by reference")
    security.refuse(("mechanism", *_OAUTH), "applies to Kafka brokers only", "remove it")
    if found := _URL_SAYS.search(str(owner["url"] or "")):
        owner.report("url", f"the url sets {found[1]}, which security already sets", f"remove {found[1]} from the url")


def check_client_options(options: Iterable[str], owned: Mapping[str, str], given: Given) -> None:
    """Report Kafka client options that Penstock sets itself: `owned` gives the reasons."""
    for name in options:
        plain = name.removeprefix("kafka.")
        if plain in owned:
            given.report(("options", name), f"{plain} is set by Penstock: {owned[plain]}", "remove it")
        elif plain != name:
            given.report(("options", name), "write options without the kafka. prefix", f"write {plain}")


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("a registry URL starts with http:// or https://")
    return url


class RegistryConfig(Section):
    """A schema registry with the Confluent API."""

    needs: ClassVar[Mapping[str, str]] = {"password": "username", "key_file": "certificate_file"}

    url: Annotated[Text, AfterValidator(_check_url), SecretKind.URL] = Field(
        description="The URL of the API; `penstock dev status --json` prints the one of the local registry.",
        examples=["http://localhost:8081"],
    )
    security: SecurityConfig | None = Field(
        default=None,
        description="TLS, client certificate, user and password, in the same form as `source.security`; replaces the "
        "six keys below.",
    )
    username: SecretStr | None = Field(default=None, description="The user or API key, if the registry requires one.")
    password: Secret | None = Field(default=None, description="The password or API secret, by reference.")
    token: Secret | None = Field(
        default=None, description="A bearer token, instead of user and password, by reference."
    )
    ca_file: Location | None = Field(default=None, description="The CA certificate to trust, as PEM.")
    certificate_file: Location | None = Field(default=None, description="The client certificate, as PEM.")
    key_file: Location | None = Field(default=None, description="The private key of the client certificate, as PEM.")
    timeout: Duration = Field(default=timedelta(seconds=10), description="Timeout of one request.")
    retries: Count = Field(default=3, description="How many times a request is tried before the batch is retried.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Only one authentication method is set, and `security` matches the URL."""
        super().check_keys(given)
        user = next((key for key in _USER if key in given), None)
        if "token" in given and user is not None:
            message = f"token replaces user and password, but {user} is also given"
            given.report("token", message, f"remove token or {user}")
        security = given.section("security")
        if security is None:
            return
        if security["mechanism"] not in (None, "PLAIN"):
            why = "for a registry can only be PLAIN (user and password over HTTP)"
            security.refuse(("mechanism",), why, "remove it")
        hint = "remove it; a bearer token is registry.token, without security"
        security.refuse(_OAUTH, "applies to Kafka brokers only", hint)
        for key, other in (_USER, reversed(_USER)):
            if key in security and other not in security:
                security.report(key, f"{key} has no effect without {other}", f"add {other}")
        own = (*_USER, "token", "ca_file", "certificate_file", "key_file")
        given.refuse(own, "and security cannot be combined", "write one or the other")
        url = str(given["url"] or "")
        if security["tls"] is not False and url.startswith("http://"):
            hint = "use https:// in the url, or set tls: false here"
            security.report((), "the url uses http://, which has no TLS", hint)
        elif security["tls"] is False and url.startswith("https://"):
            hint = "use http:// in the url, or remove tls: false"
            security.report("tls", "the url uses https://, which is TLS", hint)


def _check_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("an endpoint URL starts with http:// or https://")
    return url.rstrip("/")


class StorageConfig(Section):
    """How stores are reached, for every `s3://`, `gs://`, `abfss://` and `hdfs://` place of the file."""

    needs: ClassVar[Mapping[str, str]] = {"access_key": "secret_key", "secret_key": "access_key"}

    endpoint: Annotated[Text, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="The endpoint of an S3-compatible server. Defaults to `AWS_ENDPOINT_URL`, then AWS.",
        examples=["http://localhost:9000"],
    )
    region: Text | None = Field(default=None, description="The region of the buckets. Defaults to `AWS_REGION`.")
    access_key: Secret | None = Field(
        default=None,
        description="The access key ID, by reference. Defaults to `AWS_ACCESS_KEY_ID`, then the role of the machine.",
    )
    secret_key: Secret | None = Field(default=None, description="The secret access key, by reference.")
    session_token: Secret | None = Field(
        default=None, description="The session token of temporary credentials, by reference."
    )
    path_style: bool | None = Field(
        default=None,
        description="Put the bucket in the path of a request instead of the host name. Default if `endpoint` is set.",
    )
    options: Settings = Field(
        default_factory=dict,
        description="Any other option of the storage client, under its delta-rs name: `google_service_account`, "
        "`azure_storage_account_name`, `azure_storage_account_key`, ...; for HDFS, Hadoop settings: "
        "`dfs.nameservices`, ...",
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Credentials are complete."""
        super().check_keys(given)
        if "session_token" in given and "access_key" not in given and "secret_key" not in given:
            message = "session_token has no effect without access_key"
            given.report("session_token", message, "add access_key and secret_key")
