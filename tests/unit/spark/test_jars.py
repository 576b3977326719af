"""The descriptor, and that jars which are there cost nothing."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.errors import MissingError
from penstock.spark import jars

DEPENDENCIES = list(ElementTree.parse(jars._DESCRIPTOR).iter("dependency"))


@pytest.mark.parametrize("dependency", DEPENDENCIES, ids=lambda each: each.attrib["name"])
def test_descriptor_pins_every_jar_and_follows_none(dependency: Any) -> None:
    assert dependency.attrib["transitive"] == "false"
    assert re.fullmatch(r"\d+(\.\d+)*(-\d+|\.Final)?", dependency.attrib["rev"]), "a version, not a range"
    assert re.fullmatch(r"\w+->default", dependency.attrib["conf"])


def test_descriptor_names_no_jar_twice_in_a_configuration() -> None:
    for conf, names in jars.pinned_jars().items():
        modules = [name.rpartition("-")[0] for name in names]
        assert len(modules) == len(set(modules)), conf


def test_descriptor_names_the_registry_by_the_folder_of_its_archive() -> None:
    [name] = jars.pinned_jars()["registry"]
    assert name.startswith("apicurio-registry-app-")
    assert name.endswith("-all")


def test_descriptor_versions_of_spark_and_its_connector_agree() -> None:
    from importlib.metadata import version

    assert f"spark-sql-kafka-0-10_2.13-{version('pyspark')}.jar" in jars.pinned_jars()["spark"]


@pytest.fixture
def filled_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with every pinned jar in place, on a machine where starting any process fails."""

    def refuse(*_command: Any, **_options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    empty = {name: hashlib.sha256(b"").hexdigest() for names in jars.pinned_jars().values() for name in names}
    monkeypatch.setattr(jars, "pinned_hashes", lambda: empty)
    for conf, names in jars.pinned_jars().items():
        folder = jars._folder(conf)
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    return tmp_path


def test_jars_that_are_there_start_no_process(filled_cache: Path) -> None:
    assert [jar.name for jar in jars.spark_jars()] == sorted(jars.pinned_jars()["spark"])
    assert Path(jars.broker_classpath()).parent.is_relative_to(filled_cache)
    assert jars.main() == 0


def test_jars_for_everyone_leave_the_registry_out(filled_cache: Path) -> None:
    (jars._folder("registry") / jars.pinned_jars()["registry"][0]).unlink()
    assert jars.main() == 0
    with pytest.raises(AssertionError, match="a process was started"):
        jars.registry_jar()


def test_hashes_are_pinned_for_every_jar_and_for_no_other() -> None:
    named = {name for names in jars.pinned_jars().values() for name in names}
    hashes = jars.pinned_hashes()
    assert {name.removesuffix(".tar.gz") for name in hashes} == named
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes.values())


@pytest.mark.parametrize("change", ["other bytes", "one more"])
def test_jar_that_nobody_pinned_is_not_used(filled_cache: Path, change: str) -> None:
    folder = jars.jar_folder("spark")
    assert (folder / ".verified").exists()
    name = jars.pinned_jars()["spark"][0] if change == "other bytes" else "one-more.jar"
    (folder / name).write_bytes(b"hostile")
    for _ in range(2):
        with pytest.raises(MissingError) as refused:
            jars.spark_jars()
        assert refused.value.code == "JAR_NOT_AS_PINNED" and name in refused.value.summary


def test_jar_that_is_fetched_with_other_bytes_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(confs: Sequence[str], count: int, target: Path) -> None:
        for conf in confs:
            (target / conf).mkdir()
            for name in jars.pinned_jars()[conf]:
                (target / conf / name).write_bytes(b"hostile")

    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "_run_ivy", fetch)
    with pytest.raises(MissingError) as refused:
        jars.jar_folder("spark")
    assert refused.value.code == "JAR_NOT_AS_PINNED" and not jars._folder("spark").exists()


def test_jars_with_one_taken_away_are_fetched_again(filled_cache: Path) -> None:
    (jars.jar_folder("spark") / jars.pinned_jars()["spark"][0]).unlink()
    with pytest.raises(AssertionError, match="a process was started"):
        jars.jar_folder("spark")


def test_proxy_of_the_environment_reaches_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example")
    options = jars._network_options()
    assert "-Dhttps.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=3128" in options
    assert "-Dhttp.nonProxyHosts=localhost|*.example" in options
