"""Who may talk to Spark's own ports: a process that knows the secret of the application, and nobody else.

In this process Spark makes a new secret for every application. A standalone cluster has one, which its master, its
workers and every driver must know: that of a dev stack is in a file that its owner alone can read, and whose name is on
the master's command line. Elsewhere the cluster's owner decides; `plan` warns where nothing is set.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import psutil

from penstock.spark.placement import Placement

ENABLED, SECRET = "spark.authenticate", "spark.authenticate.secret"
_MASTER = "org.apache.spark.deploy.master.Master"


def authentication(placement: Placement, asked: Mapping[str, str]) -> dict[str, str]:
    """The settings by which Spark's processes know each other, where the settings asked for do not say how."""
    if ENABLED in asked:
        return {}
    if placement.is_local:
        return {ENABLED: "true"}
    if placement.kind == "standalone" and placement.shares_disk:
        known = _secret_of(placement) if placement.masters else secrets.token_hex(32)
        return {ENABLED: "true", SECRET: known} if known is not None else {}
    return {}


def is_unauthenticated(placement: Placement, asked: Mapping[str, str]) -> bool:
    """Whether any process that reaches the ports of this cluster could speak as one of its own, as far as we know."""
    return {**authentication(placement, asked), **asked}.get(ENABLED, "false") != "true"


def _secret_of(placement: Placement) -> str | None:
    """The secret of a master on this machine, from the file that its process names; none where that is not ours."""
    ports = {address.rpartition(":")[2] for address in placement.masters}
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        is_own = uids is not None and uids.real == os.getuid()
        if is_own and _MASTER in words and _after(words, "--port") in ports:
            return _read(_after(words, "--properties-file"))
    return None


def _after(words: list[str], option: str) -> str | None:
    at = words.index(option) + 1 if option in words else len(words)
    return words[at] if at < len(words) else None


def _read(file: str | None) -> str | None:
    try:
        lines = Path(file or "").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(" ")[2] for line in lines if line.startswith(f"{SECRET} ")), None)
