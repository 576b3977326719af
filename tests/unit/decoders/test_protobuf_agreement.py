"""Random schemas and values, written by Google's library, come out equal; mutated bytes end on either side.

What is expected is told here by the message objects themselves, without our readers.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.decoders.protobuf_messages import ORDERS, classes, descriptors

from penstock.decoders.protobuf.decoder import ProtobufDecoder

F = descriptor_pb2.FieldDescriptorProto
NUMBERS = {
    F.TYPE_INT32: (-(2**31), 2**31 - 1), F.TYPE_SINT32: (-(2**31), 2**31 - 1), F.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    F.TYPE_INT64: (-(2**63), 2**63 - 1), F.TYPE_SINT64: (-(2**63), 2**63 - 1), F.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    F.TYPE_UINT32: (0, 2**32 - 1), F.TYPE_FIXED32: (0, 2**32 - 1), F.TYPE_UINT64: (0, 2**64 - 1),
    F.TYPE_FIXED64: (0, 2**64 - 1),
}  # fmt: skip
SCALARS = [*NUMBERS, F.TYPE_FLOAT, F.TYPE_DOUBLE, F.TYPE_BOOL, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_ENUM]
KEYS = [*NUMBERS, F.TYPE_BOOL, F.TYPE_STRING]
KNOWN = [".google.protobuf.Timestamp", ".google.protobuf.Int64Value", ".google.protobuf.StringValue"]
KNOWN += [".google.protobuf.Duration", ".google.protobuf.Empty"]
MODULES: list[Any] = [timestamp_pb2, wrappers_pb2, duration_pb2, empty_pb2]


@st.composite
def schemas(draw: Any) -> bytes:
    """A file with messages M0 to M2; each holds only later ones, so that none holds itself."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = descriptor_pb2.FileDescriptorProto(name="random.proto", syntax=syntax)
    file.dependency.extend(module.DESCRIPTOR.name for module in MODULES)
    enum = file.enum_type.add(name="E")
    for number in (0, 1, 5):
        enum.value.add(name=f"E{number}", number=number)
    for at in range(3):
        message = file.message_type.add(name=f"M{at}")
        later = [f".M{other}" for other in range(at + 1, 3)] + KNOWN
        for n in range(draw(st.integers(1, 6))):
            _add_field(draw, message, n, syntax, later)
    found = descriptor_pb2.FileDescriptorSet()
    found.file.extend(
        descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in MODULES
    )
    found.file.append(file)
    return found.SerializeToString()


def _add_field(draw: Any, message: descriptor_pb2.DescriptorProto, n: int, syntax: str, later: list[str]) -> None:
    number = draw(st.integers(1 + 100 * n, 100 + 100 * n))
    kind = draw(st.sampled_from(["single", "single", "repeated", "map", "oneof", "optional"]))
    field = message.field.add(name=f"f{n}", number=number, label=F.LABEL_OPTIONAL)
    typed = field
    if kind == "map":
        entry = message.nested_type.add(name=f"F{n}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=draw(st.sampled_from(KEYS)))
        typed = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL)
        field.type, field.type_name = F.TYPE_MESSAGE, f".{message.name}.F{n}Entry"
    if kind in ("map", "repeated"):
        field.label = F.LABEL_REPEATED
    if draw(st.integers(0, 2)) == 0:
        typed.type, typed.type_name = F.TYPE_MESSAGE, draw(st.sampled_from(later))
    else:
        typed.type = draw(st.sampled_from(SCALARS))
        if typed.type == F.TYPE_ENUM:
            typed.type_name = ".E"
    if kind == "oneof":
        if "one" not in [oneof.name for oneof in message.oneof_decl]:
            message.oneof_decl.add(name="one")
        field.oneof_index = 0
    elif kind == "repeated" and typed.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE):
        field.options.packed = draw(st.booleans())
    elif kind == "optional" and syntax == "proto3" and typed.type != F.TYPE_MESSAGE:
        field.proto3_optional = True
    _optionals_last(message)


def _optionals_last(message: descriptor_pb2.DescriptorProto) -> None:
    """A oneof of its own for each optional field of proto3, behind the real ones, as the compiler makes them."""
    real = [oneof.name for oneof in message.oneof_decl if oneof.name == "one"]
    del message.oneof_decl[:]
    for name in real:
        message.oneof_decl.add(name=name)
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type in NUMBERS:
        return st.integers(*NUMBERS[field.type]) | st.sampled_from([0, 1, NUMBERS[field.type][0]])
    if field.type in (F.TYPE_FLOAT, F.TYPE_DOUBLE):
        return st.floats(width=32 if field.type == F.TYPE_FLOAT else 64, allow_nan=False)
    if field.type == F.TYPE_ENUM:
        return st.sampled_from([0, 1, 5] if field.enum_type.is_closed else [0, 1, 5, 77])
    kinds = {F.TYPE_BOOL: st.booleans(), F.TYPE_STRING: st.text(max_size=4), F.TYPE_BYTES: st.binary(max_size=4)}
    return kinds[field.type]


def fill(draw: Any, message: Any) -> None:
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = (
            draw(st.integers(-62_135_596_800, 253_402_300_799)),
            draw(st.integers(0, 10**9 - 1)),
        )
        return
    for field in message.DESCRIPTOR.fields:
        if draw(st.booleans()):
            continue
        entry = (
            field.message_type.fields_by_name
            if field.message_type and field.message_type.GetOptions().map_entry
            else None
        )
        given = getattr(message, field.name)
        if entry:
            for key in draw(st.lists(scalars(entry["key"]), max_size=3)):
                if entry["value"].message_type:
                    fill(draw, given[key])
                else:
                    given[key] = draw(scalars(entry["value"]))
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type:
                    fill(draw, given.add())
                else:
                    given.append(draw(scalars(field)))
        elif field.message_type:
            given.SetInParent()
            fill(draw, given)
        else:
            setattr(message, field.name, draw(scalars(field)))


def expected(message: Any) -> Any:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if name == "google.protobuf.Empty":
        return True
    found = {field.name: _expected_field(message, field) for field in message.DESCRIPTOR.fields}
    return found["value"] if name in ("google.protobuf.Int64Value", "google.protobuf.StringValue") else found


def _expected_field(message: Any, field: FieldDescriptor) -> Any:
    given = getattr(message, field.name)
    if field.message_type and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {key: _expected_value(given[key], value) for key in given}
    if field.is_repeated:
        return [_expected_value(item, field) for item in given]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _expected_value(given, field)


def _expected_value(given: Any, field: FieldDescriptor) -> Any:
    if field.message_type:
        return expected(given)
    if field.type == F.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(given)
        return known.name if known else str(given)
    return Decimal(given) if field.type in (F.TYPE_UINT64, F.TYPE_FIXED64) else given


def plain(value: Any, kind: pa.DataType) -> Any:
    """An Arrow value with its maps as dictionaries, which have no order."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        assert len({key for key, _ in value}) == len(value)
        return {key: plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    return value


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(encoded=schemas(), data=st.data())
def test_random_messages_of_random_schemas_come_out_equal(raw_batch, encoded, data):
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(encoded).file:
        pool.AddSerializedFile(file.SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("M0"))
    messages = [made() for _ in range(data.draw(st.integers(1, 4)))]
    for message in messages:
        fill(data.draw, message)

    split = ProtobufDecoder(encoded, "M0", framing="none").decode(raw_batch([m.SerializeToString() for m in messages]))

    assert split.bad.num_rows == 0, split.bad.column("message").to_pylist()
    split.good.validate(full=True)
    kind = pa.struct(list(split.good.schema)[:-1])
    assert [plain(row, kind) for row in split.good.to_pylist()] == [expected(message) for message in messages]


NO_MAPS = ORDERS.replace("map<string, int32> counts = 8;", "repeated double counts = 8; repeated Address more = 13;")


def mutated(chance: random.Random, whole: bytes, parts: list[bytes]) -> bytes:
    changed = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                changed[at : at + 1] = chance.randbytes(1)
            case 1:
                del changed[at : at + chance.randint(1, 4)]
            case 2:
                changed[at:at] = chance.randbytes(chance.randint(1, 4))
            case 3:
                del changed[at:]
            case 4:
                changed += chance.choice(parts)
            case 5:
                changed[at:at] = chance.choice(parts)
    return bytes(changed)


def test_mutated_messages_are_good_exactly_where_google_reads_them_and_with_its_values(raw_batch):
    """Without maps: there the library drops an entry that has an unknown field, and we keep it."""
    made = classes(descriptors(NO_MAPS))
    order = made["Order"](id=5, name="é", amount=1.5, status=1, tags=["a", "b"], cash=4, prices=[1, 2], counts=[0.5])
    order.at.seconds, order.address.city, order.bill.zip = 99, "c", "z"
    order.more.add().city = "m"
    parts = [made["Order"](**{field.name: value}).SerializeToString() for field, value in order.ListFields()]
    parts += [b"\x9b\x06\x08\x01\x9c\x06", made["Order"](card="x").SerializeToString()]
    chance = random.Random(20260101)
    values = [mutated(chance, order.SerializeToString(), parts) for _ in range(4000)]

    split = ProtobufDecoder(descriptors(NO_MAPS), "shop.Order", framing="none").decode(raw_batch(values))

    split.good.validate(full=True)
    offsets = [row["offset"] - 1000 for row in split.good.column("_penstock").to_pylist()]
    bad = dict(zip(split.bad.column("offset").to_pylist(), split.bad.column("code").to_pylist(), strict=True))
    assert len(offsets) + len(bad) == len(values)
    kind = pa.struct(list(split.good.schema)[:-1])
    got = dict(zip(offsets, split.good.to_pylist(), strict=True))
    assert 500 < len(got) < 3500
    for at, value in enumerate(values):
        try:
            message = made["Order"].FromString(value)
        except DecodeError:
            assert bad[1000 + at] in ("TRUNCATED", "MALFORMED_PROTOBUF", "INVALID_UTF8", "TOO_DEEP")
            continue
        if at in got:
            assert _same(plain(got[at], kind), expected(message))
        else:
            assert bad[1000 + at] == "OUT_OF_RANGE"
            assert not 0 <= message.at.nanos < 10**9 or abs(message.at.seconds) > 6e10


def _same(one: Any, other: Any) -> bool:
    """Equal, with a NaN that is equal to itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
