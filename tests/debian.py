"""Programs of other packages that tests need. Tests install nothing: where one is missing, they say how to install it.

On a CI server (`CI` is set) a missing program fails the test, so that nothing is left out there unnoticed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def program(*names: str, package: str) -> Path:
    """The path of a program that has one of these names; `package` is the Debian package that holds it."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        skip_for(f"{names[0]} is not installed", f"apt-get install --no-install-recommends {package}")
    return Path(found)


def skip_for(missing: str, command: str) -> NoReturn:
    """Skip the test that runs now, and say which command would let it run."""
    reason = f"{missing}; install it: {command}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
