"""The Protobuf schema of rows: what is written where nobody gave one. A field's number never changes.

proto3, every plain column `optional`, so that a null is not a zero. TIMESTAMP is `google.protobuf.Timestamp`; DECIMAL,
DATE and TIMESTAMP_NTZ are text, as in JSON. Numbers are those of the version before, by name; what is new gets new
ones, and those of what is gone are reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import pyarrow as pa
import pyarrow.types as types
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from penstock.sinks.kafka.encode.avro_schema import NAME
from penstock.sinks.kafka.encode.shapes import UnfitError, is_bytes, is_listed, is_text

_TIMESTAMP = "google.protobuf.Timestamp"
_IMPORT = f'import "{_TIMESTAMP.replace(".", "/").lower()}.proto";'
_PLAIN = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "string",
}


def protobuf_schema(columns: pa.Schema, name: str, before: DescriptorProto | None = None) -> str:
    """The text of a file with one message for these columns. `name` may have a package before its last dot."""
    package, _, own = name.rpartition(".")
    body = list(_message(columns, own, before, ""))
    head = ['syntax = "proto3";']
    head += [f"package {package};"] if package else []
    head += [_IMPORT] if any(_TIMESTAMP in line for line in body) else []
    return "\n".join([*head, "", *body]) + "\n"


def _message(fields: Iterable[pa.Field], name: str, before: DescriptorProto | None, indent: str) -> Iterator[str]:
    columns = list(fields)
    numbers, gone = _numbers([field.name for field in columns], before)
    taken = {field.name for field in columns}
    yield f"{indent}message {name} {{"
    inner = f"{indent}  "
    for field in columns:
        if not NAME.fullmatch(field.name):
            raise UnfitError(
                f'no field in Protobuf can be called "{field.name}": letters, digits and _ only, no digit first; '
                "rename it"
            )
        struct = _struct_in(field.type)
        nested = _free_name(field.name, taken) if struct is not None else ""
        if struct is not None:
            yield from _message(struct, nested, _nested(before, field.name), inner)
        yield f"{inner}{_declared(field, nested)} {field.name} = {numbers[field.name]};"
    if gone:
        yield f"{inner}reserved {', '.join(gone)};"
    yield f"{indent}}}"


def _numbers(names: Iterable[str], before: DescriptorProto | None) -> tuple[dict[str, int], list[str]]:
    """A number for each name, and those that must not be used again."""
    known = {field.name: field.number for field in before.field} if before is not None else {}
    kept = [(range_.start, range_.end) for range_ in before.reserved_range] if before is not None else []
    unused = count(max([0, *known.values(), *(end - 1 for _, end in kept)]) + 1)
    numbers = {name: known[name] if name in known else next(unused) for name in names}
    kept += [(number, number + 1) for name, number in known.items() if name not in numbers]
    told = [str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in sorted(kept)]
    return numbers, told


def _nested(before: DescriptorProto | None, field: str) -> DescriptorProto | None:
    """The message that a field had in the version before, if it was one of its own."""
    if before is None:
        return None
    messages = {nested.name: nested for nested in before.nested_type}
    for known in before.field:
        if known.name == field and known.type == FieldDescriptorProto.TYPE_MESSAGE:
            found = messages.get(known.type_name.rpartition(".")[2])
            return _own(found, messages) if found is not None else None
    return None


def _own(found: DescriptorProto, beside: dict[str, DescriptorProto]) -> DescriptorProto | None:
    """A message; of a map's entry, the message that its values are."""
    if not found.options.map_entry:
        return found
    value = next(field for field in found.field if field.name == "value")
    return beside.get(value.type_name.rpartition(".")[2])


def _free_name(field: str, taken: set[str]) -> str:
    """A name for the message of a field: fields and messages share their names."""
    name = "".join(part[:1].upper() + part[1:] for part in field.split("_") if part) or "Message"
    if name[0].isdigit():
        name = f"M{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _struct_in(kind: pa.DataType) -> pa.StructType | None:
    if is_listed(kind):
        kind = kind.value_type
    elif types.is_map(kind):
        kind = kind.item_type
    return kind if types.is_struct(kind) else None


def _declared(field: pa.Field, nested: str) -> str:
    kind = field.type
    if is_listed(kind):
        return f"repeated {_type(kind.value_type, nested, field.name)}"
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise UnfitError(f"{field.name}: a map is written with strings as keys, not {kind.key_type}")
        return f"map<string, {_type(kind.item_type, nested, field.name)}>"
    made = _type(kind, nested, field.name)
    return made if made in (nested, _TIMESTAMP) else f"optional {made}"


def _type(kind: pa.DataType, nested: str, name: str) -> str:
    if types.is_struct(kind):
        return nested
    if types.is_timestamp(kind) and kind.unit == "us":
        return _TIMESTAMP if kind.tz else "string"
    if types.is_decimal(kind) or is_text(kind):
        return "string"
    if is_bytes(kind):
        return "bytes"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_listed(kind) or types.is_map(kind):
        raise UnfitError(f"{name}: Protobuf has no lists or maps right inside of lists or maps; put a struct between")
    raise UnfitError(f"{name}: there is no Protobuf type for {kind}")
