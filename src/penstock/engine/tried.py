"""Expressions that only Spark can evaluate, evaluated so that a row that fails does not end the job.

Spark's own `TryEval`, which is in `try_add` and its kind, gives NULL where what is inside it fails. Around a struct
with the value it tells a failure from a NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException

from penstock.transforms.failing import ComputingStep, FromSpark, Tried

_ONCE_FOR_SEVERAL = "spark.sql.subexpressionElimination.enabled"


def with_tried(frame: Any, step: ComputingStep) -> Any | None:
    """The frame with a struct beside each row for each expression of a step, NULL where it fails.

    None where Spark takes them only as they are: one that makes rows, or one that is wrong.
    """
    # A piece that several expressions share would be computed before them, outside of what catches its failure.
    frame.sparkSession.conf.set(_ONCE_FOR_SEVERAL, "false")
    frame.createOrReplaceTempView("input")
    try:
        tried = [_tried(frame.sparkSession, one).alias(FromSpark.column(n)) for n, one in enumerate(step.tried)]
        return frame.alias("input").select("*", *tried)
    except AnalysisException:
        return None


def _tried(session: Any, one: Tried) -> Any:
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column

    jvm = session._jvm
    expressions, utils = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic.ExpressionUtils
    # The line break ends a comment that the text may close with.
    parsed = session._jsparkSession.sessionState().sqlParser().parseExpression(f"({one.text}\n)")
    if one.condition:
        yes, no = (utils.expression(f.lit(value)._jc) for value in (True, False))
        chosen = yes
        for part in reversed(list(_conjuncts(parsed))):
            chosen = expressions.If(part, chosen, no)
        parsed = chosen
    struct = f.named_struct(f.lit("value"), Column(utils.column(parsed)))
    return Column(utils.column(expressions.TryEval(utils.expression(struct._jc))))


def _conjuncts(expression: Any) -> Iterator[Any]:
    """The conditions that AND connects at the top."""
    if expression.getClass().getSimpleName() == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    else:
        yield expression
