from __future__ import annotations

import re

import pytest
from pyspark import SparkConf

from penstock.config.fields import RevealedSecret, is_secret
from penstock.spark.security import for_command_line, redaction

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
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.sql.catalog.shop.header.Authorization",
    "spark.sql.catalog.shop.adls.connection-string",
    "spark.sql.catalog.shop.adls.account-key",
]


@pytest.mark.parametrize("name", SECRET)
def test_setting_that_penstock_takes_for_a_secret_is_one_to_spark(name: str) -> None:
    assert is_secret(name)
    assert all(re.search(regex, name) for regex in redaction({}).values())


def test_redaction_knows_what_a_reference_gave_by_its_name() -> None:
    found = redaction({"spark.hadoop.fs.shop.opening": RevealedSecret("x"), "spark.driver.memory": "1g"})
    for regex in found.values():
        assert re.search(regex, "spark.hadoop.fs.shop.opening") and re.search(regex, "fs.shop.opening")
        assert not re.search(regex, "spark.driver.memory")
        assert "\\" not in regex, "a properties file of Java would take it for itself"


def test_redaction_adds_to_what_others_say() -> None:
    name = "spark.redaction.regex"
    regex = redaction({name: "(?i)mine"}, {name: "theirs"})[name]
    assert all(re.search(regex.replace("(?:(?i)mine)", "(?:mine)"), one) for one in ("mine", "theirs", "a.password"))


def test_redaction_hides_every_option_of_kafka_but_its_address() -> None:
    regex = redaction({})["spark.sql.redaction.options.regex"]
    assert re.search(regex, "kafka.sasl.anything") and not re.search(regex, "kafka.bootstrap.servers")
    assert re.search(redaction({})["spark.redaction.regex"], "spark.yarn.appMasterEnv.ORDERS_DB")


def test_command_line_of_the_jvm_has_what_its_start_needs_and_no_more() -> None:
    conf = SparkConf(loadDefaults=False)
    others = ("spark.hadoop.fs.s3a.endpoint", "spark.sql.extensions", "spark.authenticate.secret", "spark.jars")
    for name in (*SECRET, *others, "spark.driver.memory", "spark.app.name"):
        conf.set(name, "canary")
    shown = {name for name, _ in for_command_line(conf, ["spark.jars"]).getAll()}
    assert shown == {"spark.driver.memory", "spark.app.name"}
