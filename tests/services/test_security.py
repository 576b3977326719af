"""Pipelines on a broker that lets nobody in unasked: every way in, exactly the rights they need, clear refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.cli.command import command
from tests.issuer import SECRET, Issuer, running_issuer
from tests.secured import ELSEWHERE, EXPIRED, SecuredBroker, running_secured, took, write_pipeline
from tests.services.running import Running, wait_for

import penstock
from penstock.config import PipelineConfig, load
from penstock.devstack.certificates import Authority
from penstock.devstack.secure import USER
from penstock.errors import MissingError, PenstockError
from penstock.ops.acls import Right, plan_rights
from penstock.ops.lag import find_lag
from penstock.ops.plan import plan_run
from penstock.ops.snapshot import take_snapshot
from penstock.supervision.run import run

pytestmark = pytest.mark.services
MOST_SECONDS = 20


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[SecuredBroker]:
    with running_secured(tmp_path_factory.mktemp("secure"), issuer) as found:
        yield found


@pytest.fixture(autouse=True)
def forget_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test was refused is not remembered for the next."""
    monkeypatch.setattr("penstock.kafka.client._refused", {})


def rows_in(folder: Path, name: str = "orders") -> int:
    return int(DeltaTable(folder / "lake" / name).to_pyarrow_table().num_rows)


# Ways in


def ways_in(broker: SecuredBroker, issuer: Issuer, folder: Path) -> dict[str, tuple[str, dict[str, object]]]:
    """For each way: the brokers, and the section."""
    certified = {
        "ca_file": broker.ca_file,
        "certificate_file": str(broker.secure.folder / f"{USER}.pem"),
        "key_file": str(broker.secure.folder / f"{USER}.key"),
    }
    (folder / "secret").write_text(SECRET)
    tokens = {
        "ca_file": broker.ca_file,
        "mechanism": "OAUTHBEARER",
        "token_url": f"{issuer.url}/token",
        "client_id": USER,
        "client_secret": f"${{file:{folder}/secret}}",
        "scope": "kafka",
    }
    password = broker.secure.password(USER)
    by_password = {
        name: (broker.stack.bootstrap, broker.security(USER, password, folder, mechanism=name))
        for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    }
    return {
        **by_password,
        "OAUTHBEARER": (broker.stack.bootstrap, tokens),
        "certificate": (broker.secure.brokers(), certified),
    }


@pytest.mark.parametrize(
    "way",
    [
        # By SCRAM-SHA-512 the pipelines below come.
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        ),
        "certificate",
    ],
)
def test_pipeline_is_let_in_by_every_way_and_all_its_clients_are(
    broker: SecuredBroker, issuer: Issuer, spark: Any, tmp_path: Path, way: str
) -> None:
    topic = broker.topic(orders=20)
    brokers, security = ways_in(broker, issuer, tmp_path)[way]
    file = write_pipeline(tmp_path, topic, brokers, security)
    assert plan_run(load(file)).problems == ()
    assert penstock.load(file).run(session=spark).rows_out == 20
    assert rows_in(tmp_path) == 20
    lag = find_lag(take_snapshot(load(file)))
    assert (lag.total, lag.group_note) == (0, None)
    if way == "OAUTHBEARER":
        assert USER in issuer.given


@pytest.mark.long
def test_state_read_by_spark_s_own_source_is_let_in_too(broker: SecuredBroker, spark: Any, tmp_path: Path) -> None:
    topic = broker.topic(orders=20)
    security = broker.security(USER, broker.secure.password(USER), tmp_path)
    steps = [
        {"derive": {"event_time": "timestamp '2026-01-01 00:00:00Z'"}},
        {"watermark": {"column": "event_time", "delay": "1 minute"}},
        {"dedupe": {"keys": ["order_id"], "within": "1 hour"}},
    ]
    file = write_pipeline(tmp_path, topic, broker.stack.bootstrap, security, transforms=steps)
    assert penstock.load(file).run(session=spark).rows_out == 20


# Rights


def kafka_sinks(name: str, out: str, bad: str) -> dict[str, Any]:
    return {
        "name": name,
        "quarantine": {"topic": bad},
        "sinks": [
            {"name": "out", "type": "kafka", "topic": out, "slots": 2},
            {"name": "lake", "type": "delta", "path": f"lake/{name}"},
        ],
    }


def exact_pipeline(broker: SecuredBroker, folder: Path) -> tuple[str, Path, tuple[Right, ...]]:
    """A pipeline with every kind of right, of a fresh user without any; and what `plan --acls` says it needs."""
    user, password = broker.user()
    topic, out, bad = broker.topic(orders=30, bad=3), broker.topic(), broker.topic()
    security = broker.security(user, password, folder)
    keys = kafka_sinks(broker.name("p"), out, bad)
    file = write_pipeline(folder, topic, broker.stack.bootstrap, security, **keys)
    rights = plan_rights(load(file)).rights
    assert {one.principal for one in rights} == {f"User:{user}"}
    return user, file, rights


def test_pipeline_with_exactly_the_rights_that_are_printed_runs_to_its_end(
    broker: SecuredBroker, spark: Any, tmp_path: Path
) -> None:
    user, file, rights = exact_pipeline(broker, tmp_path)
    broker.grant(user, rights)
    config = load(file)
    assert plan_run(config).problems == ()
    summary = penstock.load(file).run(session=spark)
    assert (summary.rows_out, summary.quarantined) == (30, 3)
    assert (broker.committed(config.sinks[0].topic), broker.committed(config.quarantine.topic)) == (30, 3)  # type: ignore[union-attr]
    assert rows_in(tmp_path, config.name) == 30
    lag = find_lag(take_snapshot(config))
    assert (lag.total, lag.group_note, lag.notes) == (0, None, ())


@pytest.mark.long
def test_pipeline_without_any_one_of_its_rights_stops_with_the_cause(
    broker: SecuredBroker, spark: Any, tmp_path: Path
) -> None:
    _, _, kinds = exact_pipeline(broker, tmp_path)
    needless = []
    # Without a right to the settings of its topics a run goes on, and says what it cannot keep durable.
    needed = [index for index, right in enumerate(kinds) if not right.operation.endswith("Configs")]
    for index in needed:
        folder = tmp_path / str(index)
        folder.mkdir()
        user, file, rights = exact_pipeline(broker, folder)
        broker.grant(user, rights)
        if rights[index].operation != "Create":
            # Behind a first batch, since an empty marker topic is not read.
            penstock.load(file).run(session=spark)
            broker.send(load(file).source.topics[0], 5, bad=1)  # type: ignore[index]
        broker.revoke(user, rights[index])
        try:
            penstock.load(file).run(session=spark)
            needless.append(rights[index])
        except MissingError as refused:
            assert refused.code == "KAFKA_NOT_AUTHORIZED", f"without {rights[index]}: {refused}"
    assert not needless


# Refusals


Break = Callable[[SecuredBroker, Path], tuple[str, dict[str, object], tuple[str, ...]]]
"""The brokers, the section, and what the error says: its code and its words."""


def wrong_password(broker: SecuredBroker, folder: Path) -> Any:
    said = ("KAFKA_NOT_AUTHENTICATED", f"the brokers do not let user {USER} by SCRAM-SHA-512 in")
    return broker.stack.bootstrap, broker.security(USER, "wrong", folder), said


def unknown_user(broker: SecuredBroker, folder: Path) -> Any:
    said = ("KAFKA_NOT_AUTHENTICATED", "the brokers do not let user nobody by PLAIN in")
    return broker.stack.bootstrap, broker.security("nobody", "x", folder, mechanism="PLAIN"), said


def wrong_authority(broker: SecuredBroker, folder: Path) -> Any:
    (folder / "other.pem").write_text(Authority.make("another one").certificate)
    good = broker.security(USER, broker.secure.password(USER), folder, ca_file=str(folder / "other.pem"))
    return broker.stack.bootstrap, good, ("KAFKA_TLS", "not signed by a trusted CA")


def expired(broker: SecuredBroker, folder: Path) -> Any:
    good = broker.security(USER, broker.secure.password(USER), folder)
    return broker.secure.brokers(EXPIRED), good, ("KAFKA_TLS", "the broker's certificate has expired")


def wrong_host(broker: SecuredBroker, folder: Path) -> Any:
    good = broker.security(USER, broker.secure.password(USER), folder)
    return broker.secure.brokers(ELSEWHERE), good, ("KAFKA_TLS", "the broker's certificate is for another host")


def no_certificate(broker: SecuredBroker, folder: Path) -> Any:
    return broker.secure.brokers(), {"ca_file": broker.ca_file}, ("KAFKA_TLS", "asks for a client certificate")


def no_tls(broker: SecuredBroker, folder: Path) -> Any:
    return broker.stack.bootstrap, None, ("KAFKA_TLS", "the broker speaks TLS, and the file does not")


def wrong_secret(broker: SecuredBroker, folder: Path) -> Any:
    (folder / "secret").write_text("wrong")
    assert broker.secure.tokens is not None
    tokens = {
        "ca_file": broker.ca_file,
        "mechanism": "OAUTHBEARER",
        "token_url": f"{broker.secure.tokens.issuer}/token",
        "client_id": USER,
        "client_secret": f"${{file:{folder}/secret}}",
    }
    return broker.stack.bootstrap, tokens, ("KAFKA_NOT_AUTHENTICATED", f"do not let client {USER}")


def no_right(broker: SecuredBroker, folder: Path) -> Any:
    user, password = broker.user()
    return broker.stack.bootstrap, broker.security(user, password, folder), ("KAFKA_NOT_AUTHORIZED", "topic t-")


REFUSALS = [
    wrong_password,
    unknown_user,
    wrong_authority,
    expired,
    wrong_host,
    no_certificate,
    no_tls,
    wrong_secret,
    no_right,
]


def plan(config: PipelineConfig) -> None:
    problems = plan_run(config).problems
    assert problems
    raise problems[0]


COMMANDS: dict[str, Callable[[PipelineConfig], object]] = {
    "plan": plan,
    "run": run,
    "lag": lambda config: find_lag(take_snapshot(config)),
}


@pytest.mark.parametrize(
    ("broken", "command"),
    [
        pytest.param(broken, command, marks=() if command == "plan" or broken == wrong_password else pytest.mark.long)
        for broken in REFUSALS
        for command in COMMANDS
    ],
)
def test_refusal_is_told_with_its_cause_in_time(
    broker: SecuredBroker, tmp_path: Path, broken: Break, command: str
) -> None:
    brokers, security, (code, words) = broken(broker, tmp_path)
    topic = broker.topic(orders=1)
    config = load(write_pipeline(tmp_path, topic, brokers, security, **kafka_sinks("orders", "clean", "bad")))
    with took(MOST_SECONDS), pytest.raises(PenstockError) as refused:
        COMMANDS[command](config)
    told = refused.value
    assert (told.code, told.exit_code) == (code, 3), told
    assert words in told.summary, told
    assert told.hint


@pytest.mark.parametrize(
    "word", ["run", pytest.param("plan", marks=pytest.mark.long), pytest.param("lag", marks=pytest.mark.long)]
)
def test_refusal_on_the_command_line_is_exit_3_with_words_and_no_password(
    broker: SecuredBroker, tmp_path: Path, word: str
) -> None:
    brokers, security, (code, words) = wrong_password(broker, tmp_path)
    file = write_pipeline(tmp_path, broker.topic(orders=1), brokers, security)
    with took(MOST_SECONDS):
        done = command(word, str(file), folder=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"{code} " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("resource", [pytest.param("group", marks=pytest.mark.long), "transactional-id"])
def test_right_on_a_group_or_transactions_that_lacks_is_told_by_plan_and_run(
    broker: SecuredBroker, session: Any, tmp_path: Path, resource: str
) -> None:
    user, file, rights = exact_pipeline(broker, tmp_path)
    broker.grant(user, [one for one in rights if one.resource != resource])
    said = {"group": "permission on the consumer group", "transactional-id": "permission on the transactional id"}[
        resource
    ]
    with took(MOST_SECONDS):
        problems = plan_run(load(file)).problems
    assert [one.code for one in problems][:1] == ["KAFKA_NOT_AUTHORIZED"]
    assert said in problems[0].summary
    with took(MOST_SECONDS), pytest.raises(MissingError) as refused:
        penstock.load(file).run(session=session)
    assert refused.value.code == "KAFKA_NOT_AUTHORIZED"
    assert said in refused.value.summary


# While it runs


def started(broker: SecuredBroker, folder: Path) -> tuple[str, str, Path, tuple[Right, ...]]:
    """A pipeline from a topic to a topic that goes on until it is stopped, of a user with just its rights."""
    user, password = broker.user()
    topic, out = broker.topic(orders=10), broker.topic()
    file = write_pipeline(
        folder,
        topic,
        broker.stack.bootstrap,
        broker.security(user, password, folder),
        name=broker.name("p"),
        sinks=[{"name": "out", "type": "kafka", "topic": out, "slots": 1}],
        trigger={"every": "200 ms"},
    )
    rights = plan_rights(load(file)).rights
    broker.grant(user, rights)
    return user, topic, file, rights


def await_exit_3(running: Running, code: str) -> None:
    with took(60):
        wait_for(lambda: running.process.poll() is not None, "the end of the run", 60)
    assert running.process.returncode == 3, running.complained
    assert f"{code} " in running.complained
    assert "retry" not in running.complained


@pytest.mark.long
@pytest.mark.parametrize("which", ["source", "sink"])
def test_right_that_is_taken_away_ends_the_run_with_the_cause(
    broker: SecuredBroker, tmp_path: Path, which: str
) -> None:
    user, topic, file, rights = started(broker, tmp_path)
    with Running(tmp_path, "run", str(file)) as running:
        running.await_text("batch 0:")
        reason = "the source reads it" if which == "source" else "sink out writes to it"
        broker.revoke(user, next(one for one in rights if one.reason == reason))
        broker.send(topic, 5)
        await_exit_3(running, "KAFKA_NOT_AUTHORIZED")


@pytest.mark.long
def test_password_that_changes_ends_the_run_with_the_cause(broker: SecuredBroker, tmp_path: Path) -> None:
    user, topic, file, _ = started(broker, tmp_path)
    with Running(tmp_path, "run", str(file)) as running:
        running.await_text("batch 0:")
        broker.set_password(user, "another one")
        broker.send(topic, 5)
        await_exit_3(running, "KAFKA_NOT_AUTHENTICATED")


@pytest.mark.long
def test_secured_broker_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with running_secured(tmp_path / "own") as broker:
        _, topic, file, _ = started(broker, tmp_path)
        with Running(tmp_path, "run", str(file)) as running:
            running.await_text("batch 0:")
            broker.stack.kill(1)
            running.await_text("retry 1 in 1 s", seconds=120)
            broker.stack.restart(1)
            broker.send(topic, 5)
            out = str(load(file).sinks[0].topic)  # type: ignore[union-attr]
            wait_for(lambda: broker.committed(out) == 15, "the orders sent after the fault", 120)
            assert running.process.poll() is None, running.complained
