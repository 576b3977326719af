"""Where Spark is: the package pyspark."""

from __future__ import annotations

import sys

import pytest

from penstock.errors import MissingError
from penstock.spark.session import spark_home


def test_home_is_the_folder_of_the_package() -> None:
    assert (spark_home() / "bin/spark-submit").is_file()


def test_home_without_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingError) as raised:
        spark_home()
    assert raised.value.code == "SPARK_MISSING"
