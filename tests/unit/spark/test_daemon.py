"""The workers' parent takes zips off the path only where PySpark is found without them."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.spark.daemon import drop_archives


def test_drop_archives_pyspark_installed_takes_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/x/pyspark.zip", *sys.path])
    monkeypatch.setitem(sys.path_importer_cache, "/x/pyspark.zip", None)
    drop_archives()
    assert "/x/pyspark.zip" not in sys.path
    assert "/x/pyspark.zip" not in sys.path_importer_cache


def test_drop_archives_pyspark_only_in_the_zip_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/x/pyspark.zip"])
    drop_archives()
    assert sys.path == ["/x/pyspark.zip"]


def test_drop_archives_leaves_none_that_a_later_import_brings_back() -> None:
    """With what Spark puts on the path of its workers; `copy` of Python's own library has looked at all of it."""
    home = Path(pyspark.__file__).parent
    archives = [*home.glob("python/lib/*.zip"), *home.glob("jars/spark-core_*.jar")]
    assert len(archives) == 3
    script = (
        "import copy, sys, importlib\n"
        "from penstock.spark.daemon import drop_archives\n"
        "drop_archives()\n"
        "import pyspark.worker\n"
        "importlib.invalidate_caches()\n"
        "print([place for place in sys.path_importer_cache if 'pyspark.zip' in place or '.jar' in place])\n"
    )
    path = os.pathsep.join(map(str, [*archives, *sys.path[1:]]))
    seen = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "[]\n"
