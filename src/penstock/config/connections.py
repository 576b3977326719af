"""How brokers, registries, databases and object stores are reached, and how a pipeline is let in: addresses, TLS,
certificates, users, tokens.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import Count, Duration, Location, Section, Settings, Text, wrong

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
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
    """TLS, and who one is. TLS is on wherever this section is written, and certificates and host names are always
    verified. The files are read on the driver, and what they hold is sent to the tasks."""

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
    key_password: SecretStr | None = Field(default=None, description="The password of the key, by reference.")
    mechanism: Mechanism | None = Field(default=None, description="How the user is shown to Kafka's brokers (SASL).")
    username: Text | None = Field(default=None, description="The user.")
    password: SecretStr | None = Field(default=None, description="The user's password, by reference.")
    token_url: Annotated[Text, AfterValidator(_check_token_url)] | None = Field(
        default=None,
        description="For `OAUTHBEARER`: where tokens come from, by client credentials. Its certificate is verified by "
        "the authorities that the system trusts.",
        examples=["https://login.example.com/oauth2/token"],
    )
    client_id: Text | None = Field(default=None, description="For `OAUTHBEARER`: the client.")
    client_secret: SecretStr | None = Field(default=None, description="Its secret, by reference.")
    scope: Text | None = Field(default=None, description="The scope to ask for.")


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("the address of a registry begins with http:// or https://")
    return url


class RegistryConfig(Section):
    """A schema registry with the Confluent API."""

    url: Annotated[Text, AfterValidator(_check_url)] = Field(
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
    password: SecretStr | None = Field(default=None, description="The password or the API secret, by reference.")
    token: SecretStr | None = Field(default=None, description="A bearer token instead, by reference.")
    ca_file: Location | None = Field(default=None, description="The certificate authority to trust, as PEM.")
    certificate_file: Location | None = Field(default=None, description="The client's own certificate, as PEM.")
    key_file: Location | None = Field(default=None, description="The key of that certificate, as PEM.")
    timeout: Duration = Field(default=timedelta(seconds=10), description="How long one request may take.")
    retries: Count = Field(default=3, description="How often a request is tried before the batch is tried again.")


def _check_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("the address of a store begins with http:// or https://")
    return url.rstrip("/")


class StorageConfig(Section):
    """How stores are reached, for every `s3://`, `gs://`, `abfss://` and `hdfs://` place of the file."""

    endpoint: Annotated[Text, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="The address of a server that speaks like S3. Left out, `AWS_ENDPOINT_URL`, or AWS itself.",
        examples=["http://localhost:9000"],
    )
    region: Text | None = Field(default=None, description="The region of the buckets. Left out, `AWS_REGION`.")
    access_key: SecretStr | None = Field(
        default=None,
        description="The id of the key, by reference. Left out, `AWS_ACCESS_KEY_ID`, or the role of the machine.",
    )
    secret_key: SecretStr | None = Field(default=None, description="The key itself, by reference.")
    session_token: SecretStr | None = Field(
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
