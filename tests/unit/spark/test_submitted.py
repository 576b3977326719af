"""Joining spark-submit: which Spark it may be of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import MissingError
from penstock.spark.submitted import _refuse_version


def jvm_of(version: str) -> Any:
    """Answers as the JVM of spark-submit does when it is asked for Spark's version."""
    package = SimpleNamespace(SPARK_VERSION=lambda: version)
    return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(package=package))))


@pytest.mark.parametrize("version", ["3.5.3", "4.0.1", "4.2.0", "5.0.0", ""])
def test_submit_of_another_spark_is_refused_with_its_version(version: str) -> None:
    with pytest.raises(MissingError) as refused:
        _refuse_version(jvm_of(version))
    assert refused.value.code == "SPARK_VERSION_UNSUPPORTED"
    assert refused.value.context == {"version of spark-submit": version or "an unknown version"}


@pytest.mark.parametrize("version", ["4.1.0", "4.1.1-SNAPSHOT"])
def test_submit_of_the_spark_that_is_supported_passes(version: str) -> None:
    _refuse_version(jvm_of(version))
