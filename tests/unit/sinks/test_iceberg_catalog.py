from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.errors import MissingError
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink


def test_sqlite_catalog_without_an_address_is_a_file_in_the_warehouse_for_both_sides(tmp_path: Path) -> None:
    catalog = IcebergCatalog()
    assert catalog.client_properties(str(tmp_path)) == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
        "init_catalog_tables": "false",
        "pool_pre_ping": "true",
    }
    assert catalog.spark_settings(str(tmp_path)) == {
        "spark.sql.catalog.penstock": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.penstock.type": "jdbc",
        "spark.sql.catalog.penstock.uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "spark.sql.catalog.penstock.warehouse": f"file://{tmp_path}",
        "spark.sql.catalog.penstock.cache-enabled": "false",
    }


def test_sqlite_catalog_with_a_remote_warehouse_is_refused() -> None:
    with pytest.raises(MissingError) as refused:
        IcebergCatalog().client_properties("s3://bucket/lake")
    assert refused.value.code == "SINK_CATALOG_UNSUPPORTED"


def test_sql_catalog_gives_each_side_its_driver_and_the_password_apart() -> None:
    catalog = IcebergCatalog("sql", "postgresql://me:p%40ss@db:5433/lake?sslmode=require", name="prod")
    assert catalog.client_properties("/w")["uri"] == "postgresql+psycopg://me:p%40ss@db:5433/lake?sslmode=require"
    settings = catalog.spark_settings("/w")
    assert settings["spark.sql.catalog.prod.uri"] == "jdbc:postgresql://db:5433/lake?sslmode=require"
    assert settings["spark.sql.catalog.prod.jdbc.user"] == "me"
    assert settings["spark.sql.catalog.prod.jdbc.password"] == "p@ss"


def test_rest_catalog_gives_both_sides_the_same_address_and_properties() -> None:
    catalog = IcebergCatalog("rest", "http://localhost:8181", {"credential": "id:secret"})
    assert catalog.client_properties("demo") == {
        "type": "rest",
        "uri": "http://localhost:8181",
        "warehouse": "demo",
        "credential": "id:secret",
    }
    settings = catalog.spark_settings("demo")
    assert settings["spark.sql.catalog.penstock.type"] == "rest"
    assert settings["spark.sql.catalog.penstock.credential"] == "id:secret"


def test_catalog_with_secrets_shows_none_of_them_and_sends_none_to_tasks() -> None:
    catalog = IcebergCatalog("sql", "postgresql://me:hidden1@db/lake", {"token": "hidden2"})
    assert "hidden" not in repr(catalog)
    sink = IcebergSink("p", "s", "a.b", "/w", catalog=catalog)
    assert b"hidden" not in pickle.dumps(sink)
