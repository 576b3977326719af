"""The jar that is shipped is made of the source that is shown."""

from __future__ import annotations

import zipfile
from pathlib import Path

from penstock.spark import jars

STORES = Path(jars.__file__).with_name("stores")


def test_log_store_jar_holds_its_source_and_class() -> None:
    with zipfile.ZipFile(STORES / "conditional-log-store.jar") as jar:
        source = jar.read("io/penstock/storage/ConditionalLogStore.java")
        assert source == (STORES / "ConditionalLogStore.java").read_bytes()
        # 61 is Java 17, the oldest that Spark is run with.
        assert jar.read("io/penstock/storage/ConditionalLogStore.class")[6:8] == (61).to_bytes(2, "big")


def test_spark_jars_have_it_for_s3_alone() -> None:
    assert jars.stores_of({"spark.hadoop.fs.s3.impl": "x"}) == ["s3"]
    assert jars.stores_of({}) == []
