"""The commented and valid file that `penstock init` writes, and the JSON Schema for editors."""

from __future__ import annotations

import json
from typing import Any

from penstock.config.pipeline import PipelineConfig
from penstock.config.source import KafkaSourceConfig

SCHEMA_PATH = ".penstock/pipeline.schema.json"

_TEMPLATE = """\
# yaml-language-server: $schema={schema}
# A pipeline: events from Kafka, decoded, checked, and written into tables, each exactly once.
#   penstock validate {name}.yaml   check this file
#   penstock plan {name}.yaml       check it against Kafka and the tables, and show what a run would do
#   penstock run {name}.yaml        run it
# Relative paths are relative to this file. ${{env:NAME}}, ${{env:NAME:-default}} and ${{file:path}} may stand
# for any value.

# Part of the identity of every commit: do not change it once the pipeline has run.
name: {name}

source:
  type: kafka
  brokers: ${{env:KAFKA_BROKERS:-localhost:9092}}
  topics: [{topic}]              # or  pattern: "{topic}-.*"   or  assign: {{{topic}: [0, 1]}}
  start: earliest                # earliest | latest | 2026-01-31T08:00:00Z | {{{topic}: {{"0": 1500}}}}; first run only
  on_data_loss: fail             # fail | record   (record: continue, and write down exactly what is missing)
  # max_offsets: 500000          # maximum offsets per batch; by default, the target duration decides
  # options:                     # any other Kafka client setting
  #   security.protocol: SASL_SSL
  #   sasl.password: ${{env:KAFKA_PASSWORD}}

decode:
  format: json                   # json | text | raw
  schema: "id BIGINT NOT NULL, name STRING, amount DOUBLE, event_time TIMESTAMP"
  # extra_fields: ignore         # ignore | keep (in a map column) | quarantine
  # tombstones: quarantine       # quarantine | pass | drop

# Where bad records go, with their bytes and the reason. Without it, a bad record stops the pipeline.
quarantine:
  table: lake/{name}_quarantine

transforms:
  - where: "amount >= 0"
  - derive: {{event_date: "date(event_time)"}}
  # - dedupe: {{keys: [id]}}       # the newest offset wins, within a batch
  # - rename: {{name: customer}}
  # - cast: {{amount: "DECIMAL(12, 2)"}}
  # - drop: [name]
  # - sql: "SELECT * FROM input" # any Spark SQL query

sinks:
  - name: {name}_delta
    type: delta
    path: lake/{name}
    partition_by: [event_date]
    # evolve: add_columns        # add new columns to the table; otherwise they are refused

# Spark's own progress. Losing it does not lose data: penstock run --resume-from-table
checkpoint: checkpoints/{name}

trigger: {{every: 10 seconds}}     # or {{available_now: true}}: read all available records and stop

# flow: {{target_batch: 20 seconds, max_batch: 2 minutes}}   # how long batches should and may take
# metrics: {{port: 9400}}          # for Prometheus, at /metrics
# alerts:
#   rules: [{{behind_over: 10 minutes, for: 5 minutes}}]
#   webhook: {{url: "${{env:ALERT_WEBHOOK}}"}}
"""


def template(name: str) -> str:
    """A commented pipeline file that validates, for a pipeline of this name."""
    return _TEMPLATE.format(name=name, topic=name, schema=SCHEMA_PATH)


def new_files(name: str) -> dict[str, str]:
    """What `penstock init` writes: each relative path with its text."""
    return {f"{name}.yaml": template(name), SCHEMA_PATH: json_schema_text()}


SCHEMA_ID = "urn:penstock:pipeline:1"
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):"}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a pipeline file."""
    schema = _as_written(PipelineConfig.model_json_schema(by_alias=True, mode="validation"))
    one_of = [{"required": [key]} for key in KafkaSourceConfig.exactly_one]
    schema["$defs"]["KafkaSourceConfig"]["oneOf"] = one_of
    backup = schema["properties"]["checkpoint_backup"]
    short = {"type": "string", "pattern": "^every ", "examples": ["every 6 hours"]}
    schema["properties"]["checkpoint_backup"] = {
        "description": backup.pop("description"),
        "anyOf": [short, backup],
    }
    schema["oneOf"] = [{"required": ["source", "decode"]}, {"required": ["sources"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "Penstock pipeline",
    }


def json_schema_text() -> str:
    """The JSON Schema as the text of a file."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _as_written(node: Any) -> Any:
    """Remove null, which the file cannot contain, and allow a reference in place of a number, a flag or a choice."""
    if isinstance(node, list):
        return [_as_written(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _as_written(value) for key, value in node.items() if not (key == "default" and value is None)}
    node.pop("discriminator", None)
    if isinstance(node.get("anyOf"), list):
        node["anyOf"] = [option for option in node["anyOf"] if option != {"type": "null"}]
        if len(node["anyOf"]) == 1:
            node |= node.pop("anyOf")[0]
    if node.get("type") in ("integer", "boolean") or ("enum" in node and "const" not in node):
        about = {key: node.pop(key) for key in ("title", "description", "default", "examples") if key in node}
        return about | {"anyOf": [node, _REFERENCE]}
    return node
