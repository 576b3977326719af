"""`alerts:` as a file says it and as a run reads it. What is refused is in `tests/definitions/invalid/alerts_*`."""

from datetime import timedelta
from pathlib import Path

import pytest

from penstock.config import AlertsConfig, PipelineConfig, load
from penstock.config.alerts import AlertRuleConfig
from penstock.config.template import json_schema

VALID = Path(__file__).parents[2] / "definitions" / "valid" / "alerts_of_every_kind.yaml"


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("PENSTOCK_TEST_NUMBER", "hunter2")
    return load(VALID)


def test_alerts_of_every_kind_are_read(pipeline: PipelineConfig) -> None:
    assert pipeline.alerts is not None
    found = [(rule.title, rule.kind, rule.limit, rule.span) for rule in pipeline.alerts.rules]
    five, ten = timedelta(minutes=5), timedelta(minutes=10)
    assert found == [
        ("lag_over", "lag_over", 100_000, five),
        ("lag_page", "lag_over", 10_000_000, five),
        ("behind_over", "behind_over", 600, five),
        ("no_commit_for", "no_commit_for", 900, timedelta(minutes=15)),
        ("quarantine_over", "quarantine_over", 0.05, five),
        ("storm", "quarantine_over", 0.5, timedelta(minutes=1)),
        ("restarts_over", "restarts_over", 3, ten),
    ]
    assert pipeline.alerts.every == timedelta(seconds=10)


def test_alerts_rules_in_words_say_what_they_look_at(pipeline: PipelineConfig) -> None:
    assert pipeline.alerts is not None
    assert [str(rule) for rule in pipeline.alerts.rules] == [
        "lag over 100,000 for 5 minutes",
        "lag over 10,000,000 for 5 minutes",
        "behind over 10 minutes for 5 minutes",
        "no commit for 15 minutes",
        "over 5 % quarantined in 5 minutes",
        "over 50 % quarantined in 1 minute",
        "over 3 restarts in 10 minutes",
    ]


def test_alerts_webhook_shows_neither_address_nor_headers(pipeline: PipelineConfig) -> None:
    assert pipeline.alerts is not None and pipeline.alerts.webhook is not None
    assert pipeline.alerts.webhook.url.get_secret_value() == "https://hooks.example.com/hunter2"
    assert pipeline.alerts.webhook.headers["Authorization"].get_secret_value() == "Bearer hunter2"
    shown = f"{pipeline!r} {pipeline.alerts} {pipeline.alerts.model_dump()} {pipeline.alerts.model_dump_json()}"
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("written", "share"), [("5 %", 0.05), ("12.5%", 0.125), ("0.05", 0.05), (0.05, 0.05), (0, 0.0), ("0 %", 0.0)]
)
def test_alerts_share_is_read_as_percent_or_number(written: object, share: float) -> None:
    rule = AlertRuleConfig.model_validate({"quarantine_over": written})
    assert rule.limit == pytest.approx(share)


@pytest.mark.parametrize("written", ["100 %", "5", 1, -0.1, True, "5 % of all", "five"])
def test_alerts_share_that_is_none_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="ratio"):
        AlertRuleConfig.model_validate({"quarantine_over": written})


def test_alerts_are_in_the_schema_for_editors_under_the_keys_of_the_file() -> None:
    definitions = json_schema()["$defs"]
    assert {"for", "within", "name", "lag_over"} <= set(definitions["AlertRuleConfig"]["properties"])
    assert definitions["AlertsConfig"]["required"] == ["rules"]
    assert set(AlertsConfig.model_fields) == set(definitions["AlertsConfig"]["properties"])
