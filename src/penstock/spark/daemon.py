"""The parent of Spark's Python workers: PySpark's own, made faster. It runs as `python -m penstock.spark.daemon`.

PySpark calls `importlib.invalidate_caches()` at the start of every task, and for each zip on the path Python
then reads the zip's whole directory again: 150 to 200 ms a task, with PySpark's own zips and Spark's core jar.
If PySpark is installed as a package, none of them is needed. And what the tasks import is imported once, before the
workers are forked, so that the first batch need not wait for it; and frozen, so that the garbage collector skips it.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import runpy
import sys
from importlib.machinery import PathFinder

PRELOAD = "PENSTOCK_PRELOAD"
"""The environment variable that names the modules to import before forking."""


# The zips of PySpark itself and the jar beside them; what a user sends along stays.
_SPARKS_OWN = re.compile(r"(^|/)(pyspark|py4j-[^/]*|spark-core_[^/]*)\.(zip|jar)(/|$)")


def drop_archives() -> None:
    """Remove Spark's own zips and jars from the path, if PySpark is found without them."""
    plain = [entry for entry in sys.path if not _SPARKS_OWN.search(entry)]
    if PathFinder.find_spec("pyspark", plain) is None or PathFinder.find_spec("py4j", plain) is None:
        return
    sys.path[:] = plain
    # Python's own `copy` looks for Jython in a package `org`, and finds the jar's: through it the jar would come back.
    sys.modules.pop("org", None)
    for entry in [entry for entry in sys.path_importer_cache if _SPARKS_OWN.search(entry)]:
        del sys.path_importer_cache[entry]


def main() -> None:
    """Prepare, then become PySpark's daemon."""
    drop_archives()
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
