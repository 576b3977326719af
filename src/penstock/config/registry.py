"""A schema registry, as a source or a sink names it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import Count, Duration, Location, Section, Text, wrong
from penstock.config.security import SecurityConfig


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
