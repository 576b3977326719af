"""Schemas of a registry, its address and credentials, as values. The settings are sent to tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from penstock.model.pem import Pem

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A reference of a schema to another one: the name that it uses, and where that is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """A schema that another one uses, under the name by which it is used."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema as it was registered: a Protobuf one is text or a base64 descriptor, whichever the producer sent.

    `references` has everything it uses, directly or not, each once, and each after what it uses itself. Subject and
    version are there only when it was asked for by them: one id may belong to several.
    """

    id: int
    kind: SchemaKind
    text: str
    references: tuple[ReferencedSchema, ...] = ()
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class RegistrySettings:
    """The base URL of the Confluent API, credentials, TLS files and timeouts; secrets in the clear, never shown.

    `timeout` is in seconds, for connecting and for each wait on an answer. `retries` are tries after the first one.
    """

    url: str
    username: str | None = None
    password: str | None = None
    token: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    pem: Pem | None = None
    """What `security` names, instead of the three files; it reaches tasks whose machines do not have them."""
    timeout: float = 10.0
    retries: int = 3

    def __repr__(self) -> str:
        return f"RegistrySettings({self.address}, {self.credentials})"

    @property
    def address(self) -> str:
        """The URL for messages, without user and password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip("/")

    @property
    def credentials(self) -> str:
        """The kind of credentials, for messages."""
        if self.token is not None:
            return "a bearer token"
        if self.username is not None or "@" in urlsplit(self.url).netloc:
            return "a user and password"
        return "a client certificate" if self.certificate is not None else "no credentials"

    @property
    def authority(self) -> str | None:
        """The file of the authority to trust."""
        return self.pem.ca_path if self.pem is not None else self.ca_file

    @property
    def certificate(self) -> str | tuple[str, str] | None:
        """The file of the client's own certificate, and that of its key where it is another one."""
        file, key = self.certificate_file, self.key_file
        if self.pem is not None:
            file, key = self.pem.certificate_path, self.pem.key_path
        return (file, key) if file is not None and key is not None else file
