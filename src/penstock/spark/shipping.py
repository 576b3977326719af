"""What executors are sent that do not see this machine's disk: Python packages, and the user's own Python.

Of the user's folder goes what the pipeline's steps import and what the pipeline file lists, nothing else. Both go as
archives that Spark unpacks in each executor's working folder. The packages come first on the path of the workers; where
the user's Python is, they are told by an environment variable, and `transforms.user` looks there first.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingError
from penstock.model.shipped import CODE, code_name
from penstock.spark.cache import cache_home, private_file
from penstock.spark.environment import Progress, pack_environment
from penstock.spark.placement import Placement

PACKAGES = "penstock_packages"
_CODE = "penstock_code"
_MOST_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UserCode:
    """The user's own Python: a folder, and which files of it are sent, by their names below it."""

    folder: Path
    files: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where these files are."""
        return tuple(self.folder / name for name in self.files)


@dataclass(frozen=True, slots=True)
class Shipping:
    """What is to be sent."""

    packed: bool = True
    """Whether the packages go along; else executors have them."""
    forced: bool = False
    """Whether they go along to executors on this machine as well."""
    python: str | None = None
    packages: tuple[str, ...] = ()
    code: tuple[UserCode, ...] = ()

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
            tuple(dict.fromkeys((*self.code, *other.code))),
        )

    @property
    def interpreter(self) -> str:
        """The Python of the executors."""
        return self.python or f"python3.{sys.version_info.minor}"

    def pack_environment(self, progress: Progress = lambda done, of: None) -> Path:
        """The archive of the packages."""
        return pack_environment(self.packages, [path for one in self.code for path in one.paths], progress)

    def settings(self, progress: Progress = lambda done, of: None) -> dict[str, str]:
        """The settings by which Spark sends it."""
        archives, found = [], {}
        if self.packed:
            archives.append(f"{self.pack_environment(progress)}#{PACKAGES}")
            found["spark.executorEnv.PYTHONPATH"] = PACKAGES
        if self.code:
            archives.append(f"{pack_code(self.code)}#{_CODE}")
            found[f"spark.executorEnv.{CODE}"] = _CODE
        return {**found, "spark.archives": ",".join(archives)} if archives else found


def pack_code(code: Sequence[UserCode]) -> Path:
    """A zip of the user's own Python that its owner alone can read, named by what is in it."""
    files = {f"{code_name(str(one.folder))}/{name}": one.folder / name for one in code for name in one.files}
    contents = {name: file.read_bytes() for name, file in sorted(files.items())}
    size = sum(map(len, contents.values()))
    if size > _MOST_BYTES:
        raise MissingError(
            "CODE_TOO_LARGE",
            f"packing the pipeline's own Python: there is more than {_MOST_BYTES >> 20} MiB",
            context={"files": len(contents), "bytes": f"{size:,}"},
            hint="put what is large into a package or a table, or take it out of cluster.extra_files",
        )
    seal = hashlib.sha256()
    for name, content in contents.items():
        seal.update(name.encode() + b"\0" + content)
    target = cache_home() / "environments" / f"code-{seal.hexdigest()[:16]}.zip"
    if not target.exists():
        with private_file(target) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    return target
