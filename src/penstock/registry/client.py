"""Schemas by id, by subject and version; registering them. What never changes is cached.

A schema is cached by its id, since a registry never gives an id to another schema; the least recently used is dropped
first. An unknown id is not cached: it may be registered a moment later. A registry that does not answer raises a
`TransientError`, and is never taken for one that does not know the schema. The schemas that a schema refers to are
fetched with it and put in order, within limits, whatever the registry contains.
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
    """One registry, with a cache. Use `client_of`, so that the cache is shared."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._exchange = Exchange(settings)
        self._schemas: Recent[int, RegisteredSchema] = Recent(CACHED_SCHEMAS)
        self._subjects: Recent[int, frozenset[str]] = Recent(CACHED_SCHEMAS)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with this id, or None where the registry has none."""
        if known := self.known(schema_id):
            return known
        # A registry's ids are signed; the four bytes of a message may be any.
        if not 0 <= schema_id <= _HIGHEST_ID:
            return None
        answer = self._ask(f"asking for schema {schema_id}", f"/schemas/ids/{schema_id}", absent=(_NO_SCHEMA,))
        return None if answer is None else self._schemas.keep(schema_id, self._registered(answer, schema_id))

    def remember(self, schema: RegisteredSchema) -> None:
        """Put this schema into the cache as if the registry had been asked for it."""
        self._schemas.keep(schema.id, schema)
        self._subjects.keep(schema.id, frozenset({schema.subject or ""}))

    def known(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with this id if it is in the cache; nothing is sent."""
        return self._schemas.get(schema_id)

    def subjects(self, schema_id: int, *, fresh: bool = False) -> frozenset[str]:
        """The subjects under which this id is, or once was, registered; `fresh` bypasses the cache."""
        if not fresh and (known := self._subjects.get(schema_id)):
            return known
        if not 0 <= schema_id <= _HIGHEST_ID:
            return frozenset()
        # A record may be older than the deletion of its version.
        path = f"/schemas/ids/{schema_id}/versions?deleted=true"
        answer = self._ask(f"asking for the subjects of schema {schema_id}", path, absent=(_NO_SCHEMA,))
        try:
            subjects = frozenset(str(each["subject"]) for each in (answer if answer is not None else ()))
        except (TypeError, KeyError):
            raise self._exchange.not_a_registry("versions of a schema without a subject") from None
        return self._subjects.keep(schema_id, subjects) if subjects else subjects

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of `subject`, never from the cache."""
        return self._version(subject, "latest")

    def version(self, subject: str, number: int) -> RegisteredSchema:
        """One version of `subject`."""
        return self._version(subject, str(number))

    def versions(self, subject: str) -> list[int]:
        """The numbers of the versions of `subject`, oldest first."""
        answer = self._ask(f'asking for subject "{subject}"', f"/subjects/{_quoted(subject)}/versions")
        if not isinstance(answer, list) or not all(isinstance(each, int) for each in answer):
            raise self._exchange.not_a_registry("no list of versions")
        return sorted(answer)

    def registered(
        self, subject: str, kind: SchemaKind, text: str, references: Sequence[SchemaReference] = ()
    ) -> int | None:
        """The id of exactly this schema under `subject`, or None where it is not registered there."""
        doing = f'looking for a schema under subject "{subject}"'
        body = _body(kind, text, references)
        answer = self._ask(doing, f"/subjects/{_quoted(subject)}", body, absent=(_NO_SUBJECT, _NO_SCHEMA))
        return None if answer is None else self._number(answer, "id")

    def register(self, subject: str, kind: SchemaKind, text: str, references: Sequence[SchemaReference] = ()) -> int:
        """Register the schema as the newest version of `subject`, unless it is registered already; its id."""
        doing = f'registering a schema under subject "{subject}"'
        body = _body(kind, text, references)
        return self._number(self._ask(doing, f"/subjects/{_quoted(subject)}/versions", body), "id")

    def close(self) -> None:
        """Close the connections; the client goes on working."""
        self._exchange.close()

    def _version(self, subject: str, which: str) -> RegisteredSchema:
        path = f"/subjects/{_quoted(subject)}/versions/{which}"
        answer = self._ask(f'asking for version {which} of subject "{subject}"', path)
        return self._registered(answer, self._number(answer, "id"), subject, self._number(answer, "version"))

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
        return self._text(self._ask(f'asking for version {reference.version} of subject "{reference.subject}"', path))

    def _text(self, answer: Any) -> tuple[str, Sequence[SchemaReference]]:
        try:
            references = answer.get("references") or ()
            found = [SchemaReference(_whole(e["name"]), _whole(e["subject"]), int(e["version"])) for e in references]
            return _whole(answer["schema"]), found
        except (AttributeError, TypeError, KeyError, ValueError, OverflowError):
            raise self._exchange.not_a_registry("a schema without its text or references") from None

    def _number(self, answer: Any, name: str) -> int:
        number = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise self._exchange.not_a_registry(f"nothing that has a number as its {name}")
        return number

    def _ask(self, doing: str, path: str, body: dict[str, Any] | None = None, absent: Sequence[int] = ()) -> Any:
        """The JSON of the answer; None where the registry refuses with one of the codes in `absent`."""
        answer = self._exchange.ask(path, body)
        if answer is None:
            raise self._exchange.not_a_registry("null")
        if not isinstance(answer, Refusal):
            return answer
        if answer.code in absent:
            return None
        context: dict[str, object] = {"registry": self.settings.address, "it answered": answer.message}
        if answer.code == _NO_SUBJECT:
            raise MissingError(
                "REGISTRY_SUBJECT_MISSING",
                f"{doing}: the schema registry has no such subject",
                context=context,
                hint="check the subject; the serializers name it after the topic: TOPIC-value, TOPIC-key",
            )
        if answer.code == _NO_VERSION:
            raise MissingError(
                "REGISTRY_VERSION_MISSING",
                f"{doing}: the schema registry has no such version",
                context=context,
                hint="use an existing version, or omit it for the latest",
            )
        raise MissingError(
            "REGISTRY_REFUSED",
            f"{doing}: the schema registry refuses",
            context={**context, "it answered": f"{answer.status} {answer.message}"},
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
