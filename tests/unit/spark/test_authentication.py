"""Whoever talks to Spark's ports knows the secret: of this process a new one, of a dev cluster that of its file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devstack.spark_cluster import _authenticated, lay_out_cluster
from penstock.spark.placement import Placement
from penstock.spark.security import ENABLED, SECRET, authentication, is_unauthenticated

MASTER = "org.apache.spark.deploy.master.Master"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Placement, Path]]:
    """A process with the command line of a master; Spark itself is not needed to find its secret."""
    laid_out = lay_out_cluster(tmp_path, None, 1, 1, "1g", ())
    assert laid_out is not None
    file = _authenticated(laid_out)
    words = [MASTER, "--port", str(laid_out.master.port), "--properties-file", str(file)]
    with subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE) as master:
        yield Placement(laid_out.master.url), file
        master.communicate(b"\n")


def test_application_in_this_process_has_a_secret_that_spark_makes() -> None:
    assert authentication(Placement(), {}) == {ENABLED: "true"}
    assert authentication(Placement(), {ENABLED: "false"}) == {}


def test_application_on_a_local_cluster_has_a_new_secret_each_time() -> None:
    first, second = (authentication(Placement("local-cluster[2,1,1024]"), {}) for _ in range(2))
    assert first[ENABLED] == "true" and len(first[SECRET]) == 64 and first[SECRET] != second[SECRET]


def test_dev_cluster_has_its_secret_in_a_file_of_its_owner(cluster: tuple[Placement, Path]) -> None:
    placement, file = cluster
    assert file.stat().st_mode & 0o777 == 0o600
    found = authentication(placement, {})
    assert found[ENABLED] == "true" and f"{SECRET} {found[SECRET]}" in file.read_text().splitlines()
    assert not is_unauthenticated(placement, {})


def test_cluster_of_others_is_known_to_be_open() -> None:
    for master in ("yarn", "k8s://https://c", "spark://spark.internal:7077", "spark://127.0.0.1:1"):
        assert is_unauthenticated(Placement(master), {})
        assert not is_unauthenticated(Placement(master), {ENABLED: "true"})
