"""What has to hold of every registry that a file names, whoever uses it."""

from __future__ import annotations

from penstock.config.parts import Parts
from penstock.config.yaml_source import value_at


def check_registries(parts: Parts) -> None:
    """Report settings of registries that need or exclude each other."""
    for path in list(parts.file.positions.keys):
        given = value_at(parts.file.data, path)
        if path[-1] != "registry" or not isinstance(given, dict):
            continue
        user = next((key for key in ("username", "password") if key in given), None)
        if "token" in given and user is not None:
            message = f"a token is shown instead of a user and password, and {user} is there too"
            parts.report((*path, "token"), message, hint=f"remove token or {user}", at_key=True)
        for key, needed in (("password", "username"), ("key_file", "certificate_file")):
            if key in given and needed not in given:
                message = f"{key} means nothing without {needed}"
                parts.report((*path, key), message, hint=f"add {needed}", at_key=True)
