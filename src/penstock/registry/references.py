"""Everything that a schema uses, fetched and put in order; with an end, whatever the registry holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import MissingError
from penstock.registry.schemas import ReferencedSchema, SchemaReference

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
