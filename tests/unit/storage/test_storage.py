"""One way in, in the words of every client; and a value that keeps its secrets to itself."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from pyiceberg.io import load_file_io

from penstock.errors import MissingError
from penstock.storage import ObjectFileSystem, Storage, bucket_of, is_local, is_object_uri, local_path
from penstock.storage.stores import Patience, store_of

_ACCOUNT = {"client_email": "a@b", "private_key": "k", "private_key_id": "1"}
MINE = Storage("http://store:9000", "eu-1", "the-id", "the-key", "the-token")


def test_storage_repr_shows_no_secret() -> None:
    shown = repr(Storage("http://store:9000", "eu-1", "the-id", "the-key", "the-token", options=(("k", "hidden"),)))
    assert not any(secret in shown for secret in ("the-id", "the-key", "the-token", "hidden"))


def test_storage_pickled_is_the_same() -> None:
    assert pickle.loads(pickle.dumps(MINE)) == MINE


def test_for_delta_with_an_endpoint_names_it_and_commits_by_conditional_puts() -> None:
    assert MINE.for_delta() == {
        "aws_conditional_put": "etag",
        "aws_endpoint": "http://store:9000",
        "allow_http": "true",
        "aws_region": "eu-1",
        "aws_access_key_id": "the-id",
        "aws_secret_access_key": "the-key",
        "aws_session_token": "the-token",
        "aws_virtual_hosted_style_request": "false",
    }


def test_for_delta_at_a_local_path_is_nothing() -> None:
    assert MINE.for_delta_at("/lake/orders") is None
    assert MINE.for_delta_at("s3://lake/orders") == MINE.for_delta()


def test_for_spark_makes_s3_s3a_with_the_same_way_in() -> None:
    found = MINE.for_spark()
    assert found["spark.hadoop.fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-1"
    assert found["spark.hadoop.fs.s3a.access.key"] == "the-id"
    assert found["spark.hadoop.fs.s3a.secret.key"] == "the-key"
    assert found["spark.hadoop.fs.s3a.session.token"] == "the-token"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert found["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")


def test_for_spark_without_keys_asks_for_the_role_of_the_machine() -> None:
    found = Storage().for_spark()
    assert "IAMInstanceCredentialsProvider" in found["spark.hadoop.fs.s3a.aws.credentials.provider"]
    assert "spark.hadoop.fs.s3a.endpoint" not in found


def test_for_iceberg_names_the_same_way_in() -> None:
    assert MINE.for_iceberg("/lake") == {}
    found = MINE.for_iceberg("s3://lake/ice")
    assert found["s3.endpoint"] == "http://store:9000"
    assert found["s3.access-key-id"] == "the-id"
    assert found["s3.secret-access-key"] == "the-key"
    assert found["s3.session-token"] == "the-token"
    assert found["s3.region"] == "eu-1"


def test_options_of_google_and_azure_reach_spark_and_the_clients() -> None:
    options = {
        "google_service_account": "/key.json",
        "azure_storage_account_name": "shop",
        "azure_storage_account_key": "the-key",
    }
    mine = Storage(options=tuple(sorted(options.items())))
    assert mine.for_delta().items() >= options.items()
    spark = mine.for_spark()
    assert spark["spark.hadoop.fs.gs.auth.service.account.json.keyfile"] == "/key.json"
    assert spark["spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net"] == "the-key"
    iceberg = mine.for_iceberg("abfss://lake@shop.dfs.core.windows.net/ice")
    assert iceberg["penstock.store.azure_storage_account_name"] == "shop"
    assert load_file_io(iceberg).properties == iceberg


def test_with_environment_fills_what_is_left_out() -> None:
    told = {
        "AWS_ENDPOINT_URL": "http://all:1",
        "AWS_ENDPOINT_URL_S3": "http://s3:1",
        "AWS_DEFAULT_REGION": "eu-2",
        "AWS_ACCESS_KEY_ID": "env-id",
        "AWS_SECRET_ACCESS_KEY": "env-key",
        "AWS_SESSION_TOKEN": "env-token",
    }
    assert Storage().with_environment(told) == Storage("http://s3:1", "eu-2", "env-id", "env-key", "env-token")


def test_with_environment_keeps_a_whole_set_of_keys() -> None:
    told = {"AWS_ACCESS_KEY_ID": "env-id", "AWS_SECRET_ACCESS_KEY": "env-key", "AWS_SESSION_TOKEN": "env-token"}
    kept = Storage(access_key="the-id", secret_key="the-key").with_environment(told)
    assert (kept.access_key, kept.secret_key, kept.session_token) == ("the-id", "the-key", None)


def test_path_style_left_out_is_that_of_an_endpoint() -> None:
    assert Storage("http://store").in_path
    assert not Storage().in_path
    assert not Storage("http://store", path_style=False).in_path


@pytest.mark.parametrize("uri", ["s3://b/k", "s3a://b/k", "gs://b/k", "abfss://c@a.dfs.core.windows.net/k"])
def test_object_uri_is_known_by_its_scheme(uri: str) -> None:
    assert is_object_uri(uri)
    assert not is_local(uri)
    assert local_path(uri) is None


def test_local_places_are_paths() -> None:
    assert local_path("/lake/a") == Path("/lake/a")
    assert local_path("file:///lake/a%20b") == Path("/lake/a b")
    assert not is_object_uri("/lake/a")
    assert local_path("hdfs://name/lake") is None


def test_bucket_of_a_place_has_its_scheme() -> None:
    assert bucket_of("s3://lake/orders/2024") == "s3://lake"


def test_filesystem_of_an_object_store_is_ours_and_pickles() -> None:
    found, root = MINE.filesystem("s3://lake/orders/")
    assert isinstance(found, ObjectFileSystem)
    assert root == "lake/orders"
    assert pickle.loads(pickle.dumps(found)) == found
    assert "the-key" not in repr(found)


def test_settings_of_hadoop_are_for_hdfs_and_spark_alone() -> None:
    mine = Storage(options=(("dfs.nameservices", "lake"),))
    assert mine.for_spark(()) == {"spark.hadoop.dfs.nameservices": "lake"}
    mine.filesystem("s3://lake/orders")[0]._at("lake/orders")  # its client would refuse what it does not know


def test_hdfs_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(MissingError, match=r"pip install 'penstock\[hdfs\]'"):
        Storage().filesystem("hdfs://unseen:8020/lake")[0].read("unseen:8020/lake/note")


def test_for_spark_of_some_buckets_leaves_the_others_alone() -> None:
    found = MINE.for_spark(("lake", "backups"))
    assert found["spark.hadoop.fs.s3a.bucket.lake.endpoint"] == "http://store:9000"
    assert found["spark.hadoop.fs.s3a.bucket.backups.access.key"] == "the-id"
    assert "spark.hadoop.fs.s3a.endpoint" not in found
    assert MINE.for_spark(()) == {}, "nothing of it is on S3"


def test_clients_of_every_store_take_their_own_options_alone(tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    account.write_text(json.dumps({"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": True, **_ACCOUNT}))
    options = {
        "google_service_account": str(account),
        "azure_storage_account_name": "shop",
        "azure_storage_account_key": "a2V5",
    }
    told = tuple(sorted({**MINE.for_delta(), **options}.items()))
    made = [("s3", "lake"), ("gs", "lake"), ("gcs", "lake"), ("abfss", "lake@shop.dfs.core.windows.net")]
    kinds = [type(store_of(scheme, bucket, told, Patience())).__name__ for scheme, bucket in made]
    assert kinds == ["S3Store", "GCSStore", "GCSStore", "AzureStore"]
