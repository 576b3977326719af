"""Where the installed Spark is: that of the package `pyspark`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from penstock.errors import MissingError


def spark_home() -> Path:
    """The folder with `bin`, `jars` and the Python of Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingError("SPARK_MISSING", "looking for Spark: the package pyspark is not installed")
    return Path(spec.origin).parent
