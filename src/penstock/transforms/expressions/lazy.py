"""Expressions kept as text and compiled where they are used: in a task, once for each schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.transforms.expressions.expression import ArrowExpression, NoArrowForm, compile_expression
from penstock.transforms.expressions.laziness import repeated


class LazyExpressions:
    """The expressions of one step, over one schema at a time. Pickles as their text."""

    def __init__(self, texts: Sequence[str], *, condition: bool = False) -> None:
        self._texts = list(texts)
        self._condition = condition
        self._schema: pa.Schema | None = None
        self._compiled: list[ArrowExpression | NoArrowForm] = []

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LazyExpressions, condition=self._condition), (self._texts,)

    def over(self, schema: pa.Schema) -> list[ArrowExpression | NoArrowForm]:
        """Each expression compiled, or why it has no Arrow form."""
        if self._schema is None or not self._schema.equals(schema):
            self._compiled = _apart([compile_expression(t, schema, condition=self._condition) for t in self._texts])
            self._schema = schema
        return self._compiled

    def arrow(self, schema: pa.Schema) -> list[ArrowExpression]:
        """Each expression compiled, where all have an Arrow form."""
        exact = []
        for compiled in self.over(schema):
            if isinstance(compiled, NoArrowForm):
                raise TerminalError("TRANSFORM_NEEDS_SPARK", compiled.reason, hint="run it in the frame lane")
            exact.append(compiled)
        return exact


def _apart(compiled: list[ArrowExpression | NoArrowForm]) -> list[ArrowExpression | NoArrowForm]:
    """No Arrow form for expressions of which Spark may compute a piece that fails once for several of them."""
    exact = [expression for expression in compiled if isinstance(expression, ArrowExpression)]
    if not repeated([failure for expression in exact for failure in expression.failures]):
        return compiled
    reason = "a piece that may fail is there twice"
    return [
        NoArrowForm(f"`{c.text.strip()}`: {reason}") if isinstance(c, ArrowExpression) and c.failures else c
        for c in compiled
    ]
