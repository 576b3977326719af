"""The parts of a slot in memory: a decoder of plain numbers, a step and sinks that refuse some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.assembly.inlet import Inlet
from penstock.contracts import BaseSink, Reader
from penstock.engine.work import SlotWork
from penstock.model import (
    COORDINATES,
    COORDINATES_FIELD,
    BatchToken,
    Guarantee,
    Manifest,
    OffsetRange,
    Position,
    Refusal,
    SlotAttempt,
    Split,
    coordinates_of,
)

SCHEMA = pa.schema([pa.field("n", pa.int64()), COORDINATES_FIELD])
Refuses = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, tuple[Refusal, ...]]]


def refusing(number: int) -> Refuses:
    """Refuses the rows with this number."""

    def refuse(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[Refusal, ...]]:
        out = pc.equal(rows.column("n"), number)
        places = rows.filter(out).column(COORDINATES).to_pylist()
        found = tuple(
            Refusal(OffsetRange(at["topic"], at["partition"], at["offset"], at["offset"] + 1), "REFUSED", "not wanted")
            for at in places
        )
        return rows.filter(pc.invert(out)), found

    return refuse


class Numbers:
    """Decodes a value that is a number."""

    schema = SCHEMA

    def decode(self, raw: pa.RecordBatch) -> Split:
        values = pa.array([int(value) for value in raw.column("value").to_pylist()], pa.int64())
        return Split.all_good(pa.RecordBatch.from_arrays([values, coordinates_of(raw)], schema=SCHEMA))

    def notices(self) -> list[str]:
        return []


class Step:
    """A transform that refuses."""

    def __init__(self, refuses: Refuses) -> None:
        self._refuses = refuses

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        return None

    def select(self, columns: Sequence[str]) -> str | None:
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def apply(self, rows: pa.RecordBatch) -> Split:
        good, refused = self._refuses(rows)
        return Split(good, refused=refused)


class Collected(BaseSink):
    """A sink, and its own stage, that keeps what it is given."""

    guarantee = Guarantee.EXACTLY_ONCE
    target = "memory"

    def __init__(self, name: str, refuses: Refuses | None = None) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []
        self._refuses = refuses

    def prepare(self, schema: pa.Schema) -> None: ...

    def check(self, schema: pa.Schema) -> None: ...

    def position(self) -> Position | None:
        return None

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Collected:
        return self

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None: ...

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None: ...

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        refused: Sequence[Refusal] = ()
        if self._refuses is not None:
            rows, refused = self._refuses(rows)
        self.rows += rows.to_pylist()
        return refused

    def finish(self) -> Manifest:
        return Manifest(self.name, SlotAttempt(0, "0"), len(self.rows), 0)

    def abort(self) -> None: ...


def decoded_numbers(reader: Reader, out: Collected, quarantine: Collected, step: Refuses | None = None) -> SlotWork:
    """The work of a slot over these parts."""
    return SlotWork(
        token=BatchToken("orders", "q", 0, ()),
        reader=reader,
        decoder=Numbers(),
        transforms=(Step(step),) if step is not None else (),
        inlets=(Inlet(out),),
        quarantines=(quarantine,),
        schema=SCHEMA,
    )
