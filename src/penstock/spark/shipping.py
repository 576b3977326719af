"""What executors are sent that do not see this machine's disk: Python packages, and the user's own Python.

Both go as archives that Spark unpacks in each executor's working folder. The packages come first on the path of the
workers; where the user's Python is, they are told by an environment variable, and `transforms.user` looks there first.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import MissingError
from penstock.model.shipped import CODE, code_name
from penstock.spark.cache import cache_home
from penstock.spark.environment import Progress, pack_environment
from penstock.spark.placement import Placement

PACKAGES = "penstock_packages"
_CODE = "penstock_code"
_ENDINGS = (".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".csv", ".sql", ".avsc", ".proto")
_LARGEST_BYTES = 1024 * 1024
_MOST_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shipping:
    """What is to be sent."""

    packed: bool = True
    """Whether the packages go along; else executors have them."""
    forced: bool = False
    """Whether they go along to executors on this machine as well."""
    python: str | None = None
    packages: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    """Where the user's own Python is."""
    without: frozenset[str] = field(default=frozenset(), repr=False)
    """Places in these folders that are data."""

    def applies(self, placement: Placement) -> bool:
        """Whether the executors are sent anything: not where they find all of it on their own disk."""
        return not placement.is_local and (self.forced or not placement.shares_disk)

    def together(self, other: Shipping) -> Shipping:
        """What two pipelines need that share an application."""
        return Shipping(
            self.packed or other.packed,
            self.forced or other.forced,
            self.python or other.python,
            tuple(dict.fromkeys((*self.packages, *other.packages))),
            tuple(dict.fromkeys((*self.folders, *other.folders))),
            self.without | other.without,
        )

    @property
    def interpreter(self) -> str:
        """The Python of the executors."""
        return self.python or f"python3.{sys.version_info.minor}"

    def settings(self, progress: Progress = lambda done, of: None) -> dict[str, str]:
        """The settings by which Spark sends it."""
        archives, found = [], {}
        if self.packed:
            archives.append(f"{pack_environment(self.packages, self.folders, progress)}#{PACKAGES}")
            found["spark.executorEnv.PYTHONPATH"] = PACKAGES
        if self.folders:
            archives.append(f"{pack_code(self.folders, self.without)}#{_CODE}")
            found[f"spark.executorEnv.{CODE}"] = _CODE
        return {**found, "spark.archives": ",".join(archives)} if archives else found


def pack_code(folders: Sequence[Path], without: frozenset[str]) -> Path:
    """A zip of the Python in some folders, and of small files beside it, named by what is in it."""
    files = {
        f"{code_name(str(folder))}/{name}": folder / name for folder in folders for name in code_in(folder, without)
    }
    seal = hashlib.sha256()
    for name, file in sorted(files.items()):
        seal.update(name.encode() + b"\0" + file.read_bytes())
    target = cache_home() / "environments" / f"code-{seal.hexdigest()[:16]}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f"{target.name}.{os.getpid()}")
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in sorted(files.items()):
                archive.write(file, name)
        aside.replace(target)
    return target


def code_in(folder: Path, without: frozenset[str] = frozenset()) -> list[str]:
    """The Python of a folder and small texts beside it; no data, no environments, nothing hidden."""
    found, size = [], 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if _is_code(Path(place) / one, without))
        for name in sorted(names):
            file = Path(place) / name
            if name.endswith(_ENDINGS) and not name.startswith(".") and file.stat().st_size <= _LARGEST_BYTES:
                found.append(str(file.relative_to(folder)))
                size += file.stat().st_size
        if size > _MOST_BYTES:
            raise MissingError(
                "CODE_TOO_LARGE",
                f"packing the Python beside the pipeline file: there is more than {_MOST_BYTES >> 20} MiB",
                context={"folder": folder},
                hint="give the pipeline a folder of its own, with its modules and nothing else",
            )
    return found


def _is_code(folder: Path, without: frozenset[str]) -> bool:
    hidden = folder.name.startswith((".", "__pycache__", "node_modules"))
    return not hidden and str(folder) not in without and not (folder / "pyvenv.cfg").exists()
