"""Several pipelines in one Spark application: all exactly once, and what one does is no matter of the others."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.local_spark import LocalSession
from tests.open_clients import open_clients
from tests.orders import order
from tests.services.fleets import Sailing, code_of, ids_in, rows_in
from tests.services.running import wait_for
from tests.sessions import ON_BOTH_LONG

from penstock.config import InvalidDefinition
from penstock.config.operation import STATIC_SQL, is_of_application
from penstock.engine.listener import BatchDone, Retrying, Started
from penstock.supervision.fleet_events import Ended, FileChanged, FileRefused, Waiting

Write = Callable[..., Path]


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [order(number, customer_id=f"c{number}") for number in range(first, first + count)]


@pytest.fixture
def one_of(pipeline_file: Write, tmp_path: Path) -> Callable[..., Path]:
    """Writes the pipeline of a fleet: its own table, quarantine and checkpoint, without end."""

    def write(name: str, topic: str, **keys: Any) -> Path:
        own = {
            "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}", "mode": "append"}],
            "quarantine": {"table": f"lake/{name}_quarantine"},
            "checkpoint": f"checkpoints/{name}",
            "trigger": {"every": "100 ms"},
        }
        return pipeline_file(topic, name, **{**own, **keys})

    return write


def edit(file: Path, **keys: Any) -> None:
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **keys}, sort_keys=False))


def test_fleet_of_three_lanes_brings_every_record_once_each_in_its_own_pool(
    spark: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    names = ("direct", "frame", "merging")
    taken = {name: topics.create(2) for name in names}
    merging = {"name": "out", "type": "delta", "path": "lake/merging", "mode": "merge", "keys": ["order_id"]}
    # A frame and refused rows: both come back through accumulators, of which each pipeline has its own.
    small = {"rule": "order_id < 150", "action": "quarantine"}
    frame = [{"sql": "SELECT *, amount * 2 AS double FROM input"}, {"expect": {"small": small}}]
    files = [
        one_of("direct", taken["direct"]),
        one_of("frame", taken["frame"], transforms=frame),
        one_of("merging", taken["merging"], sinks=[merging], spark={"spark.sql.shuffle.partitions": 3}),
    ]
    with Sailing(spark, files) as fleet:
        fleet.await_started(*names)
        for first in range(0, 200, 50):
            for name in names:
                topics.send(taken[name], orders(50, first))
        for name in names:
            fleet.await_rows(name, 200)
        pools = set(_pools(spark))
    assert fleet.summary is not None and fleet.summary.exit_code == 0, fleet.summary
    assert ids_in(tmp_path / "lake/direct") == Counter(range(200))
    assert ids_in(tmp_path / "lake/merging") == Counter(range(200))
    assert ids_in(tmp_path / "lake/frame") == Counter(range(150))
    assert len(rows_in(tmp_path / "lake/frame_quarantine")) == 50
    assert {row["pipeline"] for row in rows_in(tmp_path / "lake/frame_quarantine")} == {"frame"}
    assert set(names) <= pools


def _pools(spark: Any) -> list[str]:
    """The pools of the stages that Spark remembers, as it tells them itself."""
    store = spark.sparkContext._jsc.sc().statusStore()
    stages = store.stageList(None, False, False, spark.sparkContext._gateway.new_array(spark._jvm.double, 0), None)
    return [stages.apply(number).schedulingPool() for number in range(stages.size())]


@ON_BOTH_LONG
def test_fleet_with_one_bad_sink_lets_the_others_go_on_and_it_catches_up_when_mended(
    session: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    good, bad = topics.create(1), topics.create(1)
    files = [one_of("good", good), one_of("bad", bad)]
    (tmp_path / "lake").mkdir()
    # Where its table should be is a file.
    (tmp_path / "lake/bad").write_text("in the way")
    topics.send(bad, orders(20))
    with Sailing(session, files, give_up=0.5) as fleet:
        fleet.await_started("good")
        told = fleet.await_told(Waiting, "bad", count=2)
        topics.send(good, orders(30))
        fleet.await_rows("good", 30)
        assert told.again and told.delay == 0.5
        assert not fleet.told(Waiting, "good") and not fleet.told(Retrying, "good")
        (tmp_path / "lake/bad").unlink()
        fleet.await_rows("bad", 20)
        clients, lines = open_clients(), hung_lines(session)
        for first in (20, 40):
            in_the_way(tmp_path / "lake/bad")
            before = len(fleet.told(Waiting, "bad"))
            topics.send(bad, orders(20, first))
            fleet.await_told(Waiting, "bad", count=before + 1)
            out_of_the_way(tmp_path / "lake/bad")
            fleet.await_rows("bad", first + 20)
        # A client that is asked once and closed may be there just now; one that was forgotten stays.
        wait_for(lambda: open_clients() <= clients, "the clients of runs that failed to be closed", 20)
        assert hung_lines(session) <= lines, "nor in the JVM"
    assert fleet.summary is not None and fleet.summary.exit_code == 0
    assert ids_in(tmp_path / "lake/good") == Counter(range(30))
    assert ids_in(tmp_path / "lake/bad") == Counter(range(60))


def in_the_way(table: Path) -> None:
    """A file where a table was."""
    table.rename(table.with_suffix(".aside"))
    table.write_text("in the way")


def out_of_the_way(table: Path) -> None:
    table.unlink()
    table.with_suffix(".aside").rename(table)


def hung_lines(session: Any) -> int:
    """On how many lines to Python the JVM holds on, though nobody is at the other end; none where there is no JVM."""
    if isinstance(session, LocalSession):
        return 0
    port = session.sparkContext._gateway.get_callback_server().get_listening_port()
    return sum(
        one.status == psutil.CONN_CLOSE_WAIT and one.raddr.port == port
        for one in psutil.net_connections("tcp")
        if one.raddr
    )


def test_fleet_with_one_in_back_off_within_its_run_lets_the_others_go_on(
    session: Any,
    topics: Any,
    one_of: Callable[..., Path],
    tmp_path: Path,
    postgres: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that goes away is met with the patience of that run alone."""
    taken = {name: topics.create(1) for name in ("plain", "stored")}
    monkeypatch.setenv("MANY_DB", postgres.url())
    sink = {"name": "pg", "type": "postgres", "url": "${env:MANY_DB}", "table": "public.many_orders", "create": True}
    stored = one_of("stored", taken["stored"], sinks=[sink])
    with Sailing(session, [one_of("plain", taken["plain"]), stored], give_up=120.0) as fleet:
        fleet.await_started("plain", "stored")
        topics.send(taken["stored"], orders(10))
        fleet.await_rows("stored", 10)
        postgres.kill()
        try:
            topics.send(taken["stored"], orders(10, 10))
            fleet.await_told(Retrying, "stored")
            topics.send(taken["plain"], orders(25))
            fleet.await_rows("plain", 25)
            assert not fleet.told(Retrying, "plain")
        finally:
            postgres.restart()
        fleet.await_rows("stored", 20)
    assert fleet.summary is not None and fleet.summary.exit_code == 0
    assert ids_in(tmp_path / "lake/plain") == Counter(range(25))


def test_fleet_that_watches_takes_up_files_that_are_added_changed_and_removed(
    session: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    first = one_of("first", topic)
    second = one_of("second", topic)
    folder, aside = tmp_path, tmp_path / "aside"
    aside.mkdir()
    waiting = second.rename(aside / "second.yaml")
    topics.send(topic, orders(10))
    with Sailing(session, [folder], watch=True) as fleet:
        fleet.await_rows("first", 10)
        # Added.
        shutil.copy(waiting, folder / "second.yaml")
        fleet.await_rows("second", 10)
        assert fleet.told(FileChanged, "second")[0].change == "added"
        # Changed, and wrong: the running one stays as it is.
        before = first.read_text()
        first.write_text(before.replace("delta", "dleta"))
        refused = fleet.await_told(FileRefused, "first")
        assert refused.running and "dleta" in str(refused.error)
        topics.send(topic, orders(10, 10))
        fleet.await_rows("first", 20)
        # Changed, and right: from the next batch on it is the new definition.
        first.write_text(before)
        edit(first, transforms=[{"where": "order_id >= 25"}])
        fleet.await_told(Started, "first", count=2)
        topics.send(topic, orders(10, 20))
        fleet.await_rows("first", 30)
        # A file that would take another's table is not started.
        third = one_of("third", topic, checkpoint="checkpoints/first")
        refused = fleet.await_told(FileRefused, str(third))
        assert not refused.running and "the checkpoint and the checkpoint of first are in the same place" in str(
            refused.error
        )
        third.unlink()
        # Removed.
        fleet.await_rows("second", 30)
        second.unlink()
        fleet.await_told(Ended, "second")
        wait_for(lambda: "second" not in {one.name for one in fleet.fleet.members.values()}, "second to be gone")
        assert "first" in {one.name for one in fleet.fleet.members.values()}
    assert ids_in(tmp_path / "lake/first") == Counter([*range(20), *range(25, 30)])
    assert fleet.summary is not None and fleet.summary.exit_code == 0
    carried = fleet.summary.carried
    assert (carried.rows_in, carried.rows_out) == (60, 55), "with what was carried before the change and the removal"


def test_fleet_that_watches_takes_up_a_changed_module_of_the_users_own(
    session: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    code = tmp_path / "steps.py"
    module = (
        "import pyarrow.compute as pc\n\n\ndef only(rows):\n    return rows.filter(pc.less(rows['order_id'], {most}))\n"
    )
    code.write_text(module.format(most=5))
    file = one_of("own", topic, transforms=[{"map_arrow": "steps.only"}])
    topics.send(topic, orders(10))
    with Sailing(session, [file], watch=True) as fleet:
        fleet.await_rows("own", 10)
        code.write_text(module.format(most=15))
        fleet.await_told(Started, "own", count=2)
        topics.send(topic, orders(10, 10))
        fleet.await_rows("own", 20)
    assert ids_in(tmp_path / "lake/own") == Counter([*range(5), *range(10, 15)])


def test_fleet_lets_one_be_stopped_by_the_command_and_goes_on(
    session: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from penstock.cli.main import app

    topic = topics.create(1)
    files = [one_of("one", topic), one_of("other", topic)]
    with Sailing(session, files) as fleet:
        fleet.await_started("one", "other")
        done = CliRunner().invoke(app, ["stop", str(files[0])])
        assert done.exit_code == 0 and "one: stopped after" in done.output, done.output
        fleet.await_told(Ended, "one")
        topics.send(topic, orders(10))
        fleet.await_rows("other", 10)
        assert len(fleet.told(Started, "one")) == 1
        assert not any(event.metrics.rows_in for event in fleet.told(BatchDone, "one"))


def test_fleet_that_drains_ends_with_the_worst_and_brings_the_others(
    session: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.send(topic, orders(40))
    files = [one_of("a", topic), one_of("b", topic), one_of("lost", "no-such-topic"), tmp_path / "wrong.yaml"]
    files[-1].write_text("name: wrong\n")
    with Sailing(session, files, available_now=True) as fleet:
        done = fleet.ended()
    assert {name: code_of(one.error) for name, one in done.outcomes.items()} == {
        "a": None, "b": None, "lost": "TOPIC_MISSING", str(files[-1]): "INVALID_DEFINITION",
    }  # fmt: skip
    assert done.exit_code == 3
    assert ids_in(tmp_path / "lake/a") == ids_in(tmp_path / "lake/b") == Counter(range(40))


def test_fleet_that_cannot_run_together_is_refused_before_anything_starts(
    session: Any, topics: Any, one_of: Callable[..., Path]
) -> None:
    topic = topics.create(1)
    files = [one_of("a", topic), one_of("b", topic, checkpoint="checkpoints/a")]
    with Sailing(session, files) as fleet, pytest.raises(InvalidDefinition, match="are in the same place"):
        fleet.ended()
    assert not fleet.events


def test_settings_of_the_application_are_those_that_spark_calls_static(spark: Any) -> None:
    defined = spark._jsparkSession.sessionState().conf().getAllDefinedConfs()
    known = {defined.apply(number)._1() for number in range(defined.size())}
    static = {name for name in known if name.startswith("spark.sql.") and not spark.conf.isModifiable(name)}
    assert len(static) > 10
    assert sorted(name for name in static if not is_of_application(name)) == []
    assert {name for name in STATIC_SQL if spark.conf.isModifiable(name)} == set()


def test_accumulators_made_by_many_threads_are_each_their_own_and_are_let_go(spark: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from pyspark.accumulators import _accumulatorRegistry

    from penstock.engine.frame import TaskReports

    before = len(_accumulatorRegistry)
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: TaskReports(spark.sparkContext), range(2000)))
    assert len({one._reports.aid for one in made}) == 2000
    for one in made:
        one.forget()
    assert len(_accumulatorRegistry) == before


def test_jobs_of_one_engine_are_broken_off_without_those_of_another(spark: Any) -> None:
    import threading

    from penstock.spark.sql import SparkSql

    ended: dict[str, BaseException | None] = {}
    engines = {name: SparkSql(spark) for name in ("broken off", "left alone")}
    slow = "SELECT count(*) AS n FROM range(0, 100000000, 1, 8) WHERE hash(id) % 7 = 3"

    def work(name: str) -> None:
        try:
            engines[name].run(slow)
            ended[name] = None
        except BaseException as error:
            ended[name] = error

    threads = [threading.Thread(target=work, args=(name,)) for name in engines]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) >= 2 or len(ended) == 2, "two jobs")
    engines["broken off"].interrupt()
    for thread in threads:
        thread.join(60)
    assert ended["left alone"] is None
    assert "cancelled" in str(ended["broken off"]).lower()


@pytest.mark.long
def test_fleet_of_twenty_drains_all_of_them_and_leaves_no_threads(
    spark: Any, topics: Any, one_of: Callable[..., Path], tmp_path: Path
) -> None:
    import threading

    names = [f"p{number:02d}" for number in range(20)]
    taken = {name: topics.create(2) for name in names}
    files = [
        one_of(name, taken[name], transforms=[{"sql": "SELECT * FROM input"}] if number % 4 == 0 else [])
        for number, name in enumerate(names)
    ]
    for first, name in enumerate(names):
        topics.send(taken[name], orders(30, 100 * first))
    before = threading.active_count()
    with Sailing(spark, files, available_now=True) as fleet:
        done = fleet.ended(240)
    assert done.exit_code == 0, done.errors
    for first, name in enumerate(names):
        assert ids_in(tmp_path / "lake" / name) == Counter(range(100 * first, 100 * first + 30))
    wait_for(lambda: threading.active_count() <= before + 5, "the threads to end")
