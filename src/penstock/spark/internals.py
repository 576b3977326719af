"""What Spark and py4j have no public way to. No other package touches a private name of theirs.

A new version of Spark may change any of this; `tests/unit/spark/test_internals.py` names the one it was tried with.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any


def jvm_of(session: Any) -> Any:
    """The classes of the JVM."""
    return session.sparkContext._gateway.jvm


def process_of(session: Any) -> Any:
    """Spark's process, where this one started it; none under spark-submit."""
    return getattr(session.sparkContext._gateway, "proc", None)


def scala_context(context: Any) -> Any:
    """Spark's own context behind the one of Python: its books about stages, executors and cores."""
    return context._jsc.sc()


def same_session(one: Any, other: Any) -> bool:
    """Whether two sessions of Python are one in Spark. Each call of `newSession` makes another; a frame has its own."""
    return bool(one._jsparkSession == other._jsparkSession)


def forget_accumulator(accumulator: Any) -> None:
    """Let go of an accumulator: Python keeps every one for ever."""
    from pyspark.accumulators import _accumulatorRegistry

    _accumulatorRegistry.pop(accumulator.aid, None)


def limit_batches(session: Any, query: Any, most: int, least: tuple[int, timedelta] | None = None) -> None:
    """Let every following batch of a running query take at most so many offsets; of several sources each has its share.

    `least` is how many a batch waits for, and how long. Spark asks the sources for their limits when a query starts,
    keeps the answers, and looks at them before every batch: these are replaced.
    """
    gateway = session.sparkContext._gateway
    limits = gateway.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
    execution = query._jsq.streamingQuery()
    sources = execution.uniqueSources()
    limit = limits.maxRows(max(1, most // sources.size()))
    if least is not None:
        rows, patience = least
        both = gateway.new_array(limits, 2)
        both[0] = limits.minRows(rows, int(patience.total_seconds() * 1000))
        both[1] = limit
        limit = limits.compositeLimit(both)
    each, changed = sources.keysIterator(), sources
    while each.hasNext():
        changed = changed.updated(each.next(), limit)
    getattr(execution, "uniqueSources_$eq")(changed)


def tried_column(session: Any, text: str, *, condition: bool) -> Any:
    """A SQL expression as a column that is a struct around its value, and NULL in a row in which it fails.

    By Spark's `TryEval`, which is in `try_add` and its kind. Of a `condition` a part behind one that is not true is
    not looked at.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column

    jvm = session._jvm
    expressions, utils = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic.ExpressionUtils
    # The line break ends a comment that the text may close with.
    parsed = session._jsparkSession.sessionState().sqlParser().parseExpression(f"({text}\n)")
    if condition:
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
