"""Known vulnerabilities of what is locked: `requirements.lock` and `src/penstock/spark/jars.xml`, asked of OSV.

Prints a line for each advisory that is not accepted below. One about a Python package gives exit code 1; one about a
jar is only told, since Spark and Hadoop decide which versions of their libraries work together.
Without a way to https://api.osv.dev it says so and exits 0: a build without network is no worse for it.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
OSV = "https://api.osv.dev/v1/querybatch"
SECONDS = 20.0
ACCEPTED: dict[str, str] = {}
"""Advisories that are known and do not concern Penstock, each with the reason."""


def locked_packages(text: str) -> list[dict[str, object]]:
    """The packages of a requirements file as queries."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    return [{"package": {"ecosystem": "PyPI", "name": name}, "version": version} for name, version in found]


def locked_jars(xml: str) -> list[dict[str, object]]:
    """The jars of the descriptor as queries."""
    jars = [one.attrib for one in ElementTree.fromstring(xml).iter("dependency")]
    named = dict.fromkeys((f"{jar['org']}:{jar['name']}", jar["rev"]) for jar in jars)
    return [{"package": {"ecosystem": "Maven", "name": name}, "version": version} for name, version in named]


def ask(queries: list[dict[str, object]]) -> list[str]:
    """What OSV knows: a line for each advisory."""
    request = urllib.request.Request(OSV, json.dumps({"queries": queries}).encode())
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        results = json.load(answer)["results"]
    lines = []
    for query, result in zip(queries, results, strict=True):
        package = query["package"]
        assert isinstance(package, dict)
        ids = [one["id"] for one in result.get("vulns", ()) if one["id"] not in ACCEPTED]
        lines += [f"{package['name']} {query['version']}: https://osv.dev/vulnerability/{one}" for one in ids]
    return lines


def main() -> int:
    """Ask, and say what was found."""
    packages = locked_packages((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    jars = locked_jars((ROOT / "src/penstock/spark/jars.xml").read_text(encoding="utf-8"))
    try:
        of_packages, of_jars = ask(packages), ask(jars)
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        print(f"audit of the locks skipped: {OSV} does not answer ({error})")
        return 0
    for line in of_packages + of_jars:
        print(line)
    print(f"audit of {len(packages)} packages: {len(of_packages)} advisories; of {len(jars)} jars: {len(of_jars)}")
    return 1 if of_packages else 0


if __name__ == "__main__":
    sys.exit(main())
