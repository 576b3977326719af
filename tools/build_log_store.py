"""Writes `conditional-log-store.jar` from the Java source in `src/penstock/spark/stores`, with a JDK's `javac`.

`python tools/build_log_store.py CLASSPATH`. Only needed when the source is changed. The jar holds the source too, and a
test compares the two.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parents[1] / "src" / "penstock" / "spark" / "stores"
SOURCE = HERE / "ConditionalLogStore.java"
JAR = HERE / "conditional-log-store.jar"
_PACKAGE = "io/penstock/storage"


def build(classpath: str) -> None:
    """Compile and pack, with the same bytes for the same source and compiler."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["javac", "--release", "17", "-cp", classpath, "-d", folder, str(SOURCE)], check=True)
        made = sorted(path for path in Path(folder).rglob("*.class"))
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            parts = {str(path.relative_to(folder)): path.read_bytes() for path in made}
            parts[f"{_PACKAGE}/{SOURCE.name}"] = SOURCE.read_bytes()
            for name, body in {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n", **parts}.items():
                jar.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    build(sys.argv[1])
