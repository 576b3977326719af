"""The Spark session: Java, jars and settings in, a session out. Nothing is resolved or downloaded at a start.

Some settings depend on the master: how its executors get the jars and Python, and how they connect to the driver.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from penstock.config.fields import secret_names
from penstock.config.operation import of_session
from penstock.errors import MissingError
from penstock.spark.daemon import PRELOAD
from penstock.spark.jars import spark_jars, stores_of
from penstock.spark.java import find_java
from penstock.spark.placement import LOCAL, Placement
from penstock.spark.security import authentication, for_command_line, redaction
from penstock.spark.shipping import Progress, Shipping
from penstock.spark.submitted import is_submitted, join_context

_IPV4 = "-Djava.net.preferIPv4Stack=true"


def executor_settings(
    placement: Placement,
    asked: Mapping[str, str],
    jars: Sequence[Path],
    shipping: Shipping,
    progress: Progress = lambda done, of: None,
) -> dict[str, str]:
    """The settings for executors outside the driver; lists are extended by the requested values."""
    if placement.is_local:
        return {}
    if not shipping.applies(placement):
        # They use the same files: the jars and Python of this machine.
        found = {
            "spark.executor.extraClassPath": os.pathsep.join(map(str, jars)),
            "spark.executor.extraJavaOptions": _IPV4,
        }
    else:
        found = shipping.settings(progress)
        if shipping.packed or placement.kind != "kubernetes":
            found["spark.jars"] = ",".join(map(str, jars))
    for name, separator in _LISTS.items():
        if name in found and asked.get(name):
            found[name] = f"{found[name]}{separator}{asked[name]}"
    return found


_LISTS = {
    "spark.jars": ",",
    "spark.archives": ",",
    "spark.executor.extraClassPath": os.pathsep,
    "spark.executor.extraJavaOptions": " ",
    "spark.executorEnv.PYTHONPATH": os.pathsep,
}


def spark_home() -> Path:
    """The folder with `bin`, `jars` and the Python of Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingError("SPARK_MISSING", "looking for Spark: the package pyspark is not installed")
    return Path(spec.origin).parent


_TABLES = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}

_DEFAULTS = {
    "spark.master": LOCAL,
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.streaming.minBatchesToRetain": "100",
}

# Where every executor is on this machine.
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

OWNED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.streaming.stopTimeout": "30s",
    # Otherwise Spark logs in full the events of a slow listener; that of a job has every setting, including secrets.
    "spark.scheduler.listenerbus.logSlowEvent": "false",
}

# In a JVM that only plans and schedules, the second compiler costs more than it gains.
_LIGHT = "-XX:TieredStopAtLevel=1 "


def start_session(
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    tables: bool = False,
    light: bool = False,
    preload: Sequence[str] = (),
    log: Path | None = None,
    shipping: Shipping = Shipping(),
    progress: Progress = lambda done, of: None,
) -> Any:
    """Start Spark in this process, or join the one of spark-submit.

    `tables` adds what SQL over Delta and Iceberg tables needs; `light` is for work without rows in the JVM; `preload`
    names modules that the tasks will import; `shipping` is what remote executors are sent, and `progress` is called
    while that is packed.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # Both print a stack for errors in a callback or a query, which Penstock reports itself.
    for logger in (logging.getLogger("py4j"), PySparkLogger.getLogger("SQLQueryContextLogger")):
        logger.setLevel(logging.CRITICAL)
    if is_submitted():
        with _own_interrupt_kept():
            return SparkSession(join_context(name, settings or {}, OWNED, _TABLES if tables else {}, preload, shipping))
    log = log or Path(tempfile.mkdtemp(prefix="penstock-")) / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ["JAVA_HOME"] = str(find_java().home)
    asked = dict(settings or {})
    placement = Placement(asked.get("spark.master", LOCAL))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = shipping.interpreter if shipping.applies(placement) else sys.executable
    os.environ.pop("SPARK_HOME", None)
    if placement.shares_disk:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # For the JVM that only builds the command line of the other one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    conf = SparkConf(loadDefaults=False)
    jars = spark_jars(*stores_of(asked))
    sent = executor_settings(placement, asked, jars, shipping, progress)
    known = authentication(placement, asked)
    defaults = {**_DEFAULTS, **known, **(_LOOPBACK if placement.shares_disk else {}), **(_TABLES if tables else {})}
    for key, value in {**defaults, **asked, **sent, **redaction(asked), **OWNED}.items():
        conf.set(key, value)
    conf.set("spark.app.name", name)
    conf.set("spark.python.daemon.module", "penstock.spark.daemon")
    conf.set(f"spark.executorEnv.{PRELOAD}", ",".join(preload))
    class_path = os.pathsep.join(map(str, jars))
    conf.set("spark.driver.extraClassPath", _joined(class_path, asked.get("spark.driver.extraClassPath"), os.pathsep))
    log4j = Path(__file__).with_name("log4j2.properties")
    options = _LIGHT if light else ""
    options += f"-Dlog4j2.configurationFile=file:{log4j} -Dpenstock.log={log} -Djava.net.preferIPv4Stack=true"
    conf.set("spark.driver.extraJavaOptions", _joined(options, asked.get("spark.driver.extraJavaOptions"), " "))
    before = _children()
    try:
        # In a session of its own: a Ctrl-C at the terminal only reaches the driver, which then stops Spark in order.
        with _private_log(log) as output, _own_interrupt_kept():
            pipes = _ForPopen(start_new_session=True, stdout=output, stderr=output)
            gateway = launch_gateway(for_command_line(conf, secret_names({**asked, **known})), pipes)
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except BaseException as error:
        cause = _cause(error)
        _forget(SparkContext)
        _end(_children() - before)
        if not isinstance(error, PySparkException | Py4JError | OSError):
            raise
        raise MissingError(
            "SPARK_NOT_STARTED",
            "starting Spark: it ended before it was ready",
            context={"cause": cause, "log": log},
            hint="see the last lines of the log",
        ) from error


class _ForPopen(dict[str, Any]):
    """Arguments of `Popen` without the `preexec_fn` that PySpark adds; a session of its own makes it unnecessary.

    With it Python runs code between fork and exec, where a lock that another thread holds is never released: the start
    then hangs.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        if key != "preexec_fn":
            super().__setitem__(key, value)


def _private_log(log: Path) -> BinaryIO:
    """A log that only its owner can read, even if an earlier version created it: it may quote private data."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        with suppress(PermissionError):
            os.fchmod(handle, 0o600)
    return os.fdopen(handle, "ab")


def _cause(error: BaseException) -> str:
    """An error's first line. That of a Java error comes from the JVM, which may have ended."""
    try:
        return next(iter(str(error).splitlines()), type(error).__name__)
    except Exception:
        return "its process has ended"


def _joined(own: str, asked: str | None, separator: str) -> str:
    return own if not asked else f"{own}{separator}{asked}"


def warm_workers(session: Any) -> None:
    """Start Spark's Python workers while the run prepares, so that they are ready for the first batch."""
    context = session.sparkContext
    cores = context.defaultParallelism
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def warm() -> None:
        # A session that is stopped meanwhile needs no workers.
        with suppress(Py4JError, PySparkException, OSError, AttributeError):
            context.parallelize(range(cores), cores).foreach(_nothing)

    threading.Thread(target=warm, name="warm-workers", daemon=True).start()


def _nothing(_: object) -> None:
    """A task that does nothing."""


def stop_session(session: Any) -> None:
    """Stop Spark and wait until its process is gone."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = session.sparkContext._gateway
    try:
        # After an interrupt the connection to Spark may be broken; its process is ended all the same.
        with suppress(Py4JError, OSError):
            session.stop()
            if gateway.proc is not None:
                gateway.shutdown()
    finally:
        _forget(SparkContext)
        if gateway.proc is not None:
            _await_end(gateway.proc)


def _await_end(jvm: Any) -> None:
    # Spark's process ends when its standard input does.
    jvm.stdin.close()
    try:
        jvm.wait(20)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _forget(context: Any) -> None:
    """Make the next start launch a new process."""
    context._gateway = context._jvm = context._active_spark_context = None


@contextmanager
def _own_interrupt_kept() -> Iterator[None]:
    """Keep our SIGINT handler: that of Spark's context cancels all jobs; a stop must finish the current batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes: a start that failed or was interrupted leaves none behind."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=10)


# Several pipelines in one application: each has a session, for its own settings and views, and a pool of the scheduler.
# Jobs of one pool wait for each other; between pools every free core goes to the one that has the fewest, so that a
# pipeline with a backlog does not delay one with three records.

POOL = "spark.scheduler.pool"
"""The local property of a thread that names the pool of its jobs. A query inherits it from its starter."""


def own_session(session: Any, settings: Mapping[str, str], pool: str) -> Any:
    """A new session of the same application with settings of its own; jobs of this thread use `pool` from now on."""
    own = session.newSession()
    # The names of settings from references, which an application that runs already does not know.
    shown = redaction(settings)
    put_settings(own, {**settings, **shown})
    own.sparkContext.setLocalProperty(POOL, pool)
    return own


def put_settings(session: Any, settings: Mapping[str, str]) -> None:
    """Apply the settings that belong to a session, except those that Penstock sets itself."""
    from pyspark.errors import PySparkException

    for name, value in of_session(settings).items():
        if name in OWNED:
            continue
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise MissingError(
                "SPARK_SETTING_REFUSED",
                f"setting {name}: Spark refuses it for a session",
                context={"cause": str(error).partition("\n")[0]},
                hint="correct it under `spark`, or run this pipeline apart from the others",
            ) from None
