"""Fetching jars with the real Ivy, from a folder instead of the network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from penstock.errors import MissingError
from penstock.spark import jars

pytestmark = pytest.mark.services


def settings(file: Path, resolver: str) -> Path:
    file.write_text(
        f"""<ivysettings><settings defaultResolver="here"/>
        <caches defaultCacheDir="${{penstock.ivy.cache}}"/><resolvers>{resolver}</resolvers></ivysettings>"""
    )
    return file


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that is filled from the jars of the real one."""
    confs = [conf for conf in jars.pinned_jars() if conf not in jars._ON_DEMAND]
    patterns = "".join(f'<artifact pattern="{jars.jar_folder(conf)}/[artifact]-[revision].[ext]"/>' for conf in confs)
    patterns += f'<artifact pattern="{tmp_path}/archives/[artifact]-[revision](-[classifier]).[ext]"/>'
    here = settings(tmp_path / "here.xml", f'<filesystem name="here">{patterns}</filesystem>')
    monkeypatch.setenv("PENSTOCK_IVY_SETTINGS", str(here))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.long
def test_fetch_into_an_empty_cache_brings_every_jar(empty_cache: Path) -> None:
    assert [jar.name for jar in jars.spark_jars()] == sorted(jars.pinned_jars()["spark"])
    assert all(jar.stat().st_size > 0 for jar in jars.spark_jars())


def test_fetch_after_one_that_was_killed_recovers(empty_cache: Path) -> None:
    half = jars._folder("spark")
    half.mkdir(parents=True)
    (half / jars.pinned_jars()["spark"][0]).write_bytes(b"")
    remains = empty_cache / "fetch-killed"
    remains.mkdir()
    assert [jar.name for jar in jars.spark_jars()] == sorted(jars.pinned_jars()["spark"])
    assert all(jar.stat().st_size > 0 for jar in jars.spark_jars())
    assert not remains.exists()


@pytest.fixture
def archive(empty_cache: Path) -> Path:
    """An archive with the registry's name, where the fetch finds it."""
    [name] = jars.pinned_jars()["registry"]
    archives = empty_cache.parent / "archives"
    (archives / "lib").mkdir(parents=True)
    (archives / "app-runner.jar").write_bytes(b"runner")
    (archives / "lib" / "other.jar").write_bytes(b"other")
    with tarfile.open(archives / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(archives / "app-runner.jar", "app-runner.jar")
        archive.add(archives / "lib", "lib")
    return archives / f"{name}.tar.gz"


def test_fetch_of_the_registry_unpacks_its_archive_once(
    empty_cache: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pinned = {archive.name: hashlib.sha256(archive.read_bytes()).hexdigest()}
    monkeypatch.setattr(jars, "pinned_hashes", lambda: pinned)
    runner = jars.registry_jar()
    assert runner == jars._folder("registry") / archive.name.removesuffix(".tar.gz") / "app-runner.jar"
    assert (runner.parent / "lib" / "other.jar").read_bytes() == b"other"
    assert "fetching the schema registry (140 MB), once" in capfd.readouterr().err
    assert list(empty_cache.glob("fetch-*")) == []
    assert jars.registry_jar() == runner
    assert capfd.readouterr().err == ""


def test_fetch_of_an_archive_with_other_bytes_is_refused_before_it_is_unpacked(
    empty_cache: Path, archive: Path
) -> None:
    with pytest.raises(MissingError) as caught:
        jars.registry_jar()
    assert caught.value.code == "JAR_NOT_AS_PINNED" and archive.name in caught.value.summary
    assert not jars._folder("registry").exists()
    assert list(empty_cache.glob("fetch-*")) == []


@pytest.mark.long
def test_fetch_of_the_registry_that_is_nowhere_says_so(empty_cache: Path) -> None:
    with pytest.raises(MissingError) as caught:
        jars.registry_jar()
    assert caught.value.code == "JARS_MISSING"
    assert "the schema registry" in caught.value.summary
    assert "apicurio-registry-app" in caught.value.context["tried"]
    assert not jars._folder("registry").exists()


@pytest.mark.long
def test_fetch_by_two_at_once_happens_once(empty_cache: Path) -> None:
    command = [sys.executable, "-m", "penstock.spark.jars"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    said = [each.communicate(timeout=120)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert sum("fetching" in text for text in said) == 1


def test_fetch_without_a_network_says_what_was_tried(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = '<ibiblio name="here" m2compatible="true" usepoms="false" root="http://127.0.0.1:1/"/>'
    away = settings(empty_cache.parent / "away.xml", nowhere)
    monkeypatch.setenv("PENSTOCK_IVY_SETTINGS", str(away))
    with pytest.raises(MissingError) as caught:
        jars.spark_jars()
    assert caught.value.code == "JARS_MISSING"
    assert "delta-storage" in caught.value.context["tried"]
    assert not jars._folder("spark").exists()
    assert list(empty_cache.glob("fetch-*")) == []
