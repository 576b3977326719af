from __future__ import annotations

import re

import pytest
from pyspark import SparkConf

from penstock.config.fields import is_secret
from penstock.spark.redaction import REDACTION, without_secrets

SECRET = [
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
    "spark.hadoop.fs.s3a.session.token",
    "spark.ssl.keyStorePassword",
    "spark.sql.catalog.shop.credential",
    "kafka.sasl.jaas.config",
    "kafka.ssl.keystore.key",
    "kafka.ssl.key.pem",
    "kafka.basic.auth.user.info",
    "spark.google.private.key",
    "spark.x.passphrase",
    "spark.sql.catalog.shop.penstock.store.azure_storage_account_key",
    "spark.sql.catalog.shop.penstock.store.azure_storage_sas_key",
    "spark.sql.catalog.shop.penstock.store.google_service_account_key",
]


@pytest.mark.parametrize("name", SECRET)
def test_setting_that_penstock_takes_for_a_secret_is_one_to_spark(name: str) -> None:
    assert is_secret(name)
    assert all(re.search(regex, name) for regex in REDACTION.values())


def test_command_line_of_the_jvm_has_no_secrets() -> None:
    conf = SparkConf(loadDefaults=False)
    for name in (*SECRET, "spark.driver.memory", "spark.app.name"):
        conf.set(name, "canary")
    assert {name for name, _ in without_secrets(conf).getAll()} == {"spark.driver.memory", "spark.app.name"}
