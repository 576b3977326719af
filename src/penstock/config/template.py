"""The file that `penstock init` writes: commented, valid as it is, and known to editors by its schema."""

from __future__ import annotations

from penstock.config.jsonschema import json_schema_text

SCHEMA_PATH = ".penstock/pipeline.schema.json"

_TEMPLATE = """\
# yaml-language-server: $schema={schema}
# A pipeline: events from Kafka, decoded, checked, and carried into tables, each exactly once.
#   penstock validate {name}.yaml   check this file
#   penstock plan {name}.yaml       check it against Kafka and the tables, and say what a run would do
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
  on_data_loss: fail             # fail | record   (record: go on, and write down exactly what is missing)
  # max_offsets: 500000          # the most offsets a batch takes; left out, batches are as large as their time allows
  # options:                     # anything else the Kafka client takes
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
  # - sql: "SELECT * FROM input" # anything Spark SQL can say

sinks:
  - name: {name}_delta
    type: delta
    path: lake/{name}
    partition_by: [event_date]
    # evolve: add_columns        # add new columns to the table; otherwise they are refused

# Spark's own progress. Losing it does not lose data: penstock run --resume-from-table
checkpoint: checkpoints/{name}

trigger: {{every: 10 seconds}}     # or {{available_now: true}}: read what is there and stop

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
