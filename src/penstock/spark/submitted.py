"""Inside spark-submit: its JVM, its settings, its executors. Penstock only adds what is missing.

The JVM runs already, so settings of its start (class path, memory, Java options) are checked, not changed: if something
is missing, the error names the option of spark-submit that provides it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config.fields import secret_names
from penstock.errors import MissingError
from penstock.spark.daemon import PRELOAD
from penstock.spark.jars import stores_of
from penstock.spark.placement import Placement
from penstock.spark.security import ENABLED, authentication, redaction
from penstock.spark.shipping import Shipping

_GATEWAY = "PYSPARK_GATEWAY_PORT"
_EXTENSIONS = "spark.sql.extensions"
_OLDEST, _BEFORE = (4, 1), (4, 2)
_SOURCE = {"the Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider"}
_TABLES = {
    "Delta": "io.delta.sql.DeltaSparkSessionExtension",
    "Iceberg": "org.apache.iceberg.spark.SparkCatalog",
}
_STORES = {
    "s3": {
        "Hadoop's S3": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "Delta's log on S3": "io.penstock.storage.ConditionalLogStore",
    }
}


def is_submitted() -> bool:
    """Whether this process is the driver of a spark-submit."""
    return _GATEWAY in os.environ


def submitted_setting(name: str) -> str | None:
    """A setting given to spark-submit. Connects to the JVM, and starts nothing."""
    value = _submitted_conf().get(name, None)
    return None if value is None else str(value)


def join_context(
    name: str,
    asked: Mapping[str, str],
    owned: Mapping[str, str],
    tables: Mapping[str, str],
    preload: Sequence[str],
    shipping: Shipping,
) -> Any:
    """The Spark context of the running JVM."""
    from pyspark import SparkContext

    conf = _submitted_conf()
    _refuse_version(SparkContext._jvm)
    _refuse_missing_jars(SparkContext._jvm, bool(tables), stores_of(asked))
    conf.setIfMissing("spark.app.name", name)
    placement = Placement(conf.get("spark.master"))
    sent = shipping.settings() if shipping.applies(placement) else {}
    said = {**asked, **({ENABLED: conf.get(ENABLED)} if conf.contains(ENABLED) else {})}
    archives = sent.pop("spark.archives", "")
    fill = {
        **authentication(placement, said),
        **asked,
        **sent,
        **{key: value for key, value in tables.items() if key != _EXTENSIONS},
        "spark.python.daemon.module": "penstock.spark.daemon",
        f"spark.executorEnv.{PRELOAD}": ",".join(preload),
    }
    for key, value in fill.items():
        conf.setIfMissing(key, value)
    if tables:
        conf.set(_EXTENSIONS, _extended(conf.get(_EXTENSIONS, ""), tables[_EXTENSIONS]))
    # Some sinks require that a task has one attempt at a time: this cannot be overridden.
    once = {name: value for name, value in asked.items() if name == "spark.speculation" and value == "false"}
    there = {name: conf.get(name) for name in redaction({}) if conf.contains(name)}
    for key, value in {**owned, **once, **redaction(asked, there)}.items():
        conf.set(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    context = SparkContext(conf=conf)
    for archive in filter(None, archives.split(",")):
        context.addArchive(archive)
    return context


def overruled(asked: Mapping[str, str]) -> list[str]:
    """Settings of the pipeline file that spark-submit overrides."""
    conf, secret = _submitted_conf(), set(secret_names(asked))
    return [
        f"{name}: spark-submit has {conf.get(name)}, which overrides {value} of the file"
        for name, value in sorted(asked.items())
        if conf.contains(name) and conf.get(name) != value and name not in secret
    ]


def _submitted_conf() -> Any:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf(loadDefaults=True)


def _extended(there: str, own: str) -> str:
    names = [one for one in there.split(",") if one]
    return ",".join(dict.fromkeys((*names, *own.split(","))))


def _refuse_version(jvm: Any) -> None:
    version = str(jvm.org.apache.spark.package.SPARK_VERSION()) if jvm is not None else ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not _OLDEST <= numbers < _BEFORE:
        raise MissingError(
            "SPARK_VERSION_UNSUPPORTED",
            "joining spark-submit: this version of Penstock runs on Spark 4.1",
            context={"version of spark-submit": version or "an unknown version"},
            hint="use the spark-submit of Spark 4.1, such as that of the package pyspark that Penstock installed",
        )


def _refuse_missing_jars(jvm: Any, tables: bool, stores: Sequence[str]) -> None:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    needed = {**_SOURCE, **(_TABLES if tables else {})}
    for store in stores:
        needed |= _STORES[store]
    missing = []
    for what, name in needed.items():
        try:
            loader.loadClass(name)
        except Exception:
            missing.append(what)
    if missing:
        command = " ".join(("python -m penstock.spark.jars --into jars", *(f"--store {one}" for one in stores)))
        raise MissingError(
            "SPARK_JARS_MISSING",
            f"joining spark-submit: its class path lacks {' and '.join(missing)}",
            hint=f"copy the jars into a folder: {command}\nand pass them to spark-submit: --jars 'jars/*'",
        )
