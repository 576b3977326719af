"""What executors elsewhere are sent: the user's Python and what it lists, and settings that name it."""

import zipfile
from pathlib import Path

import pytest

from penstock.errors import MissingError
from penstock.model.shipped import CODE, code_name
from penstock.spark import shipping as module
from penstock.spark.placement import Placement
from penstock.spark.session import executor_settings
from penstock.spark.shipping import Shipping, UserCode, pack_code

ELSEWHERE = Placement("spark://spark.internal:7077")
HERE = Placement("spark://127.0.0.1:7077")
JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    folder = tmp_path / "orders"
    for name in ("steps.py", "more/deep.py", "rates.csv", "secret.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return UserCode(folder, ("more/deep.py", "rates.csv", "steps.py"))


def test_pack_code_holds_the_files_by_the_folders_name_and_changes_with_them(code: UserCode) -> None:
    first = pack_code([code])
    inside = code_name(str(code.folder))
    with zipfile.ZipFile(first) as archive:
        assert archive.namelist() == [f"{inside}/{name}" for name in code.files]
    assert [file.name for file in first.parent.iterdir()] == [first.name]
    (code.folder / "steps.py").write_text("changed")
    assert pack_code([code]) != first


def test_pack_code_too_large_is_refused(code: UserCode) -> None:
    (code.folder / "rates.csv").write_bytes(bytes(21 << 20))
    with pytest.raises(MissingError) as refused:
        pack_code([code])
    assert refused.value.code == "CODE_TOO_LARGE"


def test_settings_on_this_machine_send_nothing_and_name_the_jars_where_they_are() -> None:
    found = executor_settings(HERE, {"spark.executor.extraClassPath": "/own.jar"}, JARS, Shipping())
    assert found["spark.executor.extraClassPath"] == "/jars/a.jar:/jars/b.jar:/own.jar"
    assert "spark.jars" not in found
    assert "spark.archives" not in found


def test_settings_elsewhere_send_packages_code_and_jars(code: UserCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pack_environment", lambda *_: Path("/packed.tar.gz"))
    found = executor_settings(ELSEWHERE, {"spark.jars": "/own.jar"}, JARS, Shipping(code=(code,)))
    assert found["spark.jars"] == "/jars/a.jar,/jars/b.jar,/own.jar"
    packed, sent = found["spark.archives"].split(",")
    assert packed == "/packed.tar.gz#penstock_packages"
    assert sent.endswith(".zip#penstock_code")
    assert found["spark.executorEnv.PYTHONPATH"] == "penstock_packages"
    assert found[f"spark.executorEnv.{CODE}"] == "penstock_code"


def test_settings_in_an_image_send_no_packages_and_no_jars() -> None:
    assert executor_settings(Placement("k8s://https://cluster"), {}, JARS, Shipping(packed=False)) == {}


def test_settings_without_a_cluster_are_none() -> None:
    assert executor_settings(Placement(), {}, JARS, Shipping(forced=True)) == {}
