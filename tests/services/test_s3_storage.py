"""The file system over a real S3 server: what is there, what is written whole, who wins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.config import load
from penstock.errors import MissingError, TransientError
from penstock.ops.plan import plan_run
from penstock.storage import ChangedError, Storage
from penstock.storage.reaching import check_conditional_writes, check_reachable
from penstock.storage.stores import SHORT
from penstock.supervision.run import run


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    yield s3.bucket()
    s3.calm()


def _at(s3: Any, bucket: str) -> tuple[Any, str]:
    found: tuple[Any, str] = s3.storage.filesystem(f"s3://{bucket}/folder")
    return found


def test_objects_written_are_listed_read_and_removed(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    fs.pipe_file(f"{root}/a", b"one")
    fs.pipe_file(f"{root}/in/b", b"two")
    assert sorted(fs.ls(root, detail=False)) == [f"{root}/a", f"{root}/in"]
    assert fs.find(root) == [f"{root}/a", f"{root}/in/b"]
    assert fs.cat([f"{root}/a", f"{root}/in/b"]) == {f"{root}/a": b"one", f"{root}/in/b": b"two"}
    assert fs.cat_file(f"{root}/a", 1, 2) == b"n"
    assert fs.info(f"{root}/in")["type"] == "directory"
    assert fs.exists(f"{root}/a") and not fs.exists(f"{root}/nothing")
    assert abs(fs.modified(f"{root}/a").timestamp() - time.time()) < 60
    fs.rm(root, recursive=True)
    assert fs.find(root) == []
    with pytest.raises(FileNotFoundError):
        fs.ls(root)
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{root}/a")
    fs.rm_file(f"{root}/a")


def test_prefix_of_another_name_is_not_listed(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    fs.pipe_file(f"{root}/orders/1", b"")
    fs.pipe_file(f"{root}/orders_quarantine/1", b"")
    assert fs.find(f"{root}/orders") == [f"{root}/orders/1"]
    assert fs.ls(f"{root}/orders", detail=False) == [f"{root}/orders/1"]


def test_objects_behind_a_name_come_in_order_from_there(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    for name in ("a/1", "b/1", "b/2", "c", "d/1"):
        fs.pipe_file(f"{root}/{name}", b"")
    assert list(fs.list_after(root, "b/1")) == [f"{root}/b/2", f"{root}/c", f"{root}/d/1"]
    assert list(fs.list_after(root, "b0")) == [f"{root}/c", f"{root}/d/1"]
    assert list(fs.list_after(bucket, "folder/c")) == [f"{root}/d/1"]
    assert list(fs.list_after(f"{root}/nothing", "a")) == []


def test_parquet_file_through_it_is_read_back(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    rows = pa.table({"id": pa.array(range(3_000_000), pa.int64())})
    with fs.open(f"{root}/rows.parquet", "wb") as file:
        pq.write_table(rows, file, compression="none", use_dictionary=False)
        assert not fs.exists(f"{root}/rows.parquet"), "it is there only when it is whole"
    assert pq.read_table(f"{root}/rows.parquet", filesystem=fs) == rows


def test_put_new_by_many_at_once_succeeds_once(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)

    def put(number: int) -> bool:
        try:
            fs.put_new(f"{root}/one", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(16))) == 1


def test_put_over_what_changed_meanwhile_is_refused(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    mark = fs.put_new(f"{root}/one", b"a")
    newer = fs.put_over(f"{root}/one", b"b", mark)
    with pytest.raises(ChangedError):
        fs.put_over(f"{root}/one", b"c", mark)
    assert fs.put_over(f"{root}/one", b"c", newer)
    fs.rm_file(f"{root}/one")
    with pytest.raises(ChangedError):
        fs.put_over(f"{root}/one", b"d", newer)


@pytest.mark.parametrize("act", ["swallow", "drop", "error"])
def test_put_new_whose_answer_is_lost_is_told_as_its_own(s3: Any, bucket: str, act: str) -> None:
    fs, root = _at(s3, bucket)
    s3.fault(act, method="PUT", path="/one$")
    assert fs.put_new(f"{root}/one", b"mine")
    assert fs.read(f"{root}/one").body == b"mine"


def test_slow_down_is_waited_for(s3: Any, bucket: str) -> None:
    fs, root = _at(s3, bucket)
    fs.pipe_file(f"{root}/one", b"1")
    s3.fault("error", method="GET", path="/one$", times=3)
    assert fs.cat_file(f"{root}/one") == b"1"


def test_store_that_stays_away_is_told_in_time(s3: Any, bucket: str) -> None:
    fs, root = s3.storage.filesystem(f"s3://{bucket}/folder", SHORT)
    s3.fault("error", path="/one$", times=1000)
    began = time.monotonic()
    with pytest.raises(TransientError) as raised:
        fs.cat_file(f"{root}/one")
    assert raised.value.code == "STORAGE_UNAVAILABLE"
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"access_key": "another"}, "STORAGE_REFUSED"),
        ({"secret_key": "another"}, "STORAGE_REFUSED"),
        ({"region": "us-east-1"}, "STORAGE_WRONG_REGION"),
        ({"endpoint": "http://127.0.0.1:9"}, "STORAGE_UNAVAILABLE"),
    ],
)
def test_check_reachable_tells_the_cause_soon(s3: Any, bucket: str, change: dict[str, str], code: str) -> None:
    from dataclasses import replace

    began = time.monotonic()
    with pytest.raises(MissingError) as raised:
        check_reachable(replace(s3.storage, **change), [f"s3://{bucket}/a"])
    assert (raised.value.code, raised.value.exit_code) == (code, 3)
    assert time.monotonic() - began < 20
    assert "a-key-for-tests" not in str(raised.value)


def test_check_reachable_without_the_bucket_says_so(s3: Any, bucket: str) -> None:
    with pytest.raises(MissingError) as raised:
        check_reachable(s3.storage, [f"s3://{bucket}/a", "s3://no-such-bucket/b", "/a/local/path"])
    assert raised.value.code == "STORAGE_BUCKET_MISSING"
    check_reachable(s3.storage, [f"s3://{bucket}/a", "/a/local/path"])


def test_storage_by_the_environment_reaches_it(s3: Any, bucket: str) -> None:
    storage = Storage().with_environment(
        {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_REGION": "eu-test-1",
            "AWS_ACCESS_KEY_ID": s3.storage.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.storage.secret_key,
        }
    )
    check_reachable(storage, [f"s3://{bucket}"])


def test_check_conditional_writes_asks_a_bucket_once_and_leaves_nothing(s3: Any, bucket: str) -> None:
    places = [f"s3://{bucket}/a", f"s3://{bucket}/b", "/a/local/path", "hdfs://nowhere:1/a"]
    s3.forget()
    assert check_conditional_writes(s3.storage, places) == [f"s3://{bucket}"]
    puts = [one for one in s3.log() if one["method"] == "PUT"]
    assert [one["status"] for one in puts] == [200, 412, 200, 412]
    assert {one["path"].rpartition("-")[0] for one in puts} == {f"/{bucket}/a/.penstock-probe"}
    assert s3.keys(bucket) == []
    s3.forget()
    assert check_conditional_writes(s3.storage, places) == [f"s3://{bucket}"]
    assert s3.log() == []


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_check_conditional_writes_of_a_store_that_ignores_a_condition_refuses_it(
    s3: Any, bucket: str, header: str
) -> None:
    s3.fault("ignore", header=header, times=1000)
    for _ in range(2):
        with pytest.raises(MissingError) as refused:
            check_conditional_writes(s3.storage, [f"s3://{bucket}/a"])
        assert (refused.value.code, refused.value.exit_code) == ("STORAGE_NOT_SAFE", 3)
        assert refused.value.context == {"store": s3.endpoint, "place": f"s3://{bucket}/a", "ignored": header}
    assert s3.keys(bucket) == []
    s3.calm()
    assert check_conditional_writes(s3.storage, [f"s3://{bucket}/a"]) == [f"s3://{bucket}"]


def test_check_conditional_writes_where_nothing_may_be_written_tells_the_cause(s3: Any, bucket: str) -> None:
    s3.fault("error", method="PUT", times=1000, status=403, code="AccessDenied")
    with pytest.raises(MissingError) as refused:
        check_conditional_writes(s3.storage, [f"s3://{bucket}/a"])
    assert refused.value.code == "STORAGE_REFUSED"


@pytest.mark.parametrize("place", ["checkpoint", "quarantine", "delta", "parquet"])
def test_run_and_plan_on_a_store_that_ignores_conditions_are_refused(
    s3: Any, bucket: str, topics: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_S3_ACCESS_KEY", s3.storage.access_key)
    monkeypatch.setenv("TEST_S3_SECRET_KEY", s3.storage.secret_key)
    at = {name: str(tmp_path / name) for name in ("checkpoint", "quarantine", "delta", "parquet")}
    at[place] = f"s3://{bucket}/{place}"
    file = tmp_path / "orders.yaml"
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": topics.brokers, "topics": [topics.create()]},
        "decode": {"format": "json", "schema": "id BIGINT NOT NULL"},
        "quarantine": {"table": at["quarantine"]},
        "sinks": [{"name": kind, "type": kind, "path": at[kind]} for kind in ("delta", "parquet")],
        "checkpoint": at["checkpoint"],
        "storage": s3.section,
    }
    file.write_text(yaml.safe_dump(body))
    config = load(file)
    s3.fault("ignore", header="If-None-Match", times=1000)
    with pytest.raises(MissingError, match="STORAGE_NOT_SAFE"):
        run(config)
    planned = plan_run(config)
    assert "STORAGE_NOT_SAFE" in [problem.code for problem in planned.problems]
    assert planned.buckets == ()
    s3.calm()
    planned = plan_run(config)
    assert "STORAGE_NOT_SAFE" not in [problem.code for problem in planned.problems]
    assert planned.buckets == (f"s3://{bucket}",)
    assert s3.keys(bucket) == []
