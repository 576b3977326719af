"""The headers of messages, and the schemas that they name.

Confluent's framing is a zero byte and a schema id in four bytes, big endian. Avro's single-object encoding is two bytes
that mark it and the fingerprint of the schema in eight bytes, little endian.

Enters: values as they are in Kafka. Leaves: the ids as one array and the messages without their headers, found by
column operations alone. A value without a valid header gets its reason. An id that the registry does not know, or that
belongs to another subject, is a reason to refuse its records. A registry that does not answer is not: then the batch is
tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import SHORT_MESSAGE, UNKNOWN_SCHEMA_ID, WRONG_MAGIC, WRONG_SUBJECT, Reason
from penstock.errors import TransientError
from penstock.registry import RegisteredSchema, RegistryClient, RegistrySettings, client_of


@dataclass(frozen=True, slots=True)
class Framing:
    """How a header looks: what it is called, the bytes that it begins with, and the number that follows."""

    name: str
    magic: bytes
    id_type: np.dtype[Any]

    @property
    def header_bytes(self) -> int:
        """The size of a header."""
        return len(self.magic) + self.id_type.itemsize


CONFLUENT = Framing("a schema id", b"\0", np.dtype(">u4"))
SINGLE_OBJECT = Framing("a single object", b"\xc3\x01", np.dtype("<u8"))


@dataclass(frozen=True, slots=True)
class Framed:
    """Messages, the schema id of each and the row of the batch that each came from."""

    ids: npt.NDArray[np.uint64]
    bodies: pa.BinaryArray
    rows: pa.UInt64Array

    def by_id(self) -> Iterator[tuple[int, pa.BinaryArray, pa.UInt64Array]]:
        """The messages of each id, in their order; the ids in the order in which they first come."""
        found, first = np.unique(self.ids, return_index=True)
        if len(found) == 1:
            yield int(found[0]), self.bodies, self.rows
            return
        for id_ in found[np.argsort(first)]:
            mine = self.ids == id_
            yield int(id_), self.bodies.filter(mine), self.rows.filter(mine)


def unframe(values: pa.BinaryArray, rows: pa.UInt64Array, framing: Framing, reasons: dict[int, Reason]) -> Framed:
    """Take the headers off; `values` has no nulls, and `rows` says where each is in the batch."""
    sizes = np.diff(offsets_of(values))
    whole = sizes >= framing.header_bytes
    if not whole.all():
        for at in np.flatnonzero(~whole):
            bytes_ = "1 byte" if sizes[at] == 1 else f"{sizes[at]} bytes"
            reasons[rows[int(at)].as_py()] = Reason(
                SHORT_MESSAGE, f"{bytes_}, and the header of {framing.name} alone takes {framing.header_bytes}"
            )
        values, rows = values.filter(whole), rows.filter(whole)
    headers = _data(values)[offsets_of(values)[:-1, None] + np.arange(framing.header_bytes)]
    magic = headers[:, : len(framing.magic)]
    right = (magic == np.frombuffer(framing.magic, np.uint8)).all(axis=1)
    if not right.all():
        for at in np.flatnonzero(~right):
            first = "first byte is" if len(framing.magic) == 1 else f"first {len(framing.magic)} bytes are"
            found = f"the {first} 0x{magic[at].tobytes().hex()}, and {framing.name} begins with 0x{framing.magic.hex()}"
            reasons[rows[int(at)].as_py()] = Reason(WRONG_MAGIC, found)
        values, rows, headers = values.filter(right), rows.filter(right), headers[right]
    ids = np.ascontiguousarray(headers[:, len(framing.magic) :]).view(framing.id_type).ravel().astype(np.uint64)
    return Framed(ids, without_first(values, framing.header_bytes), rows)


def without_first(values: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Each value without its first `count` bytes, which it has. (Arrow's own binary_slice fails on sliced arrays.)"""
    return pc.binary_replace_slice(values, 0, count, b"")


def offsets_of(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each value begins in the data, and where the last one ends."""
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[values.offset : values.offset + len(values) + 1]


def _data(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    buffer = values.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)


def by_schema(
    framed: Framed, registry: RegistrySettings | None, subject: str | None, frozen: bool, reasons: dict[int, Reason]
) -> Iterator[tuple[RegisteredSchema | None, pa.BinaryArray, pa.UInt64Array]]:
    """The messages of each schema. Those whose schema is refused get the reason.

    Without a registry the ids are ignored, and there is no schema.
    """
    if registry is None:
        yield None, framed.bodies, framed.rows
        return
    for schema_id, bodies, rows in framed.by_id():
        schema = writer_schema(registry, schema_id, subject, frozen)
        if isinstance(schema, Reason):
            reasons.update(dict.fromkeys(rows.to_pylist(), schema))
        else:
            yield schema, bodies, rows


def writer_schema(
    registry: RegistrySettings, schema_id: int, subject: str | None, frozen: bool
) -> RegisteredSchema | Reason:
    """The schema with this id, or why its records are refused. What this process has seen costs no request.

    `frozen` says that the newest schema could not be asked for, so an id not seen yet must wait: that raises.
    """
    client = client_of(registry)
    schema = client.known(schema_id)
    if schema is None:
        if frozen:
            raise TransientError(
                "REGISTRY_UNREACHABLE",
                f"decoding a record with schema id {schema_id}, not seen before: the schema registry is away",
                context={"registry": registry.address},
                hint="the batch is tried again; records with schemas seen before go on meanwhile",
            )
        schema = client.schema(schema_id)
        if schema is None:
            return Reason(UNKNOWN_SCHEMA_ID, f"the schema registry has no schema with the id {schema_id}")
    if subject is None or _belongs(client, schema_id, subject):
        return schema
    owners = ", ".join(sorted(client.subjects(schema_id))) or "no subject at all"
    return Reason(WRONG_SUBJECT, f"schema id {schema_id} belongs to {owners}, and not to {subject}")


def _belongs(client: RegistryClient, schema_id: int, subject: str) -> bool:
    # The same schema may have been registered under one more subject since the registry was asked.
    return subject in client.subjects(schema_id) or subject in client.subjects(schema_id, fresh=True)
