"""Where the services of a local Spark cluster are, and that the process file keeps them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from penstock.devstack.spark_cluster import SparkInstalled, await_workers, lay_out_cluster, start_idle
from penstock.devstack.state import StackState, load, read_status, save
from penstock.errors import MissingError
from penstock.spark.session import spark_home


def test_layout_of_a_new_cluster_has_ports_and_a_host_for_each_worker(tmp_path: Path) -> None:
    cluster = lay_out_cluster(tmp_path, None, 2, 3, "2g", (20000,))
    assert cluster is not None
    ports = [port for one in cluster.services for port in (one.port, one.page_port)]
    assert len(set(ports)) == 6
    assert 20000 not in ports
    assert cluster.master.url == f"spark://127.0.0.1:{cluster.master.port}"
    assert all(worker.host.startswith("127.") for worker in cluster.workers)
    assert [(worker.id, worker.cores, worker.memory) for worker in cluster.workers] == [(1, 3, "2g"), (2, 3, "2g")]
    assert lay_out_cluster(tmp_path, None, None, 1, "1g", ()) is None


def test_layout_of_a_cluster_that_has_ended_comes_back_on_its_ports_unless_they_are_taken(tmp_path: Path) -> None:
    cluster = lay_out_cluster(tmp_path, None, 2, 1, "1g", ())
    assert cluster is not None
    assert lay_out_cluster(tmp_path, cluster, None, 1, "1g", ()) is cluster
    with socket.create_server(("127.0.0.1", cluster.master.port)):
        other = lay_out_cluster(tmp_path, cluster, None, 1, "1g", ())
    assert other is not None
    assert len(other.workers) == 2
    assert other.master.port != cluster.master.port


def test_layout_with_another_number_of_workers_than_run_is_refused(tmp_path: Path) -> None:
    cluster = lay_out_cluster(tmp_path, None, 2, 1, "1g", ())
    assert cluster is not None
    running = cluster.with_service(cluster.master.as_process(os.getpid()))
    with pytest.raises(MissingError) as refused:
        lay_out_cluster(tmp_path, running, 3, 1, "1g", ())
    assert refused.value.code == "DEV_STACK_DIFFERS"


def test_state_with_a_cluster_is_kept_whole(tmp_path: Path) -> None:
    cluster = lay_out_cluster(tmp_path, None, 1, 1, "1g", ())
    assert cluster is not None
    stack = StackState("id", (), spark=cluster.with_service(cluster.workers[0].as_process(os.getpid())))
    save(tmp_path, stack)
    assert load(tmp_path) == stack
    found = read_status(tmp_path).spark
    assert found is not None
    assert (found.master.alive, found.workers[0].alive, found.alive) == (False, True, False)
    ended = stack.with_service(cluster.workers[0].as_process(os.getpid())).without_ended().spark
    assert ended is not None
    assert (ended.master.pid, ended.workers[0].pid) == (None, os.getpid())


def test_installed_spark_tells_its_workers_where_it_is() -> None:
    environment = SparkInstalled(spark_home(), Path("/java")).environment
    assert environment["SPARK_SCALA_VERSION"] == "2.13"
    assert environment["JAVA_HOME"] == "/java"


def test_cluster_whose_master_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no memory for a heap; exit 3\n")
    java.chmod(0o755)
    cluster = lay_out_cluster(tmp_path, None, 1, 1, "1g", ())
    assert cluster is not None
    children = start_idle(SparkInstalled(spark_home(), tmp_path / "java"), cluster, lambda known: None)
    with pytest.raises(MissingError) as refused:
        await_workers(cluster, children)
    for child in children.values():
        child.wait(30)
    assert refused.value.code == "SPARK_CLUSTER_NOT_STARTED"
    assert "it ended with status 3" in refused.value.summary
    assert "no memory for a heap" in str(refused.value)
