"""What a master says of where the executors are."""

import pytest

from penstock.spark.placement import Placement


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[4,3]"])
def test_placement_local_master_is_this_process(master: str) -> None:
    placement = Placement(master)
    assert (placement.where, placement.kind, placement.shares_disk) == ("here", "local", True)


@pytest.mark.parametrize(
    "master",
    ["spark://127.0.0.1:7077", "spark://localhost:7077", "spark://127.0.0.2:1,[::1]:2", "local-cluster[2,1,512]"],
)
def test_placement_master_on_loopback_has_workers_of_this_machine_alone(master: str) -> None:
    placement = Placement(master)
    assert (placement.where, placement.kind, placement.shares_disk) == ("this machine", "standalone", True)


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("spark://spark.internal:7077", "standalone"),
        ("spark://127.0.0.1:7077,spark.internal:7077", "standalone"),
        ("k8s://https://127.0.0.1:6443", "kubernetes"),
        ("yarn", "yarn"),
        ("mesos://zk", "other"),
    ],
)
def test_placement_any_other_master_shares_nothing(master: str, kind: str) -> None:
    placement = Placement(master)
    assert (placement.where, placement.kind, placement.shares_disk) == ("elsewhere", kind, False)
