"""The current registry schemas of the decoders, with the fields they dropped.

With `version: latest`, the registry is queried before each batch. A producer registers a schema before it writes with
it, and a batch's offsets are fixed before the query: no record of the batch can be newer than the response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath

from pydantic import SecretStr

from penstock import config as cfg
from penstock.decoders.dropped import with_dropped
from penstock.errors import MissingError, TransientError
from penstock.model.pem import read_pem
from penstock.registry import RegisteredSchema, RegistrySettings, client_of

Place = tuple[str | int, ...]
"""The path of a decoder in the file."""

Schemas = Mapping[Place, RegisteredSchema]
"""The schema of each decoder whose columns come from a registry."""

_MOST_VERSIONS = 100
_LONGEST_PAUSE_SECONDS = 60.0
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}


@dataclass(frozen=True)
class Registered:
    """A decoder that takes its columns from a registry."""

    place: Place
    config: cfg.RegisteredConfig
    registry: RegistrySettings
    subject: str

    @property
    def follows(self) -> bool:
        """Whether it follows newer versions."""
        return self.config.version == "latest"

    def ask(self, known: RegisteredSchema | None = None) -> RegisteredSchema:
        """The schema as the file wants it; `known` again where nothing is newer."""
        if not self.follows:
            return self._of_format(client_of(self.registry).version(self.subject, int(self.config.version)))
        newest = self._of_format(client_of(self.registry).latest(self.subject))
        if known is not None and newest.id == known.id:
            return known
        return self.with_dropped(newest)

    def with_dropped(self, newest: RegisteredSchema) -> RegisteredSchema:
        """A version with the fields that it dropped from those before."""
        return with_dropped(newest, list(self._before(newest)), getattr(self.config, "message", None))

    def older(self, than: RegisteredSchema) -> Iterator[RegisteredSchema]:
        """Earlier versions, the newest first, each with the fields that it dropped."""
        return (self.with_dropped(schema) for schema in self._before(than))

    def _before(self, than: RegisteredSchema) -> Iterator[RegisteredSchema]:
        client = client_of(self.registry)
        versions = sorted(client.versions(self.subject), reverse=True)
        for version in [v for v in versions if than.version is None or v < than.version][:_MOST_VERSIONS]:
            schema = client.version(self.subject, version)
            if schema.kind == than.kind:
                yield schema

    def _of_format(self, found: RegisteredSchema) -> RegisteredSchema:
        if found.kind != _KINDS[self.config.format]:
            raise MissingError(
                "SCHEMA_OF_OTHER_FORMAT",
                f"reading subject {self.subject}: its schema has another format",
                context={"the file says": self.config.format, "the registry has": found.kind.lower()},
                hint="correct format or subject",
            )
        return found


class SchemaUpdates:
    """The decoders that follow newer schemas, and the queries for these.

    An unreachable registry costs timeouts and retries. It is therefore queried for at most a third of the time, so that
    batches with known schemas continue; a batch that has to wait for it queries at once.
    """

    def __init__(self, decoders: Mapping[Place, Registered]) -> None:
        self._decoders = decoders
        self._asks_at = 0.0
        self.away: TransientError | None = None
        """Why the last request failed."""

    def newest(self, known: Callable[[Place], RegisteredSchema]) -> dict[Place, RegisteredSchema] | None:
        """The newest schemas, `known` ones where nothing is newer; None while a registry is away."""
        began = time.monotonic()
        if began < self._asks_at:
            return None
        try:
            found = {place: one.ask(known(place)) for place, one in self._decoders.items()}
        except TransientError as error:
            now, self.away = time.monotonic(), error
            self._asks_at = now + min(2 * (now - began), _LONGEST_PAUSE_SECONDS)
            return None
        self.away = None
        return found

    def items(self) -> Iterable[tuple[Place, Registered]]:
        """Each decoder with its place."""
        return self._decoders.items()

    def ask_at_once(self) -> None:
        """Let the next batch query the registry in any case."""
        self._asks_at = 0.0


def registered(config: cfg.PipelineConfig) -> dict[Place, Registered]:
    """The decoders of a pipeline that take their columns from a registry, each once."""
    found: dict[Place, Registered] = {}
    for flow in cfg.flows(config):
        for value, at, topics in flow.decoders:
            topic, key = cfg.only_topic(topics, config.source), getattr(value, "key", None)
            for decode, place, suffix in ((value, at, "value"), (key, (*at, "key"), "key")):
                if not isinstance(decode, cfg.RegisteredConfig) or decode.registry is None or _own_columns(decode):
                    continue
                subject = decode.subject or f"{topic}-{suffix}"
                found[place] = Registered(place, decode, registry_settings(decode.registry), subject)
    return found


def ask_registries(config: cfg.PipelineConfig) -> dict[Place, RegisteredSchema]:
    """The current schemas."""
    return {place: one.ask() for place, one in registered(config).items()}


def registry_settings(registry: cfg.RegistryConfig) -> RegistrySettings:
    """How to reach a registry, secrets in the open. Not for a message or a log."""

    def revealed(secret: SecretStr | None) -> str | None:
        return secret.get_secret_value() if secret is not None else None

    if (security := registry.security) is not None:
        files = (security.ca_file, security.certificate_file, security.key_file)
        pem = read_pem("registry.security", *files, revealed(security.key_password))
        return RegistrySettings(
            registry.url,
            username=security.username,
            password=revealed(security.password),
            ca_file=security.ca_file,
            pem=pem,
            timeout=registry.timeout.total_seconds(),
            retries=registry.retries,
        )
    return RegistrySettings(
        registry.url,
        username=revealed(registry.username),
        password=revealed(registry.password),
        token=revealed(registry.token),
        ca_file=registry.ca_file,
        certificate_file=registry.certificate_file,
        key_file=registry.key_file,
        timeout=registry.timeout.total_seconds(),
        retries=registry.retries,
    )


def read_schema_file(file: str) -> bytes:
    """What a schema file holds."""
    try:
        return FilePath(file).read_bytes()
    except OSError as error:
        raise MissingError(
            "SCHEMA_FILE_MISSING",
            f"reading the schema file {file}: {error.strerror}",
            hint="the path is relative to the pipeline file",
        ) from None


def _own_columns(decode: object) -> bool:
    """Whether the file defines the columns, and the registry only provides the writer schemas."""
    return any(getattr(decode, name, None) is not None for name in ("columns", "schema_file", "descriptor_file"))
