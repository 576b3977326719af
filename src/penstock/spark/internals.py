"""Access to parts of Spark and py4j that have no public API. No other package uses their private names.

A new version of Spark may change any of this; `tests/unit/spark/test_internals.py` names the tested version.
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
    """Spark's process, if this one started it; none under spark-submit."""
    return getattr(session.sparkContext._gateway, "proc", None)


def scala_context(context: Any) -> Any:
    """The Scala context: it knows about stages, executors and cores."""
    return context._jsc.sc()


def same_session(one: Any, other: Any) -> bool:
    """Whether two Python sessions are the same session in Spark. Each `newSession` is another; a frame has its own."""
    return bool(one._jsparkSession == other._jsparkSession)


def forget_accumulator(accumulator: Any) -> None:
    """Release an accumulator, which Python otherwise keeps forever."""
    from pyspark.accumulators import _accumulatorRegistry

    _accumulatorRegistry.pop(accumulator.aid, None)


def limit_batches(session: Any, query: Any, most: int, least: tuple[int, timedelta] | None = None) -> None:
    """Limit the following batches of a running query to `most` offsets, distributed over its sources.

    `least` is how many offsets a batch waits for, and how long. Spark asks the sources for their limits when a query
    starts, keeps the answers, and reads them before every batch: these are replaced.
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
    """A SQL expression as a column that is a struct around its value, and NULL in rows in which it fails.

    By Spark's `TryEval`, as in `try_add`. In a `condition`, parts after one that is not true are not evaluated.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column

    jvm = session._jvm
    expressions, utils = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic.ExpressionUtils
    # The line break ends a comment at the end of the text.
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


# Each thread of Spark that calls back into Python has a connection of its own, open as long as the process.
#
# Each start of a query has a new thread in Spark, and with it a new connection: a socket on each side, and a thread
# here that listens. Neither side closes it when the query ends: py4j keeps it for a thread that no longer exists.
#
# py4j's callback server accepts new connections. Its thread ends silently at its first error, such as a process without
# free descriptors, and Spark then waits forever for an answer: so the server is monitored, and restarted.

_reviving = threading.Lock()


def revive_callback_server(session: Any) -> bool:
    """Restart py4j's callback server if it has ended, on the same socket; whether it had."""
    server = session.sparkContext._gateway.__dict__.get("_callback_server")
    with _reviving:
        if server is None or server.is_shutdown or server.thread is None or server.thread.is_alive():
            return False
        again = threading.Thread(target=server.run, name="py4j-callback-server", daemon=True)
        # A process that cannot start a thread now may be able to at the next check.
        with suppress(RuntimeError):
            again.start()
            server.thread = again
    return True


def connection_of(frame: Any) -> Any:
    """In a callback from Spark: its connection; none if there is none."""
    with suppress(AttributeError):
        return frame.sparkSession.sparkContext._gateway._gateway_client.get_thread_connection()
    return None


def close_connection(connection: Any) -> None:
    """Close a callback connection that is no longer used, on both sides, which ends the thread that listens on it."""
    from py4j.protocol import Py4JError

    with suppress(OSError, AttributeError, Py4JError):
        port = connection.socket.getpeername()[1]
        connection.socket.shutdown(socket.SHUT_RDWR)
        _close_java_side(connection.java_client, port)


def _close_java_side(client: Any, port: int) -> None:
    """Close the Java side of a connection. Idle connections are in a queue, guarded by a lock."""
    from py4j.java_gateway import JavaObject

    caller = JavaObject("GATEWAY_SERVER", client).getCallbackClient()
    lock, idle = (_private_field(caller, name) for name in ("lock", "connections"))
    lock.lock()
    try:
        for connection in [one for one in idle.toArray() if one.getSocket().getLocalPort() == port]:
            idle.remove(connection)
            connection.shutdown()
    finally:
        lock.unlock()


def _private_field(caller: Any, name: str) -> Any:
    field = caller.getClass().getSuperclass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(caller)
