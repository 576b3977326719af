"""Single-object encoding: two bytes that mark it, the fingerprint of the writer's schema, the value.

The fingerprint is CRC-64-AVRO of the schema's canonical form, in 8 bytes, little endian. There is no registry: the
schemas that may come are known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.decoders.framing import without_first
from penstock.decoders.refusal import SHORT_MESSAGE, WRONG_MAGIC, Reason

MARKER = b"\xc3\x01"
HEADER_BYTES = 10


@lru_cache(maxsize=1024)
def avro_fingerprint(schema: str) -> bytes:
    """The fingerprint of a schema's text, as it stands in a message."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))


def unframe_single(
    values: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
) -> Iterator[tuple[bytes, pa.BinaryArray, pa.UInt64Array]]:
    """The values of each fingerprint without their headers. What has none gets its reason."""
    if not len(values):
        return
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    for at in np.flatnonzero(sizes < HEADER_BYTES).tolist():
        reasons[rows[at].as_py()] = Reason(
            SHORT_MESSAGE, f"{sizes[at]} bytes, and the header of a single object alone takes {HEADER_BYTES}"
        )
    whole = np.flatnonzero(sizes >= HEADER_BYTES)
    headers = data[offsets[whole, None] + np.arange(HEADER_BYTES)]
    marked = (headers[:, : len(MARKER)] == np.frombuffer(MARKER, np.uint8)).all(axis=1)
    for at in whole[~marked].tolist():
        reasons[rows[at].as_py()] = Reason(WRONG_MAGIC, f"a single object begins with 0x{MARKER.hex()}")
    whole = whole[marked]
    prints = np.ascontiguousarray(headers[marked, len(MARKER) :]).view("<u8").ravel()
    for found in np.unique(prints):
        mine = pa.array(whole[prints == found])
        yield found.tobytes(), without_first(values.take(mine), HEADER_BYTES), rows.take(mine)
