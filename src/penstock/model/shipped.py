"""The user's own Python where executors do not see the driver's disk: how it is named among what is sent to them."""

from __future__ import annotations

import hashlib

CODE = "PENSTOCK_CODE"
"""The environment variable of a task with the folder of the shipped code."""


def code_name(folder: str) -> str:
    """The name of a folder's code among what is sent; it goes by the path alone, which only the driver has."""
    return hashlib.sha256(folder.encode()).hexdigest()[:16]
