"""What Spark and py4j have no public way to. No other package touches a private name of theirs.

A new version of Spark may change any of this; `tests/unit/spark/test_internals.py` names the one it was tried with.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
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

    By Spark's `TryEval`, which is in `try_add` and its kind. Of a `condition` a part after one that is not true is
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


# The line on which a thread of Spark calls back into Python: its own, and open for as long as the process.
#
# Each start of a query has a new thread on Spark's side, and with it a new line: a socket on each side, and a thread
# here that listens. Neither side closes it when the query is over: py4j's keeps it for a thread that is gone.
#
# New lines are accepted by py4j's callback server, a thread that ends silently at its first error, such as a process
# with no descriptor left. Spark then waits for ever for an answer: the server is watched, and started again.

_reviving = threading.Lock()


def revive_callback_server(session: Any) -> bool:
    """Whether py4j's callback server had ended; it listens again at the same socket, to those who wait there too."""
    server = session.sparkContext._gateway.__dict__.get("_callback_server")
    with _reviving:
        if server is None or server.is_shutdown or server.thread is None or server.thread.is_alive():
            return False
        again = threading.Thread(target=server.run, name="py4j-callback-server", daemon=True)
        # A process that cannot start a thread now may be able to when it is looked at next.
        with suppress(RuntimeError):
            again.start()
            server.thread = again
    return True


def line_of(frame: Any) -> Any:
    """In what Spark calls back: the line that it came by; none where there is none."""
    with suppress(AttributeError):
        return frame.sparkSession.sparkContext._gateway._gateway_client.get_thread_connection()
    return None


def close_line(line: Any) -> None:
    """When nobody will call by it any more: end it on both sides, and the thread that listens on it."""
    from py4j.protocol import Py4JError

    with suppress(OSError, AttributeError, Py4JError):
        at = line.socket.getpeername()[1]
        line.socket.shutdown(socket.SHUT_RDWR)
        _close_other_side(line.java_client, at)


def _close_other_side(client: Any, port: int) -> None:
    """The other side of a line. Lines that nobody is using are in a queue; who changes it holds its lock."""
    from py4j.java_gateway import JavaObject

    caller = JavaObject("GATEWAY_SERVER", client).getCallbackClient()
    lock, idle = (_held_by(caller, name) for name in ("lock", "connections"))
    lock.lock()
    try:
        for line in [one for one in idle.toArray() if one.getSocket().getLocalPort() == port]:
            idle.remove(line)
            line.shutdown()
    finally:
        lock.unlock()


def _held_by(caller: Any, name: str) -> Any:
    field = caller.getClass().getSuperclass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(caller)
