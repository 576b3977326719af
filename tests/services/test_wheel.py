"""The wheel, installed where no source tree is: it works, and holds everything that is not Python."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/penstock"

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new environment with the wheel in it; its dependencies are those of this one."""
    root = tmp_path_factory.mktemp("env") / "venv"
    venv.create(root, with_pip=False)
    python = root / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = root.glob("lib/python*/site-packages")
    # A path file in a folder that comes in by a path file is not read: the editable install stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def run(installed: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(installed / "penstock"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    expected = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"penstock/py.typed", "penstock/spark/jars.xml", "penstock/spark/log4j2.properties"} <= expected
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("penstock/")} == expected


def test_wheel_installed_gives_a_command_of_its_own(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "--version", folder=tmp_path).stdout == f"penstock {penstock.__version__}\n"
    where = "import penstock; print(penstock.__file__)"
    done = subprocess.run([installed / "python", "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(installed.parent))


def test_wheel_installed_makes_and_checks_a_pipeline(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "init", "orders.yaml", folder=tmp_path).returncode == 0
    done = run(installed, "validate", "orders.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "orders.yaml: pipeline orders is valid\n")
    assert run(installed, "schema", folder=tmp_path).stdout.startswith("{")


def test_wheel_installed_knows_its_jars(installed: Path, tmp_path: Path) -> None:
    probe = "from penstock.spark.jars import pinned_jars; print(sorted(pinned_jars()))"
    done = subprocess.run([installed / "python", "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['bench', 'broker', 'hdfs', 'postgres', 'registry', 's3', 'spark']\n"
