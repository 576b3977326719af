"""The workers' parent takes zips off the path only where PySpark is found without them."""

import sys

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
