"""Programs of Debian packages that tests need: found, or installed by root, or the test is skipped with the reason."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SECONDS = 300


@functools.cache
def program(name: str, package: str | None = None) -> Path:
    """The path of a program; `package` is the Debian package that holds it, where it has another name."""
    package = package or name
    if not shutil.which(name):
        reason = _install(package)
        if not shutil.which(name):
            pytest.skip(f"{name} is not here, and {reason or f'the package {package} does not bring it'}")
    return Path(str(shutil.which(name)))


@functools.cache
def _install(package: str) -> str | None:
    """Install a package; why that did not work, or None. Tried once a run: what failed fails again, and slowly."""
    if not shutil.which("apt-get"):
        return "there is no apt-get to install it"
    if os.geteuid() != 0:
        return f"only root may install it: apt-get install {package}"
    # Two runs of pytest go side by side in `make test`: the second waits for dpkg's lock.
    words = ["-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", package]
    # Runlevel 1: a package that brings a server, as prometheus does, need not start it.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    lines: list[str] = []
    for first in (["apt-get", "install", *words], ["apt-get", "update"], ["apt-get", "install", *words]):
        # Into a file, not a pipe: a server that is started all the same would hold it open.
        with tempfile.TemporaryFile("w+") as said:
            try:
                done = subprocess.run(first, env=environment, stdout=said, stderr=said, timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                return f"apt-get did not end within {_SECONDS} s"
            said.seek(0)
            lines = said.read().strip().splitlines() or lines
        if first[1] == "install" and done.returncode == 0:
            return None
    return f"apt-get did not install {package}: {lines[-1] if lines else 'it said nothing'}"
