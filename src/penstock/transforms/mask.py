"""`mask`: values that are not to be read, hashed, struck out or shown by their end only. A NULL stays NULL.

The text of a value is what Spark's `CAST(value AS STRING)` gives. A salt is a secret: it reaches a task inside the
step, and is never part of a query, which Spark would show and log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import FrameTransform
from penstock.model import Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote, select_list
from penstock.transforms.expressions import NoArrowForm
from penstock.transforms.expressions.expression import LazyExpressions
from penstock.transforms.step import Step

_REDACTED = "***"


@dataclass(frozen=True, slots=True)
class MaskRule:
    """What becomes of a column: its SHA-256 in hex, three stars, or stars for all but the last `keep` characters."""

    kind: Literal["hash", "redact", "keep_last"]
    salt: str | None = field(default=None, repr=False)
    """Put in front of what is hashed."""
    keep: int = 0

    def __str__(self) -> str:
        return f"keep the last {self.keep}" if self.kind == "keep_last" else self.kind


class Mask(Step, FrameTransform):
    """Replaces the values of columns, which keep their place and name and become STRING."""

    def __init__(self, rules: Mapping[str, MaskRule]) -> None:
        check_distinct(list(rules))
        check_reserved(rules)
        self.rules = dict(rules)
        read = [name for name, rule in rules.items() if rule.kind != "redact"]
        self._texts = {name: LazyExpressions([_text(quote(name))]) for name in read}

    def __repr__(self) -> str:
        return f"mask {', '.join(f'{name}: {rule}' for name, rule in self.rules.items())}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark, or None where Arrow gives exactly the same values."""
        self._places(schema.names)
        compiled = (one for text in self._texts.values() for one in text.over(schema))
        return next((one.reason for one in compiled if isinstance(one, NoArrowForm)), None)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The same columns, those that are masked as STRING."""
        for place in self._places(schema.names):
            schema = schema.set(place, schema.field(place).with_type(pa.string()))
        return schema

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Mask the columns."""
        arrays = list(rows.columns)
        for place, (name, rule) in self._places(rows.schema.names).items():
            if rule.kind == "redact":
                arrays[place] = _redacted(arrays[place])
            else:
                [text] = self._texts[name].arrow(rows.schema)
                arrays[place] = _masked(text.evaluate(rows), rule)
        return Split.all_good(pa.RecordBatch.from_arrays(arrays, schema=self.output(rows.schema)))

    def select(self, columns: Sequence[str]) -> str | None:
        """The same in Spark SQL, over a relation named input; None where there is a salt to keep out of it."""
        if any(rule.salt for rule in self.rules.values()):
            return None
        return select_list(self._items(columns))

    def frame(self, frame: Any) -> Any:
        """The same in Spark, over a frame: where there is a salt, Spark makes the text and a task hashes it."""
        salted = {place: rule for place, (_, rule) in self._places(frame.columns).items() if rule.salt}
        masked = frame.selectExpr(*self._items(frame.columns))
        if not salted:
            return masked
        # Spark's mapInArrow looks columns up by their bare names, which goes wrong for one with a dot or a backtick.
        numbered = masked.toDF(*(f"c{number}" for number in range(len(masked.columns))))
        return numbered.mapInArrow(_hashing(salted, masked.columns), masked.schema)

    def _places(self, columns: Sequence[str]) -> dict[int, tuple[str, MaskRule]]:
        return {find_column(name, columns): (name, rule) for name, rule in self.rules.items()}

    def _items(self, columns: Sequence[str]) -> list[str]:
        items = list(map(quote, columns))
        for place, (_, rule) in self._places(columns).items():
            items[place] = f"{_sql(items[place], rule)} AS {items[place]}"
        return items


def _text(column: str) -> str:
    return f"CAST({column} AS STRING)"


def _sql(column: str, rule: MaskRule) -> str:
    """A rule as Spark SQL; with a salt, only the text that is to be hashed."""
    text = _text(column)
    if rule.kind == "redact":
        return f"IF({column} IS NULL, NULL, '{_REDACTED}')"
    if rule.kind == "hash":
        return text if rule.salt else f"sha2({text}, 256)"
    return f"concat(repeat('*', greatest(length({text}) - {rule.keep}, 0)), right({text}, {rule.keep}))"


def _redacted(values: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), pa.scalar(_REDACTED), pa.scalar(None, pa.string()))


def _masked(texts: pa.Array, rule: MaskRule) -> pa.Array:
    if rule.kind == "hash":
        return _hashed(texts, rule.salt)
    hidden = pc.max_element_wise(pc.subtract(pc.utf8_length(texts), rule.keep), 0)
    shown = pc.utf8_slice_codeunits(texts, start=-rule.keep, stop=None if rule.keep else 0)
    return pc.binary_join_element_wise(pc.binary_repeat(pa.scalar("*"), hidden), shown, "")


def _hashed(texts: pa.Array, salt: str | None) -> pa.Array:
    """Each distinct text is hashed once. As bytes, since Spark's strings may hold any."""
    encoded = texts.cast(pa.binary()).dictionary_encode()
    salted = hashlib.sha256((salt or "").encode())
    return pa.array([_digest(salted, text) for text in encoded.dictionary.to_pylist()], pa.string()).take(
        encoded.indices
    )


def _digest(begun: Any, text: bytes) -> str:
    digest = begun.copy()
    digest.update(text)
    return str(digest.hexdigest())


def _hashing(
    rules: Mapping[int, MaskRule], names: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            arrays = list(rows.columns)
            for place, rule in rules.items():
                arrays[place] = _hashed(arrays[place], rule.salt)
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))

    return run
