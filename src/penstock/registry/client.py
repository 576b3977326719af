"""Schemas by id, by subject and version; registering them. What can never change is asked for once.

A schema that was found under an id is kept, since a registry never gives an id to another schema; what was used longest
ago is dropped first. That an id is not known is not kept: it may be registered a moment later. A registry that is away
raises a `TransientError`, and is never taken for one that does not know. What a schema refers to is fetched with it and
put in order, within limits, whatever the registry holds.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_args
from urllib.parse import quote

from penstock.errors import MissingError
from penstock.registry.exchange import Exchange, Refusal
from penstock.registry.schemas import ReferencedSchema, RegisteredSchema, RegistrySettings, SchemaKind, SchemaReference

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `limit` entries, for any number of threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """What is kept under `key`, which is thereby used."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def keep(self, key: K, value: V) -> V:
        """Keep `value`, and let go of the one that was used longest ago if there are too many."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        return value


MAX_REFERENCES = 500
MAX_DEPTH = 32
MAX_CHARACTERS = 16 * 2**20
"""Of all the texts together."""

Fetch = Callable[[SchemaReference], tuple[str, Sequence[SchemaReference]]]


def resolve_references(references: Sequence[SchemaReference], fetch: Fetch) -> tuple[ReferencedSchema, ...]:
    """All schemas below `references`, each once and after what it uses; `fetch` gives a text and what that uses."""
    found: dict[SchemaReference, ReferencedSchema] = {}
    names: dict[str, SchemaReference] = {}

    def visit(reference: SchemaReference, path: tuple[SchemaReference, ...]) -> None:
        if reference in path:
            raise _refused("they go round in a circle", [*path[path.index(reference) :], reference])
        if reference in found:
            return
        if len(path) >= MAX_DEPTH:
            raise _refused(f"they are nested more than {MAX_DEPTH} deep", path)
        if len(names) >= MAX_REFERENCES:
            raise _refused(f"there are more than {MAX_REFERENCES}", path)
        other = names.setdefault(reference.name, reference)
        if (other.subject, other.version) != (reference.subject, reference.version):
            raise _refused(f'"{reference.name[:100]}" stands for two different schemas', [other, reference])
        text, below = fetch(reference)
        if sum(len(each.text) for each in found.values()) + len(text) > MAX_CHARACTERS:
            raise _refused(f"they have more than {MAX_CHARACTERS // 2**20} MiB", path)
        for each in below:
            visit(each, (*path, reference))
        found[reference] = ReferencedSchema(reference.name, text)

    for reference in references:
        visit(reference, ())
    return tuple(found.values())


def _refused(what: str, path: Sequence[SchemaReference]) -> MissingError:
    return MissingError(
        "REGISTRY_REFERENCES",
        f"resolving the references of a schema: {what}",
        context={"references": " -> ".join(f"{each.subject[:100]} version {each.version}" for each in path[-6:])},
        hint="register the schema again with references that can be followed to their end",
    )


CACHED_SCHEMAS = 1000
_HIGHEST_ID = 2**31 - 1
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


class RegistryClient:
    """One registry, with a cache. To be made by `client_of`, so that the cache is shared."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._exchange = Exchange(settings)
        self._schemas: Recent[int, RegisteredSchema] = Recent(CACHED_SCHEMAS)
        self._subjects: Recent[int, frozenset[str]] = Recent(CACHED_SCHEMAS)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with this id, or None where the registry says that there is none."""
        if known := self.known(schema_id):
            return known
        # A registry's ids are signed; the four bytes of a message may be any.
        if not 0 <= schema_id <= _HIGHEST_ID:
            return None
        answer = self._exchange.ask(f"/schemas/ids/{schema_id}")
        if isinstance(answer, Refusal):
            if answer.code == _NO_SCHEMA:
                return None
            raise self._refused(f"asking for schema {schema_id}", answer)
        return self._schemas.keep(schema_id, self._registered(answer, schema_id))

    def remember(self, schema: RegisteredSchema) -> None:
        """Answer for this schema as if the registry had been asked."""
        self._schemas.keep(schema.id, schema)
        self._subjects.keep(schema.id, frozenset({schema.subject or ""}))

    def known(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with this id if it was asked for before; nothing is sent."""
        return self._schemas.get(schema_id)

    def subjects(self, schema_id: int, *, fresh: bool = False) -> frozenset[str]:
        """The subjects under which this id is, or once was, registered; `fresh` asks again what is known already."""
        if not fresh and (known := self._subjects.get(schema_id)):
            return known
        if not 0 <= schema_id <= _HIGHEST_ID:
            return frozenset()
        # A record may be older than the deletion of its version.
        answer = self._exchange.ask(f"/schemas/ids/{schema_id}/versions?deleted=true")
        if isinstance(answer, Refusal):
            if answer.code == _NO_SCHEMA:
                return frozenset()
            raise self._refused(f"asking for the subjects of schema {schema_id}", answer)
        try:
            subjects = frozenset(str(each["subject"]) for each in answer)
        except (TypeError, KeyError):
            raise self._exchange.not_a_registry("versions of a schema without a subject") from None
        return self._subjects.keep(schema_id, subjects) if subjects else subjects

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of `subject`, asked for every time."""
        return self._version(subject, "latest")

    def version(self, subject: str, number: int) -> RegisteredSchema:
        """One version of `subject`."""
        return self._version(subject, str(number))

    def versions(self, subject: str) -> list[int]:
        """The numbers of the versions of `subject`, oldest first."""
        answer = self._exchange.ask(f"/subjects/{_quoted(subject)}/versions")
        if isinstance(answer, Refusal):
            raise self._missing(subject, "any", answer)
        if not isinstance(answer, list) or not all(isinstance(each, int) for each in answer):
            raise self._exchange.not_a_registry("no list of versions")
        return sorted(answer)

    def registered(
        self, subject: str, kind: SchemaKind, text: str, references: Sequence[SchemaReference] = ()
    ) -> int | None:
        """The id of exactly this schema under `subject`, or None where it is not registered there."""
        answer = self._exchange.ask(f"/subjects/{_quoted(subject)}", _body(kind, text, references))
        if isinstance(answer, Refusal):
            if answer.code in (_NO_SUBJECT, _NO_SCHEMA):
                return None
            raise self._refused(f'looking for a schema under subject "{subject}"', answer)
        return self._id(answer)

    def register(self, subject: str, kind: SchemaKind, text: str, references: Sequence[SchemaReference] = ()) -> int:
        """Register the schema under `subject`, as its newest version unless it is there already; its id."""
        answer = self._exchange.ask(f"/subjects/{_quoted(subject)}/versions", _body(kind, text, references))
        if isinstance(answer, Refusal):
            raise self._refused(f'registering a schema under subject "{subject}"', answer)
        return self._id(answer)

    def close(self) -> None:
        """Let go of the connections; the client goes on working."""
        self._exchange.close()

    def _version(self, subject: str, which: str) -> RegisteredSchema:
        answer = self._exchange.ask(f"/subjects/{_quoted(subject)}/versions/{which}")
        if isinstance(answer, Refusal):
            raise self._missing(subject, which, answer)
        return self._registered(answer, self._id(answer), subject, self._number(answer, "version"))

    def _registered(
        self, answer: Any, schema_id: int, subject: str | None = None, version: int | None = None
    ) -> RegisteredSchema:
        text, references = self._text(answer)
        # The API leaves the kind out for Avro, the first one there was.
        kind: SchemaKind = answer.get("schemaType") or "AVRO"
        if kind not in get_args(SchemaKind):
            raise self._exchange.not_a_registry(f"a schema of the kind {str(kind)[:100]}")
        below = resolve_references(references, self._referenced)
        return RegisteredSchema(schema_id, kind, text, below, subject, version)

    def _referenced(self, reference: SchemaReference) -> tuple[str, Sequence[SchemaReference]]:
        path = f"/subjects/{_quoted(reference.subject)}/versions/{reference.version}?deleted=true"
        answer = self._exchange.ask(path)
        if isinstance(answer, Refusal):
            raise self._missing(reference.subject, str(reference.version), answer)
        return self._text(answer)

    def _text(self, answer: Any) -> tuple[str, Sequence[SchemaReference]]:
        try:
            references = answer.get("references") or ()
            found = [SchemaReference(_whole(e["name"]), _whole(e["subject"]), int(e["version"])) for e in references]
            return _whole(answer["schema"]), found
        except (AttributeError, TypeError, KeyError, ValueError, OverflowError):
            raise self._exchange.not_a_registry("a schema without its text or references") from None

    def _id(self, answer: Any) -> int:
        return self._number(answer, "id")

    def _number(self, answer: Any, name: str) -> int:
        number = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise self._exchange.not_a_registry(f"nothing that has a number as its {name}")
        return number

    def _missing(self, subject: str, which: str, refusal: Refusal) -> MissingError:
        place = {"registry": self.settings.address, "it answered": refusal.message}
        if refusal.code == _NO_SUBJECT:
            return MissingError(
                "REGISTRY_SUBJECT_MISSING",
                f'asking for subject "{subject}": the schema registry has none of that name',
                context=place,
                hint="check the subject; the serializers name it after the topic: TOPIC-value, TOPIC-key",
            )
        if refusal.code == _NO_VERSION:
            return MissingError(
                "REGISTRY_VERSION_MISSING",
                f'asking for subject "{subject}": the schema registry has no version {which} of it',
                context=place,
                hint="name a version that there is, or leave it out for the latest",
            )
        return self._refused(f'asking for subject "{subject}"', refusal)

    def _refused(self, doing: str, refusal: Refusal) -> MissingError:
        return MissingError(
            "REGISTRY_REFUSED",
            f"{doing}: the schema registry refuses",
            context={"registry": self.settings.address, "it answered": f"{refusal.status} {refusal.message}"},
            hint="an incompatible schema (409) needs a change, or another compatibility of the subject; an invalid one "
            "(422) needs a correction",
        )


def client_of(settings: RegistrySettings) -> RegistryClient:
    """The one client of this process for `settings`, so that a reused Spark worker keeps what it knows."""
    return _client(settings, os.getpid())


@lru_cache(maxsize=16)
def _client(settings: RegistrySettings, _pid: int) -> RegistryClient:
    return RegistryClient(settings)


def _body(kind: SchemaKind, text: str, references: Sequence[SchemaReference]) -> dict[str, Any]:
    used = [{"name": each.name, "subject": each.subject, "version": each.version} for each in references]
    return {"schema": text, "schemaType": kind, "references": used}


def _whole(text: Any) -> str:
    """A text that can be written as UTF-8, which JSON does not promise. Raises `TypeError` or `ValueError`."""
    if not isinstance(text, str):
        raise TypeError
    text.encode()
    return text


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
