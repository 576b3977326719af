"""One set of settings, for two clients."""

from __future__ import annotations

from penstock.kafka import KafkaSettings


def test_settings_for_librdkafka_are_as_written() -> None:
    settings = KafkaSettings("a:1,b:2", {"sasl.username": "u", "fetch.wait.max.ms": "5"})
    assert settings.for_librdkafka() == {"bootstrap.servers": "a:1,b:2", "sasl.username": "u", "fetch.wait.max.ms": "5"}


def test_settings_for_spark_use_the_java_names() -> None:
    options = {
        "fetch.wait.max.ms": "5",
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "security.protocol": "SSL",
        "log_level": "7",
    }
    spark = KafkaSettings("a:1", options).for_spark()
    assert spark["kafka.fetch.max.wait.ms"] == "5"
    assert (spark["kafka.ssl.truststore.location"], spark["kafka.ssl.truststore.type"]) == ("/ca.pem", "PEM")
    assert spark["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert spark["kafka.security.protocol"] == "SSL"
    assert not {"kafka.log_level", "kafka.fetch.wait.max.ms", "kafka.ssl.ca.location"} & spark.keys()


def test_settings_for_spark_password_becomes_a_login_module_with_its_quotes_kept() -> None:
    options = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": 'a"b\\c'}
    spark = KafkaSettings("a:1", options).for_spark()
    assert spark["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert spark["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="a\\"b\\\\c";'
    )
    assert "kafka.sasl.password" not in spark


def test_settings_for_spark_time_outs_are_short_unless_asked_for() -> None:
    assert KafkaSettings("a:1").for_spark()["kafka.default.api.timeout.ms"] == "15000"
    asked = KafkaSettings("a:1", {"default.api.timeout.ms": "90000"}).for_spark()
    assert asked["kafka.default.api.timeout.ms"] == "90000"
    asked = KafkaSettings("a:1", {"socket.timeout.ms": "20000"}).for_spark()
    assert (asked["kafka.request.timeout.ms"], asked["kafka.default.api.timeout.ms"]) == ("20000", "30000")


def test_settings_for_spark_own_ones_win() -> None:
    spark = KafkaSettings("a:1", {"isolation.level": "read_uncommitted", "bootstrap.servers": "x:9"}).for_spark()
    assert spark["kafka.isolation.level"] == "read_committed"
    assert spark["kafka.bootstrap.servers"] == "a:1"


def test_settings_shown_never_show_the_options() -> None:
    assert "hunter2" not in repr(KafkaSettings("a:1", {"sasl.password": "hunter2"}))
