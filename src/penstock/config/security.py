"""How to be let in, in one shape for brokers, registries and databases: TLS, certificates, users, tokens."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import Location, Section, Text, wrong

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
