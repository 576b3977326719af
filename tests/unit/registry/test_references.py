from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.errors import MissingError
from penstock.registry import ReferencedSchema, SchemaReference
from penstock.registry.client import MAX_DEPTH, MAX_REFERENCES, resolve_references


class Shelf:
    """Schemas that use each other: `uses[name]` are the names below it. Keeps what was asked for."""

    def __init__(self, **uses: str) -> None:
        self.uses = {name: names.split() for name, names in uses.items()}
        self.asked: list[str] = []

    def fetch(self, reference: SchemaReference) -> tuple[str, Sequence[SchemaReference]]:
        self.asked.append(reference.name)
        return f"text of {reference.name}", [at(name) for name in self.uses.get(reference.name, [])]


def at(name: str, version: int = 1) -> SchemaReference:
    return SchemaReference(name, f"subject of {name}", version)


def names_of(schemas: Sequence[ReferencedSchema]) -> list[str]:
    return [schema.name for schema in schemas]


def test_references_of_a_schema_without_any_are_none() -> None:
    assert resolve_references([], Shelf().fetch) == ()


def test_references_shared_by_two_come_once_and_before_both() -> None:
    shelf = Shelf(order="address person", person="address", address="country")
    found = resolve_references([at("order")], shelf.fetch)
    assert names_of(found) == ["country", "address", "person", "order"]
    assert found[0].text == "text of country"
    assert sorted(shelf.asked) == ["address", "country", "order", "person"]


def test_references_in_a_circle_are_refused_and_named() -> None:
    with pytest.raises(MissingError) as caught:
        resolve_references([at("a")], Shelf(a="b", b="c", c="b").fetch)
    assert caught.value.code == "REGISTRY_REFERENCES"
    assert caught.value.context["references"].count("subject of b version 1") == 2


def test_references_deeper_than_the_limit_are_refused() -> None:
    chain = {f"n{depth}": f"n{depth + 1}" for depth in range(MAX_DEPTH - 1)}
    assert len(resolve_references([at("n0")], Shelf(**chain).fetch)) == MAX_DEPTH
    endless = Shelf(**{f"n{depth}": f"n{depth + 1}" for depth in range(10_000)})
    with pytest.raises(MissingError, match="deep"):
        resolve_references([at("n0")], endless.fetch)
    assert len(endless.asked) == MAX_DEPTH


def test_references_more_than_the_limit_are_refused_before_they_are_fetched() -> None:
    shelf = Shelf()
    with pytest.raises(MissingError, match="more than"):
        resolve_references([at(f"n{number}") for number in range(MAX_REFERENCES + 1)], shelf.fetch)
    assert len(shelf.asked) == MAX_REFERENCES


def test_references_to_two_versions_under_one_name_are_refused() -> None:
    with pytest.raises(MissingError) as caught:
        resolve_references([at("a", 1), at("a", 2)], Shelf().fetch)
    assert caught.value.code == "REGISTRY_REFERENCES"
    assert "version 1 -> subject of a version 2" in caught.value.context["references"]


def test_references_of_more_text_than_a_schema_has_are_refused() -> None:
    with pytest.raises(MissingError) as caught:
        resolve_references([at(f"n{n}") for n in range(20)], lambda reference: ("a" * 2**20, []))
    assert caught.value.code == "REGISTRY_REFERENCES"
    assert "16 MiB" in caught.value.summary
