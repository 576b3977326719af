"""Expressions kept as text and compiled where they are used: in a task, once for each schema."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.transforms.expressions import ArrowExpression, NoArrowForm, compile_expression


class LazyExpressions:
    """Some expressions over one schema at a time. Pickles as their text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._schema: pa.Schema | None = None
        self._compiled: list[ArrowExpression | NoArrowForm] = []

    def __reduce__(self) -> tuple[object, ...]:
        return LazyExpressions, (self._texts,)

    def over(self, schema: pa.Schema) -> list[ArrowExpression | NoArrowForm]:
        """Each expression compiled, or why it has no Arrow form."""
        if self._schema is None or not self._schema.equals(schema):
            self._compiled = [compile_expression(text, schema) for text in self._texts]
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
