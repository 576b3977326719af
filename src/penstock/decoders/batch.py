"""One batch through one format: raw records in, good rows and bad records out.

Every format is asked the same first: is there a value, is it small enough; and a text format: is it UTF-8. Then its
values go block by block through its fast reader. What that reader refuses or is not sure of goes one by one through the
careful reader, which gives the values or says why the record is bad. All rows come out in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import (
    INVALID_UTF8,
    MESSAGE_TOO_LARGE,
    TIMESTAMP_OUT_OF_RANGE,
    TOMBSTONE,
    Reason,
    RefusedError,
    refuse,
)
from penstock.model import Split, beyond_timestamps, coordinates_of
from penstock.registry import RegisteredSchema

Tombstones = Literal["quarantine", "pass", "drop"]
"""What becomes of a record without a value: a bad record, a row of nulls, or nothing."""

DEFAULT_MAX_BYTES = 10 * 1024 * 1024


class BlockError(Exception):
    """A block holds bad values. The message is the reason where the careful reader finds nothing wrong.

    `bad` are values that are known to be bad, by their place, where the reader knows them: all among the first `seen`.
    """

    def __init__(self, code: str, message: str, bad: Sequence[int] = (), seen: int = 0) -> None:
        super().__init__(code, message)
        self.reason = Reason(code, message)
        self.bad = bad
        self.seen = seen


class RecordDecoder(ABC):
    """Implements `contracts.Decoder` for a frozen dataclass, which is pickled without what it has cached.

    A record whose time is after the last timestamp is bad, whatever its format. Kafka's times are 64 bits of
    milliseconds; a reader that cannot give one in microseconds gives the largest number, and the quarantine has null.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The decoded columns, with the coordinates as the last."""

    @abstractmethod
    def read(self, raw: pa.RecordBatch) -> Split:
        """Split records, none of whose times is too late, into rows and bad records."""

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        beyond = beyond_timestamps(raw.column("timestamp"))
        if beyond is None:
            return self.read(raw)
        split = self.read(raw.filter(pc.invert(beyond)))
        late = refuse(raw, dict.fromkeys(pc.indices_nonzero(beyond).to_pylist(), _BEYOND))
        return Split(split.good, pa.concat_batches([split.bad, late]), split.refused, split.counts)

    @property
    def knows_refusals(self) -> bool:
        """Whether `refuses` can tell: the format checks a writer's schema as a whole."""
        return False

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        return None

    def notices(self) -> list[str]:
        """Conditions that were not reported before in this process."""
        new = [condition for condition in self.conditions() if condition not in _reported]
        _reported.update(new)
        return new

    def conditions(self) -> list[str]:
        """What people should know that is not tied to a single record, such as falling back to a slow reader."""
        return []


_reported: set[str] = set()
_BEYOND = Reason(TIMESTAMP_OUT_OF_RANGE, "the record's time is after the year 9999, which no timestamp can be")


class Format(ABC):
    """The two readers of a format. A block has at most `block_rows` values and, if it has several, `block_bytes`."""

    schema: pa.Schema
    """The columns, without the coordinates."""
    is_fast = True
    """Whether there is a fast reader for these columns."""
    block_rows = 16_384
    block_bytes = 32 * 1024 * 1024

    @abstractmethod
    def read_block(self, values: pa.Array) -> tuple[list[pa.Array], Sequence[int] | npt.NDArray[np.int64]]:
        """The columns, and the places of the values for which they may be wrong. Raises `BlockError`."""

    @abstractmethod
    def read_single(self, value: Any) -> Sequence[Any] | None:
        """The value of each column; None where nothing is wrong, and only `read_block` gives the columns.

        Raises `RefusedError`.
        """


Group = tuple[Format, pa.Array, pa.UInt64Array]
"""Values of one format without their headers, and the rows of the batch that they came from."""


@dataclass(frozen=True, slots=True)
class Screened:
    """The values that remain, the row of the batch that each came from, and why the others are bad."""

    values: pa.BinaryArray
    rows: pa.UInt64Array
    passed_tombstones: pa.UInt64Array
    reasons: dict[int, Reason]


def decode_batch(
    raw: pa.RecordBatch,
    schema: pa.Schema,
    tombstones: Tombstones,
    max_bytes: int,
    groups: Callable[[Screened], Iterable[Group]],
) -> Split:
    """Split raw records into rows of `schema`, whose last column has the coordinates, and bad records."""
    screened = screen(raw.column("value"), tombstones, max_bytes)
    pieces = Pieces(pa.schema(list(schema)[:-1]))
    for format_, values, rows in groups(screened) if len(screened.values) else ():
        _Reading(format_, pieces, screened.reasons).read(values, rows)
    pieces.add_nulls(screened.passed_tombstones)
    return pieces.split(raw, schema, screened.reasons)


class _Reading:
    """Values of one format on their way: what is read goes to the pieces, what is refused to the reasons."""

    def __init__(self, format_: Format, pieces: Pieces, reasons: dict[int, Reason]) -> None:
        self._format = format_
        self._pieces = pieces
        self._reasons = reasons

    def read(self, values: pa.Array, rows: pa.UInt64Array) -> None:
        """Read all values.

        A block that the fast reader refuses is cut down to where it fails; a stretch of values there is read one by
        one, and the blocks grow again. Where bad values are dense, ever longer stretches are read one by one, so the
        cost stays linear. Values that the careful reader only checked are read as blocks afterwards, and one that
        fails even so is bad for the fast reader's reason.
        """
        size, stretch = self._format.block_rows, _FEW_ROWS
        waiting = [(values, rows, False)]
        while waiting:
            values, rows, checked = waiting.pop()
            if not len(values):
                continue
            block = self._first_block(values, size)
            done = len(block)
            try:
                self._read_block(block, rows.slice(0, done))
            except BlockError as error:
                if error.bad and error.seen > _FEW_ROWS:
                    done = size = error.seen
                    bad, rest = _split(error.bad, done)
                    self._read_singly(block.take(bad), rows.take(bad), error.reason)
                    again = (block.slice(0, done).filter(rest), rows.slice(0, done).filter(rest), checked)
                elif done > 1 and (checked or (done > _FEW_ROWS and not error.bad)):
                    size = max(done // 4, 1 if checked else _FEW_ROWS)
                    waiting.append((values, rows, checked))
                    continue
                elif checked:
                    self._reasons[rows[0].as_py()] = error.reason
                    again = (values.slice(0, 0), rows.slice(0, 0), checked)
                else:
                    size, done = max(done // 4, _FEW_ROWS), stretch
                    stretch = min(2 * stretch, _LONGEST_STRETCH)
                    again = (*self._read_singly(values.slice(0, done), rows.slice(0, done)), True)
                waiting += [(values.slice(done), rows.slice(done), checked), again]
            else:
                size = min(2 * done, self._format.block_rows)
                stretch = stretch if checked else _FEW_ROWS
                waiting.append((values.slice(done), rows.slice(done), checked))

    def _first_block(self, values: pa.Array, size: int) -> pa.Array:
        block = values.slice(0, size)
        while len(block) > 1 and block.nbytes > self._format.block_bytes:
            block = block.slice(0, len(block) // 2)
        return block

    def _read_block(self, values: pa.Array, rows: pa.UInt64Array) -> None:
        if not self._format.is_fast:
            self._read_singly(values, rows)
            return
        columns, doubtful = self._format.read_block(values)
        if len(doubtful):
            some, rest = _split(doubtful, len(values))
            self._read_singly(values.take(some), rows.take(some))
            columns, rows = [column.filter(rest) for column in columns], rows.filter(rest)
        self._pieces.add(columns, rows)

    def _read_singly(
        self, values: pa.Array, rows: pa.UInt64Array, otherwise: Reason | None = None
    ) -> tuple[pa.Array, pa.UInt64Array]:
        """Read values one by one. Those that were only checked are bad for the reason `otherwise`, or returned."""
        read: list[Sequence[Any]] = []
        good: list[int] = []
        checked: list[int] = []
        for at, (value, row) in enumerate(zip(values.to_pylist(), rows.to_pylist(), strict=True)):
            try:
                found = self._format.read_single(value)
            except RefusedError as refused:
                self._reasons[row] = refused.reason
                continue
            if found is not None:
                read.append(found)
                good.append(row)
            elif otherwise is not None:
                self._reasons[row] = otherwise
            else:
                checked.append(at)
        if good:
            columns = zip(zip(*read, strict=True), self._format.schema.types, strict=True)
            self._pieces.add([pa.array(column, kind) for column, kind in columns], pa.array(good, pa.uint64()))
        left = pa.array(checked, pa.int64())
        return values.take(left), rows.take(left)


def _split(places: Sequence[int] | npt.NDArray[np.int64], count: int) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """The places, and a mask of all others."""
    others = np.ones(count, bool)
    others[places] = False
    return pa.array(places, pa.int64()), pa.array(others)


# Under this many rows a call of a fast reader costs more than reading them one by one.
_FEW_ROWS = 32
_LONGEST_STRETCH = 1024


class Pieces:
    """Decoded columns of `schema`, which has no coordinates, with the batch rows they came from."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces = [pa.RecordBatch.from_pylist([], schema=schema)]
        self._rows = [pa.array([], pa.uint64())]

    def add(self, columns: Sequence[pa.Array], rows: pa.UInt64Array) -> None:
        """Add some rows; `rows` says where in the batch each is from."""
        self._pieces.append(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))
        self._rows.append(rows)

    def add_nulls(self, rows: pa.UInt64Array) -> None:
        """A row of nulls for each tombstone that is passed on."""
        if len(rows):
            self.add([pa.nulls(len(rows), field.type) for field in self._schema], rows)

    def split(self, raw: pa.RecordBatch, schema: pa.Schema, reasons: Mapping[int, Reason]) -> Split:
        """The pieces in the order of `raw`, with their coordinates, and the refused records."""
        pieces = [piece for piece in self._pieces if piece.num_rows]
        good = pa.concat_batches(pieces) if len(pieces) > 1 else (pieces or self._pieces)[0]
        rows = pa.concat_arrays(self._rows)
        coordinates = coordinates_of(raw)
        if not pc.all(pc.less(rows[:-1], rows[1:]), min_count=0).as_py():
            order = pc.array_sort_indices(rows)
            good, rows = good.take(order), rows.take(order)
        if len(rows) != raw.num_rows:
            coordinates = coordinates.take(rows)
        rows_out = pa.RecordBatch.from_arrays([*good.columns, coordinates], schema=schema)
        return Split(rows_out, refuse(raw, reasons))


def screen(values: pa.BinaryArray, tombstones: Tombstones, max_bytes: int) -> Screened:
    """Sort out tombstones and messages over `max_bytes`."""
    reasons: dict[int, Reason] = {}
    nulls = pc.indices_nonzero(values.is_null())
    if tombstones == "quarantine":
        reasons.update(dict.fromkeys(nulls.to_pylist(), Reason(TOMBSTONE, "the record has no value")))
    fits = pc.less_equal(pc.binary_length(values), max_bytes)
    for row in pc.indices_nonzero(pc.invert(fits)).to_pylist():
        size = len(values[row].as_buffer())
        reasons[row] = Reason(MESSAGE_TOO_LARGE, f"{size} bytes, and the limit is {max_bytes}")
    rows = pc.indices_nonzero(fits)
    kept = values if len(rows) == len(values) else values.take(rows)
    return Screened(kept, rows, nulls if tombstones == "pass" else nulls.slice(0, 0), reasons)


def as_texts(
    values: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
) -> tuple[pa.StringArray, pa.UInt64Array]:
    """The values that are UTF-8, and their rows."""
    try:
        return values.cast(pa.string()), rows
    except pa.ArrowInvalid:
        valid = [True] * len(values)
    for at in range(0, len(values), _PART_ROWS):
        part = values.slice(at, _PART_ROWS)
        try:
            part.cast(pa.string())
        except pa.ArrowInvalid:
            for place, value in enumerate(part.to_pylist(), at):
                try:
                    value.decode()
                except UnicodeDecodeError as exc:
                    problem = f"byte 0x{value[exc.start]:02x} at position {exc.start}"
                    reasons[rows[place].as_py()] = Reason(INVALID_UTF8, problem)
                    valid[place] = False
    kept = pa.array(valid)
    return values.filter(kept).cast(pa.string()), rows.filter(kept)


_PART_ROWS = 256
