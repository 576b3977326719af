"""Private names of Spark and py4j: of one version, and in one package."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark

import penstock

PRIVATE = re.compile(
    r"\._(gateway|jvm|jsc|jsq|jc|jdf|jsparkSession|gateway_client|active_spark_context|ensure_initialized)\b"
    r"|_accumulatorRegistry|uniqueSources|setAccessible|launch_gateway"
)


def test_internals_were_tried_with_this_version_of_spark() -> None:
    assert pyspark.__version__ == "4.1.1", "run the tests of Spark, then name the new version here"


def test_private_names_of_spark_are_in_its_own_package_alone() -> None:
    source = Path(penstock.__file__).parent
    outside = [path for path in source.rglob("*.py") if path.relative_to(source).parts[0] != "spark"]
    assert [str(path) for path in outside if PRIVATE.search(path.read_text())] == []
