"""A local path on a cluster is refused with its place, and let through where all machines see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.assembly.placing import check_places, open_ports, placement_of, shipping_of
from penstock.config import PipelineConfig, load
from penstock.errors import MissingError, PenstockError
from penstock.spark.placement import Placement
from penstock.spark.shipping import UserCode, pack_code

ELSEWHERE = Placement("spark://spark.internal:7077")
ON_CLUSTER = Placement("yarn", "cluster")
DELTA = {"name": "out", "type": "delta", "path": "lake/out"}


def pipeline(folder: Path, **keys: Any) -> PipelineConfig:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "order_id BIGINT NOT NULL, amount DOUBLE, at TIMESTAMP"},
        "sinks": [{**DELTA, "path": "s3://lake/out"}],
        "checkpoint": "s3://lake/checkpoint",
        **keys,
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    return load(file)


def refused(config: PipelineConfig, placement: Placement) -> dict[str, str]:
    with pytest.raises(MissingError) as error:
        check_places(config, placement)
    assert error.value.code == "PATH_NOT_SHARED"
    return error.value.context


KAFKA = {"type": "kafka", "brokers": "b:1", "topics": ["t"]}
STATEFUL = [
    {"watermark": {"column": "at", "delay": "1 minute"}},
    {"dedupe": {"keys": ["order_id"], "within": "1 hour"}},
]


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"sinks": [DELTA]}, "sinks[0].path"),
        ({"sinks": [{"name": "out", "type": "parquet", "path": "lake/out"}]}, "sinks[0].path"),
        ({"sinks": [{"name": "out", "type": "iceberg", "table": "a.b", "warehouse": "lake"}]}, "sinks[0].warehouse"),
        ({"quarantine": {"table": "lake/bad"}}, "quarantine.table"),
        ({"tables": {"t": {"type": "iceberg", "table": "a.b", "warehouse": "lake"}}}, "tables.t.warehouse"),
        ({"source": {**KAFKA, "options": {"ssl.ca.location": "/ca.pem"}}}, "source.options.ssl.ca.location"),
        (
            {"decode": {"format": "avro", "registry": {"url": "https://r:1", "ca_file": "ca.pem"}}},
            "decode.registry.ca_file",
        ),
        ({"quarantine": {"topic": "bad"}, "checkpoint": "here"}, "checkpoint"),
        ({"transforms": STATEFUL, "checkpoint": "here"}, "checkpoint"),
    ],
)
def test_places_that_tasks_use_are_refused_elsewhere(tmp_path: Path, keys: dict[str, Any], place: str) -> None:
    config = pipeline(tmp_path, **keys)
    assert list(refused(config, ELSEWHERE)) == [place]
    assert check_places(config, Placement("spark://127.0.0.1:7077")) == []
    assert check_places(config, Placement()) == []


def test_places_all_of_them_are_named_at_once(tmp_path: Path) -> None:
    config = pipeline(tmp_path, sinks=[DELTA], quarantine={"table": "lake/bad"}, checkpoint="here")
    assert list(refused(config, ON_CLUSTER)) == ["quarantine.table", "sinks[0].path", "checkpoint"]


def test_places_checkpoint_on_the_drivers_disk_is_worth_a_word_in_client_mode(tmp_path: Path) -> None:
    config = pipeline(tmp_path, checkpoint="here")
    [notice] = check_places(config, ELSEWHERE)
    assert "checkpoint is on this machine's disk" in notice
    assert list(refused(config, ON_CLUSTER)) == ["checkpoint"]


def test_places_on_shared_paths_are_let_through(tmp_path: Path) -> None:
    shared = {"shared_paths": [str(tmp_path / "lake")]}
    config = pipeline(tmp_path, sinks=[DELTA], quarantine={"table": "lake/bad"}, checkpoint="lake/here", cluster=shared)
    assert check_places(config, ON_CLUSTER) == []
    config = pipeline(tmp_path, sinks=[{**DELTA, "path": "lakeside/out"}], cluster=shared)
    assert list(refused(config, ON_CLUSTER)) == ["sinks[0].path"]


def test_placement_goes_by_the_file_and_by_what_is_said_before_it(tmp_path: Path) -> None:
    config = pipeline(tmp_path, spark={"spark.master": "yarn"})
    assert placement_of(pipeline(tmp_path)).is_local
    config = pipeline(tmp_path, spark={"spark.master": "yarn"})
    assert placement_of(config).kind == "yarn"
    assert placement_of(config.on_master("k8s://https://cluster"), "cluster").kind == "kubernetes"


def test_placement_by_what_is_no_master_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="k8s://URL, yarn") as error:
        placement_of(pipeline(tmp_path).on_master("sparkk://spark.internal:7077"))
    assert error.value.code == "MASTER_UNKNOWN"


def test_shipping_sends_the_users_python_and_by_default_packages(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def same(rows):\n    return rows\n")
    plain = shipping_of(pipeline(tmp_path, spark={"spark.master": "yarn"}))
    assert (plain.packed, plain.forced, plain.code) == (True, False, ())
    steps = shipping_of(pipeline(tmp_path, transforms=[{"map_arrow": "steps.same"}]))
    assert steps.code == (UserCode(tmp_path, ("steps.py",)),)
    on_hdfs = shipping_of(pipeline(tmp_path, checkpoint="hdfs://name:8020/checkpoint"))
    assert (plain.packages, on_hdfs.packages) == ((), ("hdfs-native",))
    assert not shipping_of(pipeline(tmp_path, spark={"spark.master": "k8s://https://c"})).packed
    assert not shipping_of(pipeline(tmp_path, cluster={"environment": "installed"})).packed


STEPS = {"map_arrow": "steps.same"}


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which secrets of this pipeline and of others lie beside its Python."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    folder = tmp_path / "pipelines"
    (folder / "shop").mkdir(parents=True)
    for name, text in {
        "steps.py": "import shop.rates\n\ndef same(rows):\n    import late\n    return rows\n",
        "shop/__init__.py": "",
        "shop/rates.py": "from . import table\nfrom shop.table import X as Y\n",
        "shop/table.py": "X = 1\n",
        "shop/unused.py": "",
        "late.py": "import json\n",
        "token.txt": "canary",
        "account.json": "canary",
        "rates.csv": "EUR,1",
        "other.yaml": 'url: "${file:neighbour.csv}"\n',
        "neighbour.csv": "canary",
    }.items():
        (folder / name).write_text(text)
    return folder


def test_shipping_of_a_crowded_folder_is_what_is_imported_and_what_is_listed(crowded: Path) -> None:
    config = pipeline(crowded, transforms=[STEPS], cluster={"extra_files": ["rates.csv"]})
    [code] = shipping_of(config).code
    assert code.files == ("late.py", "rates.csv", "shop/__init__.py", "shop/rates.py", "shop/table.py", "steps.py")
    archive = pack_code([code])
    assert archive.stat().st_mode & 0o777 == 0o600
    assert b"canary" not in archive.read_bytes()


@pytest.mark.parametrize("listed", ["token.txt", "neighbour.csv", "link.csv"])
def test_shipping_of_a_file_that_a_reference_names_is_refused(crowded: Path, listed: str) -> None:
    (crowded / "link.csv").symlink_to(crowded / "neighbour.csv")
    options = {"sasl.username": "u", "sasl.password": "${file:token.txt}"}
    config = pipeline(
        crowded, source={**KAFKA, "options": options}, transforms=[STEPS], cluster={"extra_files": [listed]}
    )
    with pytest.raises(PenstockError) as refused_:
        shipping_of(config)
    assert refused_.value.code == "FILE_IS_SECRET"


def test_shipping_of_a_file_outside_the_folder_is_refused(crowded: Path) -> None:
    (crowded.parent / "x.csv").touch()
    with pytest.raises(PenstockError) as refused_:
        shipping_of(pipeline(crowded, transforms=[STEPS], cluster={"extra_files": ["../x.csv"]}))
    assert refused_.value.code == "FILE_OUTSIDE_FOLDER"


def test_cluster_without_authentication_is_worth_a_word(tmp_path: Path) -> None:
    [word] = open_ports(pipeline(tmp_path), ELSEWHERE)
    assert "spark.authenticate is not true" in word
    assert open_ports(pipeline(tmp_path, spark={"spark.authenticate": True}), ELSEWHERE) == []
    assert open_ports(pipeline(tmp_path), Placement()) == []
