"""The additional jars of Spark, the class path of the broker and the schema registry, fetched once and kept.

In: `jars.xml`, which pins every jar by its version, and `jars.sha256`, which pins its bytes. Out: one folder of jars
per configuration, named by the hash of the descriptor, so that versions of Penstock do not mix them up. A folder
appears atomically, with its archives unpacked; once it exists nothing is fetched and no JVM starts. Only pinned jars
with the pinned bytes are used: they are compared when they are fetched, and again if a file of the folder has changed.
`python -m penstock.spark.jars` fetches what every user needs; the schema registry is fetched when one is first started.
With `--into FOLDER` it puts Spark's jars into a folder, for an image.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.etree import ElementTree

from penstock.errors import MissingError, PenstockError
from penstock.spark.cache import cache_home, link_or_copy, private_file
from penstock.spark.java import find_java

_DESCRIPTOR = Path(__file__).with_name("jars.xml")
_HASHES = Path(__file__).with_name("jars.sha256")
_STAMP = ".verified"
_LOG_STORE = Path(__file__).with_name("stores") / "conditional-log-store.jar"
_SETTINGS = Path(__file__).with_name("ivysettings.xml")
_ASIDE = "fetch-"
_CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"
_ARCHIVE = ".tar.gz"
# Large, or only for tests.
_ON_DEMAND = ("registry", "postgres", "bench", "s3", "hdfs")
_STORES = ("s3",)
_MACHINE_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")


def spark_jars(*stores: str) -> list[Path]:
    """The jars that Spark needs besides its own: the Kafka source, Delta and Iceberg, and those of object stores."""
    own = [_LOG_STORE] if "s3" in stores else []
    return sorted([*own, *(jar for conf in ("spark", *stores) for jar in jar_folder(conf).glob("*.jar"))])


def stores_of(settings: Mapping[str, str]) -> list[str]:
    """The object stores that settings of Spark use, if there are jars for them."""
    return list(_STORES) if "spark.hadoop.fs.s3.impl" in settings else []


def broker_classpath() -> str:
    """The whole class path of a Kafka broker."""
    return str(jar_folder("broker") / "*")


def registry_jar() -> Path:
    """The jar that runs the schema registry; its dependencies are in the same folder."""
    [runner] = jar_folder("registry").glob("*/*-runner.jar")
    return runner


def jar_folder(conf: str) -> Path:
    """The folder with the jars of `conf`, fetched now if they are missing."""
    _ensure([conf])
    _verify(_folder(conf))
    return _folder(conf)


def pinned_jars() -> dict[str, list[str]]:
    """The file names of every configuration's jars, as the descriptor pins them; of an archive, those of its folder."""
    root = ElementTree.fromstring(_DESCRIPTOR.read_bytes())
    jars: dict[str, list[str]] = {conf.attrib["name"]: [] for conf in root.iter("conf")}
    for dependency in root.iter("dependency"):
        conf = dependency.attrib["conf"].partition("->")[0]
        name = f"{dependency.attrib['name']}-{dependency.attrib['rev']}"
        archive = dependency.find("artifact")
        jars[conf].append(f"{name}.jar" if archive is None else f"{name}-{archive.attrib[_CLASSIFIER]}")
    return jars


def put_jars(folder: Path, stores: Sequence[str] = ()) -> None:
    """Put every additional jar of Spark into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for jar in spark_jars(*stores):
        link_or_copy(jar, folder / jar.name)


def main(words: Sequence[str] = ()) -> int:
    """Fetch whatever is missing, for `make install`; or fill a folder, for an image."""
    parser = argparse.ArgumentParser("python -m penstock.spark.jars", description="Fetch the jars that are missing.")
    parser.add_argument("--into", metavar="FOLDER", type=Path, help="put those that Spark needs into a folder")
    parser.add_argument("--store", action="append", choices=_STORES, default=[], help="with those of an object store")
    asked = parser.parse_args(words)
    try:
        if asked.into is not None:
            put_jars(asked.into, asked.store)
        else:
            _ensure([conf for conf in pinned_jars() if conf not in _ON_DEMAND])
    except PenstockError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _folder(conf: str) -> Path:
    version = hashlib.sha256(_DESCRIPTOR.read_bytes()).hexdigest()[:16]
    return cache_home() / "jars" / version / conf


def _missing(confs: Sequence[str], pinned: dict[str, list[str]]) -> list[str]:
    return [conf for conf in confs if not all((_folder(conf) / jar).exists() for jar in pinned[conf])]


def _ensure(confs: Sequence[str]) -> None:
    pinned = pinned_jars()
    if not _missing(confs, pinned):
        return
    with _lock(cache_home() / "jars.lock"):
        # Another process may have fetched them while this one waited.
        if missing := _missing(confs, pinned):
            _remove_leftovers()
            _fetch(missing, sum(len(pinned[conf]) for conf in missing))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_leftovers() -> None:
    """Remove what killed fetches left behind; no other process fetches while the lock is held."""
    for aside in cache_home().glob(f"{_ASIDE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def _fetch(confs: Sequence[str], count: int) -> None:
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=cache_home()) as aside:
        _run_ivy(confs, count, Path(aside))
        for conf in confs:
            _compare(Path(aside) / conf, f"{cache_home() / 'ivy'}, where the next fetch would find it again")
        _unpack(Path(aside))
        for conf in confs:
            _stamp(Path(aside) / conf)
            folder = _folder(conf)
            # It only exists if someone removed a jar from it.
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            (Path(aside) / conf).rename(folder)


def pinned_hashes() -> dict[str, str]:
    """The SHA-256 of every file that the descriptor pins, by its name."""
    lines = (line.split() for line in _HASHES.read_text(encoding="ascii").splitlines())
    return {name: digest for digest, name in lines}


def _verify(folder: Path) -> None:
    """Raise if a file of the folder differs from the pinned one. Files are only read again if they changed."""
    try:
        known = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if known == _stats(folder):
        return
    if any(inner.is_dir() for inner in folder.iterdir()):
        # Unpacked archives are verified by their stamp; those of an earlier version have none yet.
        if known is not None:
            raise _differs(folder, "a file in it", folder)
    else:
        _compare(folder, folder)
    _stamp(folder)


def _compare(folder: Path, remove: object) -> None:
    pinned = pinned_hashes()
    for file in sorted(one for one in folder.iterdir() if not one.name.startswith(_STAMP)):
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != pinned.get(file.name):
                raise _differs(folder, file.name, remove)


def _differs(folder: Path, name: str, remove: object) -> MissingError:
    return MissingError(
        "JAR_NOT_AS_PINNED",
        f"checking the jars: {name} is not the one that this version of Penstock was built with",
        context={"folder": folder, "pinned in": _HASHES.name},
        hint=f"find out who changed it; then remove {remove}, and it is fetched again",
    )


def _stats(folder: Path) -> dict[str, list[int]]:
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(_STAMP):
                file = Path(place) / name
                stat = file.stat()
                found[str(file.relative_to(folder))] = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    return found


def _stamp(folder: Path) -> None:
    # Without a stamp, as in a read-only image, files are compared each time.
    stats = json.dumps(_stats(folder))
    with suppress(OSError), private_file(folder / _STAMP) as aside:
        aside.write_text(stats, encoding="utf-8")


def _unpack(target: Path) -> None:
    """Every archive into a folder of its name; Ivy's cache keeps the archive itself."""
    for archive in target.glob(f"*/*{_ARCHIVE}"):
        with tarfile.open(archive) as packed:
            packed.extractall(archive.with_name(archive.name.removesuffix(_ARCHIVE)), filter="data")
        archive.unlink()


def _run_ivy(confs: Sequence[str], count: int, target: Path) -> None:
    command = [
        str(find_java().executable),
        *_network_options(),
        # Ivy's cache survives an interrupted fetch, so the next one continues from there.
        f"-Dpenstock.ivy.cache={cache_home() / 'ivy'}",
        *("-cp", _ivy_classpath(), "org.apache.ivy.Main"),
        *("-settings", os.environ.get("PENSTOCK_IVY_SETTINGS") or str(_SETTINGS)),
        *("-ivy", str(_DESCRIPTOR), "-confs", *confs),
        *("-retrieve", f"{target}/[conf]/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    what = "the schema registry (140 MB)" if list(confs) == ["registry"] else f"{count} jars"
    log: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        try:
            assert ivy.stdout is not None
            _show(_arrivals(ivy.stdout, log), what, count)
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode != 0 or _short(target, confs):
        raise MissingError(
            "JARS_MISSING",
            f"fetching {what}: not everything arrived",
            context={"tried": _complaints(log), "wanted by": _DESCRIPTOR.name, "kept in": cache_home()},
            hint="check the network and run the same command again: it continues where it stopped\n"
            "to use a mirror, set PENSTOCK_IVY_SETTINGS to an Ivy settings file",
        )


def _short(target: Path, confs: Sequence[str]) -> bool:
    pinned = pinned_jars()
    return not all(any((target / conf).glob(f"{jar}*")) for conf in confs for jar in pinned[conf])


def _ivy_classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    return os.pathsep.join(str(jar) for name in ("ivy", "commons-cli") for jar in jars.glob(f"{name}-*.jar"))


def _network_options() -> list[str]:
    """The machine's certificates and proxies, which Java does not read by itself."""
    options = []
    if _MACHINE_CERTIFICATES.is_file():
        options.append(f"-Djavax.net.ssl.trustStore={_MACHINE_CERTIFICATES}")
    proxies = getproxies()
    for scheme in ("http", "https"):
        url = proxies.get(scheme, "")
        proxy = urlsplit(url if "//" in url else f"//{url}")
        if proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    if direct := [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]:
        hosts = "|".join(f"*{host}" if host.startswith(".") else host for host in direct)
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options


def _arrivals(lines: Iterator[str], log: list[str]) -> Iterator[str]:
    """The jars as they arrive; the output of Ivy goes into `log`."""
    for line in lines:
        log.append(line.strip())
        if "[SUCCESSFUL ]" in line:
            yield line.partition("#")[2].partition("!")[0].replace(";", " ")


def _complaints(log: Sequence[str]) -> str:
    relevant = [line for line in log if "Exception" in line or "not found" in line or "FAILED" in line]
    return "\n    ".join((relevant or list(log))[-5:])


def _show(arrivals: Iterator[str], what: str, count: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"fetching {what}, once", file=sys.stderr)
        for arrived, jar in enumerate(arrivals, start=1):
            if arrived % 10 == 0 or arrived == count:
                print(f"  {arrived} of {count}: {jar}", file=sys.stderr)
        return
    columns = (TextColumn(f"Fetching {what}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("", total=count)
        for jar in arrivals:
            progress.update(task, advance=1, description=jar)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
