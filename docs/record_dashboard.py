"""Takes the pictures of the dashboard in docs/images: `python docs/record_dashboard.py [FOLDER]`, about five minutes.

Nothing is made up: a broker, four pipelines (two run, one has failed, one was stopped), orders at a steady rate and a
burst of them that is not spread evenly, `penstock dashboard`, and Chromium. The pictures are taken while the burst is
being worked off.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.devstack import DevStack
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

IMAGES = Path(__file__).parent / "images"
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
TOPICS = {"orders": 12, "payments": 6, "returns": 4, "shipments": 4, "orders.clean": 12, "alerts": 1}
SCHEMA = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP"
HOT = 6
STEADY, BURST = 4_000, 100_000
"""Orders a second."""
CALM_SECONDS, BURST_SECONDS = 100, 35
TICK = 0.05
WIDE: Any = {"width": 1280, "height": 1400}
FLAT: Any = {"width": 1280, "height": 400}
NARROW: Any = {"width": 390, "height": 844}
BAD = (
    b'{"order_id": 81, "amount": 12.',
    b'{"order_id": 82, "customer_id": "c-07", "amount": "twelve"}',
    b'{"customer_id": "c-19", "amount": 3.5}',
    None,
)


def record(images: Path) -> None:
    """Everything, from an empty folder to the pictures."""
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        folder = Path(place) / "shop"
        folder.mkdir()
        stack = held.enter_context(
            DevStack(Path(place) / "dev", java=find_java().executable, classpath=broker_classpath(), brokers=1)
        )
        admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
        made = admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()])
        for future in made.values():
            future.result(30)
        files = _write_pipelines(folder, stack.bootstrap)
        _send(stack.bootstrap, "returns", 5_000)
        _send(stack.bootstrap, "shipments", 5_000, bad=3)
        for name in ("returns", "shipments"):
            subprocess.run([PENSTOCK, "run", f"{name}.yaml", "--available-now"], cwd=folder, capture_output=True)
        _send(stack.bootstrap, "returns", 740)
        for name in ("orders", "payments"):
            held.enter_context(_running(folder, "run", f"{name}.yaml", "--log-format", "json"))
        sending = multiprocessing.get_context("spawn").Process(
            target=keep_sending, args=(stack.bootstrap,), daemon=True
        )
        sending.start()
        held.callback(sending.terminate)
        with _running(
            folder, "dashboard", *(file.name for file in files), "--json", "--no-open", "--port", "0"
        ) as shown:
            assert shown.stdout is not None
            _photograph(json.loads(shown.stdout.readline()), images)


def _write_pipelines(folder: Path, brokers: str) -> list[Path]:
    def pipeline(name: str, **keys: Any) -> Path:
        body = {
            "name": name,
            "source": {"type": "kafka", "brokers": brokers, "topics": [name], "start": "earliest"},
            "decode": {"format": "json", "schema": SCHEMA},
            "quarantine": {"table": f"lake/{name}_quarantine"},
            "sinks": [{"name": "lake", "type": "delta", "path": f"lake/{name}"}],
            "checkpoint": f"checkpoints/{name}",
            "trigger": {"every": "2 seconds"},
            **keys,
        }
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({key: value for key, value in body.items() if value is not None}))
        return file

    steps = [
        {"where": "amount >= 0"},
        {"derive": {"event_date": "date(event_time)"}},
        {"dedupe": {"keys": ["order_id"]}},
    ]
    return [
        pipeline(
            "orders",
            transforms=steps,
            sinks=[
                {"name": "lake", "type": "delta", "path": "lake/orders", "partition_by": ["event_date"]},
                {"name": "clean", "type": "kafka", "topic": "orders.clean", "key": "order_id"},
            ],
            maintenance={"every": "1 hour"},
            flow={"target_batch": "8 seconds", "max_batch": "30 seconds"},
            alerts={"topic": "alerts", "rules": [{"lag_over": 500_000, "for": "10 seconds"}]},
        ),
        pipeline("payments"),
        pipeline("returns"),
        pipeline("shipments", quarantine=None),
    ]


@contextmanager
def _running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with (folder.parent / f"{words[1]}.log").open("w") as log:
        out = subprocess.PIPE if "--json" in words else log
        process = subprocess.Popen([PENSTOCK, *words], cwd=folder, stdout=out, stderr=log, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _order(number: int) -> bytes:
    return b'{"order_id": %d, "customer_id": "c-%02d", "amount": %.2f, "event_time": "2026-11-%02dT%02d:00:00Z"}' % (
        number,
        number % 97,
        number % 4_000 / 10 - 0.1,
        1 + number // 24 % 3,
        number % 24,
    )


def _send(brokers: str, topic: str, many: int, bad: int = 0) -> None:
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for number in range(many):
        producer.produce(
            topic, BAD[number % 3] if number >= many - bad else _order(number), partition=number % TOPICS[topic]
        )
    producer.flush(30)


def keep_sending(brokers: str) -> None:
    """Orders and payments until the end; a burst of orders after a while, a third of it into one partition."""
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 20, "log_level": 0, "queue.buffering.max.messages": 1_000_000}
    )
    chance, number, began = random.Random(7), 0, time.monotonic()
    while True:
        passed = time.monotonic() - began
        bursting = CALM_SECONDS <= passed < CALM_SECONDS + BURST_SECONDS
        for _ in range(int((BURST if bursting else STEADY) * TICK)):
            number += 1
            to = HOT if bursting and chance.random() < 0.3 else number % TOPICS["orders"]
            bad = chance.random() < 0.004
            producer.produce("orders", BAD[number % 4] if bad else _order(number), partition=to)
        for _ in range(20):
            number += 1
            producer.produce("payments", _order(number), partition=number % TOPICS["payments"])
        producer.poll(0)
        while len(producer) > 500_000:
            producer.poll(0.1)
        time.sleep(max(0.0, TICK - (time.monotonic() - began - passed)))


def _photograph(told: dict[str, Any], images: Path) -> None:
    from playwright.sync_api import sync_playwright

    def ask() -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{told['port']}/api/pipelines/orders",
            headers={"Authorization": f"Bearer {told['token']}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    most = 0

    def burst_is_worked_off() -> bool:
        nonlocal most
        found = ask()
        if found["state"] != "running":
            raise SystemExit(f"orders is {found['state']}: {found['problem']}")
        lag = found["lag"] or 0
        most = max(most, lag)
        print(f"batch {found['batch_id']}, lag {lag:,}, at most {most:,}", flush=True)
        return most > 500_000 and lag < 0.9 * most

    _wait(lambda: ask()["state"] == "running", 120)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=WIDE, device_scale_factor=1.1, color_scheme="light", locale="en-GB")
        page.goto(told["url"] + "#/p/orders")
        _wait(burst_is_worked_off, 300)
        # Down to the end of the batches: a panel that is cut through looks like a mistake.
        foot = page.evaluate("document.getElementById('batches').getBoundingClientRect().bottom + scrollY + 14")
        page.set_viewport_size({"width": WIDE["width"], "height": int(foot)})
        page.screenshot(path=images / "dashboard.png")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=images / "dashboard-dark.png")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(NARROW)
        page.screenshot(path=images / "dashboard-phone.png")
        page.set_viewport_size(FLAT)
        page.goto(told["url"])
        page.locator("tbody tr").nth(3).wait_for()
        page.screenshot(path=images / "dashboard-overview.png")
        browser.close()


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:.0f} s in vain")
        time.sleep(2)


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
