"""A secret goes in at every place that takes one, and comes out nowhere: what is printed, logged, served, kept, dumped.

Every place has a canary of its own, so that a leak names its source. Looked for are the bytes themselves and what
base64 makes of them, wherever they may stand in a longer text.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml
from tests.cli.command import command
from tests.orders import order
from tests.receiver import receiving
from tests.services.running import PENSTOCK, Running, wait_for
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.config import InvalidDefinition
from penstock.devstack.processes import free_ports
from penstock.errors import PenstockError
from penstock.spark.cache import cache_home
from penstock.spark.jars import jar_folder
from penstock.spark.java import find_java
from penstock.spark.session import spark_home

pytestmark = pytest.mark.services
Write = Callable[..., Path]
PLACES = ("DB", "SASL", "KEY", "SALT", "HOOK", "HEADER", "S3", "SPARK", "STORE", "TOKEN")


class Canaries:
    """The secrets, and where they were seen."""

    def __init__(self) -> None:
        self.secrets = {place: f"canary{place.lower()}{secrets.token_hex(8)}" for place in PLACES}
        self.seen: set[str] = set()

    def look(self, where: str, content: bytes | str) -> None:
        """Look into some bytes."""
        body = content.encode(errors="replace") if isinstance(content, str) else content
        for place, secret in self.secrets.items():
            for at in (body.find(sign) for sign in self._signs(secret)):
                if at >= 0:
                    self.seen.add(f"{place} in {where}, behind {body[max(0, at - 200) : at]!r}")

    def look_below(self, folder: Path, *, but: frozenset[Path] = frozenset()) -> int:
        """Look into every file below a folder; how many there were."""
        count = 0
        for file in folder.rglob("*"):
            if file.is_file() and file not in but:
                count += 1
                self.look(str(file.relative_to(folder)), file.read_bytes())
        return count

    @staticmethod
    def _signs(secret: str) -> Iterator[bytes]:
        yield secret.encode()
        for before in range(3):
            # Without the ends, which depend on what stands beside it.
            yield base64.b64encode(b"x" * before + secret.encode())[4:-4]


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    found = Canaries()
    for place, secret in found.secrets.items():
        monkeypatch.setenv(f"CANARY_{place}", secret)
    return found


@pytest.fixture
def guarded(
    pipeline_file: Write,
    topics: Any,
    postgres: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    canaries: Canaries,
) -> Iterator[tuple[Path, int]]:
    """A pipeline with a secret wherever one can be, and the port of Spark's UI."""
    secret = canaries.secrets["DB"]
    postgres.execute(f"CREATE ROLE canary LOGIN SUPERUSER PASSWORD '{secret}'")
    monkeypatch.setenv("CANARY_DB_URL", postgres.url(user="canary", password=secret))
    topic = topics.create(2)
    topics.send(topic, [*(order(number) for number in range(20)), b"not json"])
    [ui] = free_ports(1)
    with receiving() as receiver:
        monkeypatch.setenv("CANARY_HOOK_URL", f"http://127.0.0.1:{receiver.port}/{canaries.secrets['HOOK']}")
        yield (
            pipeline_file(
                topic,
                "canary",
                source={
                    "options": {
                        "sasl.mechanism": "PLAIN",
                        "sasl.username": "user",
                        "sasl.password": "${env:CANARY_SASL}",
                        "ssl.key.password": "${env:CANARY_KEY}",
                    }
                },
                transforms=[
                    {"mask": {"customer_id": {"hash": "${env:CANARY_SALT}"}}},
                    {"sql": "SELECT *, amount * 2 AS double FROM input"},
                ],
                sinks=[
                    {"name": "pg", "type": "postgres", "url": "${env:CANARY_DB_URL}", "table": "public.canary",
                     "create": True},
                    {"name": "lake", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["order_id"]},
                ],
                trigger={"every": "200 ms"},
                checkpoint="checkpoints/canary",
                metrics={"port": 0},
                storage={"access_key": "${env:CANARY_STORE}", "secret_key": "${env:CANARY_S3}"},
                alerts={
                    "rules": [{"name": "behind", "lag_over": 1_000_000}],
                    "webhook": {"url": "${env:CANARY_HOOK_URL}", "headers": {"Authorization": "${env:CANARY_HEADER}"}},
                },
                spark={
                    "spark.ui.enabled": True,
                    "spark.ui.port": ui,
                    "spark.eventLog.enabled": True,
                    "spark.eventLog.dir": f"file:{tmp_path}/events",
                    "spark.local.dir": f"{tmp_path}/local",
                    "spark.hadoop.fs.azure.account.key.x": "${env:CANARY_SPARK}",
                    "spark.hadoop.fs.s3a.encryption.key": "${env:CANARY_TOKEN}",
                },
            ),
            ui,
        )  # fmt: skip
    postgres.execute("DROP TABLE IF EXISTS public.canary")
    postgres.execute("DROP OWNED BY canary")
    postgres.execute("DROP ROLE canary")


@pytest.mark.long
def test_canary_secret_is_nowhere(
    guarded: tuple[Path, int], canaries: Canaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ui = guarded
    log = cache_home() / "logs" / "canary.log"
    log.unlink(missing_ok=True)
    (tmp_path / "events").mkdir()
    with Running(tmp_path, "--debug", "run", str(file), "--dashboard") as running:
        wait_for(lambda: "quarantined" in running.printed or running.process.poll() is not None, "a batch", 120)
        assert running.process.poll() is None, running.complained
        for process in running.look_around():
            with suppress(psutil.NoSuchProcess):
                canaries.look(f"the command line of {process.name()}", " ".join(process.cmdline()))
        for path, body in _spark_ui(ui):
            canaries.look(f"Spark's UI, {path}", body)
        for path, body in _served(running.complained, file):
            canaries.look(path, body)
        for command in COMMANDS.splitlines():
            canaries.look(f"penstock {command}", _told_by(*command.replace("{}", str(file)).split()))
        # What a JVM leaves behind that falls over.
        [java] = [process for process in running.look_around() if process.is_running() and "java" in process.name()]
        os.kill(java.pid, signal.SIGSEGV)
        running.process.wait(60)
        canaries.look("what the run printed", running.printed + running.complained)
    assert list(tmp_path.glob("hs_err*.log")), "the JVM told of its end"
    assert list((tmp_path / "events").rglob("*events*")) or list((tmp_path / "events").iterdir())
    assert canaries.look_below(tmp_path) > 20
    canaries.look("Spark's log", log.read_bytes() if log.exists() else b"")
    assert canaries.seen == set()


APP = """\
import faulthandler
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from penstock.config import load
from penstock.assembly.reaching import spark_settings_of
from penstock.spark.session import start_session, stop_session

faulthandler.dump_traceback_later(500)  # If it hangs, the test says where.
session = start_session("canary", spark_settings_of(load(Path(sys.argv[1]))), log=Path(sys.argv[2]))
assert session.range(100).repartition(2).count() == 100
held = session.sparkContext._jsc.hadoopConfiguration()
assert held.get("fs.azure.account.key.x").startswith("canary"), "the client that needs it has it"
assert session.sparkContext.getConf().get("spark.authenticate") == "true"
processes = [psutil.Process(), *psutil.Process().parents(), *psutil.Process().children(recursive=True)]
words = []
for one in processes:
    with suppress(psutil.NoSuchProcess):  # It has ended since: no command line to read.
        words.append(" ".join(one.cmdline()))
assert any("java" in one for one in words)
Path(sys.argv[3]).write_text("\\n".join(words))
stop_session(session)
"""


@pytest.mark.parametrize("started", ["here", pytest.param("by spark-submit", marks=pytest.mark.long)])
def test_canary_secret_of_spark_is_nowhere_however_it_is_started(
    started: str, canaries: Canaries, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    file, app = tmp_path / "canary.yaml", tmp_path / "app.py"
    app.write_text(APP)
    settings = {
        "spark.master": "local[2]",
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": f"file:{tmp_path}/events",
        "spark.hadoop.fs.azure.account.key.x": "${env:CANARY_SPARK}",
        "spark.hadoop.fs.s3a.encryption.key": "${env:CANARY_STORE}",
        "spark.hadoop.fs.shop.opening": "${env:CANARY_KEY}",
        "spark.sql.shop.opening": "${env:CANARY_SALT}",
        # As on a machine with much to do, where Spark would log events that take long, settings and all.
        "spark.scheduler.listenerbus.logSlowEvent.threshold": "1us",
    }
    file.write_text(
        yaml.safe_dump(
            {
                "name": "canary",
                "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
                "decode": {"format": "json", "schema": "id BIGINT"},
                "sinks": [{"name": "out", "type": "delta", "path": "lake"}],
                "checkpoint": "checkpoint",
                "spark": settings,
            }
        )
    )
    command, environment = [sys.executable], dict(os.environ)
    if started == "by spark-submit":
        jars = ",".join(str(jar) for jar in jar_folder("spark").glob("*.jar") if re.search("kafka|pool", jar.name))
        command = [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", "--verbose", "--jars", jars]
        environment |= {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home)}
    words = [str(app), str(file), str(tmp_path / "spark.log"), str(tmp_path / "command-lines")]
    printed = printed_by([*command, *words], environment)
    canaries.look("what was printed", printed)
    assert list((tmp_path / "events").iterdir()) and (tmp_path / "command-lines").exists()
    canaries.look_below(tmp_path)
    assert canaries.seen == set()


def printed_by(words: list[str], environment: dict[str, str]) -> str:
    """What a command prints that has to end well; one that hangs shows the stacks of its JVM."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, env=environment, start_new_session=True, **pipe)
    try:
        printed, _ = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        for one in (own := psutil.Process(process.pid), *own.children(recursive=True)):
            if "java" in one.name():
                one.send_signal(signal.SIGQUIT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        pytest.fail(f"it hangs: {printed[-60_000:]}", pytrace=False)
    assert process.returncode == 0, printed
    return str(printed)


def test_canary_secret_is_in_no_error(
    guarded: tuple[Path, int], canaries: Canaries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres: Any
) -> None:
    file, _ = guarded
    wrong = canaries.secrets["TOKEN"]
    urls = (
        postgres.url(user="canary", password=wrong),
        postgres.url(user="canary", password=wrong).replace("127.0.0.1", "no-such-host.invalid"),
        f"postgresql://canary:{wrong}@127.0.0.1:1/x",
        f"nonsense {wrong}",
    )
    for url in urls:
        monkeypatch.setenv("CANARY_DB_URL", url)
        for words in (["--debug", "plan", str(file)], ["--debug", "status", str(file)]):
            canaries.look(f"penstock {words[-2]} with {url.partition(wrong)[0]}", _told_by(*words))
        # It ends before it starts Spark.
        ended = command("run", str(file), folder=tmp_path)
        assert ended.returncode == 3 and "Traceback" not in ended.stderr, ended.stderr
        canaries.look(f"penstock run with {url.partition(wrong)[0]}", ended.stdout + ended.stderr)
    monkeypatch.setenv("CANARY_HOOK_URL", f"ftp://{wrong}")
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert isinstance(done.exception, InvalidDefinition)
    canaries.look("penstock validate", f"{done.output}{done.exception}")
    assert canaries.seen == set()


COMMANDS = """\
validate {}
validate {} --json
plan {}
plan {} --json
--debug plan {}
status {}
status {} --json
lag {}
lag {} --json
diagnose {}
diagnose {} --json
gaps {}
simulate {} --rate 1000
simulate {} --rate 1000 --json
checkpoint show {}
checkpoint show {} --json
checkpoint verify {}
checkpoint backup {}
quarantine list {}
quarantine list {} --json
metrics show {}
metrics show {} --json
preview {} --limit 3
compact {} --dry-run
stop {} --dry-run
"""


def _told_by(*words: str) -> str:
    """What a command says, and the error that it ends with. Those that have a Spark of their own are processes."""
    if {"preview", "run"} & set(words):
        done = subprocess.run([PENSTOCK, *words], capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr or "--debug" in words, done.stderr
        return done.stdout + done.stderr
    answer = CliRunner().invoke(app, list(words))
    assert answer.exception is None or isinstance(answer.exception, SystemExit | PenstockError), (words, answer)
    return f"{answer.output}{answer.exception}{answer.exc_info}"


def _spark_ui(port: int) -> Iterator[tuple[str, bytes]]:
    base = f"http://127.0.0.1:{port}"
    [application] = requests.get(f"{base}/api/v1/applications", timeout=10).json()
    api = f"/api/v1/applications/{application['id']}"
    paths = ["/environment/", "/jobs/", "/stages/", "/storage/", "/executors/", "/SQL/", "/StreamingQuery/"]
    paths += [f"{api}/{part}" for part in ("environment", "jobs", "stages", "executors", "streaming/statistics")]
    paths += [f"{api}/sql?details=true&planDescription=true&length=1000"]
    for path in paths:
        yield path, requests.get(base + path, timeout=20).content
    for execution in requests.get(f"{base}{api}/sql?details=false&length=8", timeout=20).json():
        path = f"/SQL/execution/?id={execution['id']}"
        yield path, requests.get(base + path, timeout=20).content


def _served(told: str, file: Path) -> Iterator[tuple[str, bytes]]:
    """What the dashboard and the metrics endpoint of the run answer."""
    [link] = [word for word in told.split() if "?token=" in word]
    base, _, token = link.partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    for path in ("/", "/api/overview", f"/api/pipelines/{file.stem}"):
        yield f"the dashboard, {path}", requests.get(base + path, headers=headers, timeout=20).content
    wait_for(lambda: requests.get(f"{base}/api/pipelines/{file.stem}", headers=headers, timeout=20).ok, "the details")
    yield (
        "the dashboard, details",
        requests.get(f"{base}/api/pipelines/{file.stem}", headers=headers, timeout=20).content,
    )
    [metrics] = {word for word in told.split() if word.endswith("/metrics")}
    yield "metrics", requests.get(metrics, timeout=20).content
