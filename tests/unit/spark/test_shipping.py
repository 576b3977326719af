"""What executors elsewhere are sent: the user's Python without data, and settings that name it."""

import zipfile
from pathlib import Path

import pytest

from penstock.model.shipped import CODE, code_name
from penstock.spark import shipping as module
from penstock.spark.executor_settings import executor_settings
from penstock.spark.placement import Placement
from penstock.spark.shipping import Shipping, code_in, pack_code

ELSEWHERE = Placement("spark://spark.internal:7077")
HERE = Placement("spark://127.0.0.1:7077")
JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    folder = tmp_path / "orders"
    for name in (
        "steps.py",
        "more/deep.py",
        "rates.csv",
        "lake/out/part.csv",
        ".git/x.py",
        "env/pyvenv.cfg",
        "env/y.py",
        "a.bin",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "big.csv").write_text("x" * 2_000_000)
    return folder


def test_code_in_a_folder_leaves_out_data_environments_and_what_is_hidden(folder: Path) -> None:
    assert code_in(folder, frozenset({str(folder / "lake/out")})) == ["rates.csv", "steps.py", "more/deep.py"]


def test_pack_code_is_found_by_the_folders_name_and_changes_with_it(folder: Path) -> None:
    without = frozenset({str(folder / "lake/out")})
    first = pack_code([folder], without)
    with zipfile.ZipFile(first) as archive:
        assert f"{code_name(str(folder))}/more/deep.py" in archive.namelist()
    (folder / "steps.py").write_text("changed")
    assert pack_code([folder], without) != first


def test_settings_on_this_machine_send_nothing_and_name_the_jars_where_they_are() -> None:
    found = executor_settings(HERE, {"spark.executor.extraClassPath": "/own.jar"}, JARS, Shipping())
    assert found["spark.executor.extraClassPath"] == "/jars/a.jar:/jars/b.jar:/own.jar"
    assert "spark.jars" not in found
    assert "spark.archives" not in found


def test_settings_elsewhere_send_packages_code_and_jars(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pack_environment", lambda *_: Path("/packed.tar.gz"))
    found = executor_settings(ELSEWHERE, {"spark.jars": "/own.jar"}, JARS, Shipping(folders=(folder,)))
    assert found["spark.jars"] == "/jars/a.jar,/jars/b.jar,/own.jar"
    packed, code = found["spark.archives"].split(",")
    assert packed == "/packed.tar.gz#penstock_packages"
    assert code.endswith(".zip#penstock_code")
    assert found["spark.executorEnv.PYTHONPATH"] == "penstock_packages"
    assert found[f"spark.executorEnv.{CODE}"] == "penstock_code"


def test_settings_in_an_image_send_no_packages_and_no_jars() -> None:
    assert executor_settings(Placement("k8s://https://cluster"), {}, JARS, Shipping(packed=False)) == {}


def test_settings_without_a_cluster_are_none() -> None:
    assert executor_settings(Placement(), {}, JARS, Shipping(forced=True)) == {}
