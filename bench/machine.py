"""Facts about the machine and the versions that a result depends on. No names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from penstock.spark.jars import pinned_jars
from penstock.spark.java import find_java

_PACKAGES = ("penstock", "pyspark", "deltalake", "pyiceberg", "pyarrow", "polars", "confluent-kafka", "psycopg")
_SPARK_JARS = {"delta for spark": "delta-spark", "iceberg for spark": "iceberg-spark", "jdbc driver": "postgresql"}


def machine_facts() -> dict[str, str]:
    """What to write beside the numbers."""
    broker = next(jar for jar in pinned_jars()["broker"] if jar.startswith("kafka_"))
    beside = {
        name: next(jar for jar in pinned_jars()["spark"] if jar.startswith(start)).removesuffix(".jar")
        for name, start in _SPARK_JARS.items()
    }
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": platform.system(),
        "python": platform.python_version(),
        "java": _java(),
        **{package: version(package) for package in _PACKAGES},
        "kafka broker": broker.removesuffix(".jar"),
        **beside,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named.group(1) if named else platform.machine()


def _java() -> str:
    asked = subprocess.run([find_java().executable, "-version"], capture_output=True, text=True, check=True)
    told = re.search(r'version "([^"]+)"', asked.stderr)
    return told.group(1) if told else str(find_java().version)
