"""The fast reader: many JSON messages at once through Arrow's own JSON reader.

Arrow reads a stream of objects and knows no messages, so alignment has to be proved. Every message given to
`read` begins with `{` and ends with `}`, holds no NUL, and a line feed follows each. If the stream parses,
every message ends outside all objects: inside a string the line feed would be refused, and inside an object
or array no `{` may follow a `}`. So each message is one whole object at least; and when there are as many
rows as messages, each is exactly one.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.decoders.json.columns import Finisher, is_fast, read_type
from penstock.decoders.json.reason import BLANKS, MAX_DEPTH, ExtraFields

_ROW = re.compile(r" in row (\d+)$")
_NOT_FINITE = r"[:,\[][ \t\r\n]*-?(NaN|Inf)"
"""Where a value begins with one of Arrow's words for numbers that are not finite; or a text looks like it."""


class RejectedBlockError(Exception):
    """Some message of the block is not for the fast reader; `row` is the first such, where Arrow tells."""

    def __init__(self, row: int | None = None) -> None:
        super().__init__(row)
        self.row = row


class JsonBlockReader:
    """Reads blocks of messages into the columns of the schema."""

    def __init__(self, columns: pa.Schema, extra_fields: ExtraFields) -> None:
        self.usable = all(is_fast(field.type) for field in columns)
        self._fields = list(columns)
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(f.name, read_type(f.type)) for f in columns]),
            unexpected_field_behavior="ignore" if extra_fields == "ignore" else "error",
        )

    def read(self, messages: pa.StringArray) -> tuple[list[pa.Array], list[int]]:
        """The columns, and the rows in which they may be wrong. Raises `RejectedBlockError`."""
        lines = pc.binary_join_element_wise(messages, "", "\n")
        text = lines.buffers()[2]
        # Some Arrow versions take a NUL for the end of the stream.
        data = text.to_pybytes()
        if b"\0" in data:
            raise RejectedBlockError
        options = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), options, self._options)
        except pa.ArrowInvalid as exc:
            found = _ROW.search(str(exc))
            raise RejectedBlockError(int(found.group(1)) if found else None) from None
        if table.num_rows != len(messages):
            raise RejectedBlockError
        finisher = Finisher()
        columns = [finisher.finish(table.column(f.name).combine_chunks(), f) for f in self._fields]
        # Arrow takes these words for numbers, and in fields outside the schema it does not show them.
        if b"NaN" in data or b"Inf" in data:
            finisher.suspect(pc.match_substring_regex(messages, _NOT_FINITE))
        return columns, finisher.suspects


def find_readable(texts: pa.StringArray) -> tuple[pa.StringArray, pa.BooleanArray]:
    """The texts without blanks around them, and which of them a block may hold."""
    readable = _is_braced(texts)
    if not pc.all(readable, min_count=0).as_py():
        texts = pc.ascii_trim(texts, BLANKS)
        readable = _is_braced(texts)
    # A valid message has two brackets for each level, so a short one cannot be too deep.
    long = pc.greater(pc.binary_length(texts), 2 * MAX_DEPTH)
    if pc.any(long, min_count=0).as_py():
        suspects = texts.filter(long)
        openings = pc.add(pc.count_substring(suspects, "{"), pc.count_substring(suspects, "["))
        shallow = pc.replace_with_mask(pc.invert(long), long, pc.less_equal(openings, MAX_DEPTH))
        readable = pc.and_(readable, shallow)
    return texts, readable


def _is_braced(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
