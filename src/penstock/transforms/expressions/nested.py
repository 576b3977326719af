"""Inside arrays, maps and structs: the number of elements, one of them, a field."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import (
    INTEGERS,
    Datum,
    Functions,
    NoFormError,
    Outcome,
    Term,
    attempt,
    call,
    is_plain,
    require_type,
    sql_name,
)

functions = Functions()

_INT = pa.int32()


@functions.named("size", "cardinality")
def _size(term: Term) -> Term:
    """The number of elements of an array or a map; NULL of NULL."""
    return call(_INT, _map_sizes, term) if pa.types.is_map(term.type) else _array_size(term)


@functions.named("array_size")
def _array_size(term: Term) -> Term:
    return call(_INT, pc.list_value_length, _array(term, "array_size"))


def item(term: Term, index: Term) -> Term:
    """`array[index]`, counted from 0, which fails beyond the ends; or the value of a key of a map."""
    if pa.types.is_map(term.type):
        return _map_value(term, index)

    def run(lists: Datum, places: Datum) -> Outcome:
        places = pc.cast(places, _INT)
        outside = pc.or_(pc.less(places, 0), pc.greater_equal(places, pc.list_value_length(lists)))
        return elements(lists, places), {"INVALID_ARRAY_INDEX": outside}

    return attempt(_element_type(term), run, _array(term, "an element"), require_type(index, "an index", *INTEGERS[:3]))


@functions.named("element_at")
def _element_at(term: Term, index: Term, *, null_on_error: bool = False) -> Term:
    """`element_at`, counted from 1, or from -1 at the end."""
    if index.value is None or index.is_null or not index.value.as_py():
        raise NoFormError("element_at with a place that is not a constant is left to Spark")
    place = index.value.as_py()
    if pa.types.is_map(term.type) or not isinstance(place, int):
        raise NoFormError("element_at of a map is left to Spark")
    start = pa.scalar(place - 1 if place > 0 else place, _INT)

    def run(lists: Datum) -> Outcome:
        outside = pc.less(pc.list_value_length(lists), pa.scalar(abs(place), _INT))
        return elements(lists, start), {"INVALID_ARRAY_INDEX_IN_ELEMENT_AT": outside}

    return attempt(_element_type(term), run, _array(term, "element_at"), null_on_error=null_on_error)


functions.named("try_element_at")(partial(_element_at, null_on_error=True))


def field(term: Term, name: str) -> Term:
    """A field of a struct."""
    if not pa.types.is_struct(term.type):
        raise NoFormError(f"`{name}` is looked up in a {sql_name(term.type)}")
    found = [index for index, member in enumerate(term.type) if member.name.lower() == name.lower()]
    if len(found) != 1:
        raise NoFormError(f"`{name}` is not one field of the struct")
    return call(term.type.field(found[0]).type, lambda datum: pc.struct_field(datum, found), term)


def elements(lists: Datum, places: Datum) -> Datum:
    """The element at a place of every list, counted from 0, or from -1 at the end; NULL beyond the ends."""
    sizes = pc.list_value_length(lists)
    places = pc.if_else(pc.less(places, 0), pc.add(places, sizes), pc.add(places, pc.subtract(sizes, sizes)))
    inside = pc.and_(pc.greater_equal(places, 0), pc.less(places, sizes))
    starts = pc.cast(lists.offsets.slice(0, len(lists)), pa.int64())
    at = pc.add(starts, pc.cast(places, pa.int64()))
    return lists.values.take(pc.if_else(inside, at, pa.scalar(None, pa.int64())))


def _map_sizes(maps: Datum) -> Datum:
    sizes = pc.subtract(maps.offsets.slice(1), maps.offsets.slice(0, len(maps)))
    return pc.if_else(pc.is_valid(maps), sizes, pa.scalar(None, _INT))


def _map_value(term: Term, key: Term) -> Term:
    if term.type.key_type != pa.string() or key.type != pa.string() or key.value is None or key.is_null:
        raise NoFormError("a map is looked up by something else than a constant string")
    kind = term.type.item_type
    if not is_plain(kind):
        raise NoFormError(f"a map of {sql_name(kind)} is left to Spark")
    sought = key.value
    return call(kind, lambda maps: pc.map_lookup(maps, query_key=sought, occurrence="first"), term)


def _array(term: Term, name: str) -> Term:
    if not pa.types.is_list(term.type):
        raise NoFormError(f"{name} of a {sql_name(term.type)} is left to Spark")
    return term


def _element_type(term: Term) -> pa.DataType:
    kind = _array(term, "an element").type.value_type
    if not (is_plain(kind) or pa.types.is_struct(kind)):
        raise NoFormError(f"an array of {sql_name(kind)} is left to Spark")
    return kind
