"""Generate docs/reference from the code: `make docs`. A test checks that the pages are up to date."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlglot
import typer.cli
import typer.main
from expression_samples import LEFT_TO_SPARK, SAMPLES, SCHEMA
from sqlglot import exp

import penstock
from penstock import config, errors
from penstock.cli.main import app
from penstock.config.arrow_types import arrow_to_ddl
from penstock.decoders import refusal
from penstock.quarantine import GAPS_SCHEMA, QUARANTINE_SCHEMA
from penstock.sinks import merging
from penstock.sinks.iceberg import partitions
from penstock.sinks.kafka import fitting
from penstock.sinks.postgres import stage as postgres
from penstock.transforms import ArrowExpression, NoArrowForm, compile_expression
from penstock.transforms.expressions.forms import FORMS

FOLDER = Path(__file__).parent / "reference"
SOURCE = Path(penstock.__file__).parent
_MARK = "<!-- Written by docs/reference.py from the code; do not edit. -->\n\n"
_CODE_MEANS = {
    refusal.TOMBSTONE: "the record has no value, and `tombstones` is `quarantine`",
    refusal.MESSAGE_TOO_LARGE: "the value is larger than `max_bytes`",
    refusal.INVALID_UTF8: "the value is not UTF-8",
    refusal.EMPTY_MESSAGE: "the value is empty or only whitespace (json; `text` accepts an empty value)",
    refusal.MALFORMED_JSON: "the text is not JSON, such as NaN for a number; the message has the position",
    refusal.NOT_AN_OBJECT: "the text is JSON, but not an object",
    refusal.TRAILING_DATA: "there is data after the object, such as a second one",
    refusal.TOO_DEEP: "objects and arrays are nested too deeply",
    refusal.WRONG_TYPE: "a field's value has another type than its column",
    refusal.OUT_OF_RANGE: "a field's value does not fit its column",
    refusal.TIMESTAMP_OUT_OF_RANGE: "the record's timestamp is after the year 9999; `timestamp` is null here",
    refusal.MISSING_FIELD: "a NOT NULL field is missing or null",
    refusal.UNKNOWN_FIELD: "a field is not in the schema, and `extra_fields` is `quarantine`",
    refusal.DUPLICATE_FIELD: "a field occurs twice",
    refusal.SHORT_MESSAGE: "the value is shorter than the header of a schema id",
    refusal.WRONG_MAGIC: "the value does not begin with the bytes of its framing",
    refusal.UNKNOWN_SCHEMA_ID: "the registry has no schema with this id",
    refusal.WRONG_SUBJECT: "the schema with this id belongs to another subject",
    refusal.WRONG_FINGERPRINT: "no schema of the pipeline file has this fingerprint (single-object encoding)",
    refusal.WRONG_MESSAGE_INDEX: "the Protobuf message is not `message`, or its index is malformed",
    refusal.SCHEMA_INCOMPATIBLE: "the writer's schema cannot be converted to the columns; the message names both types",
    refusal.SCHEMA_UNSUPPORTED: "the writer's schema has a type that cannot become columns",
    refusal.TRUNCATED: "the value ends before its schema does",
    refusal.TOO_MANY_ITEMS: "a list or map claims more items than its bytes can hold",
    refusal.MALFORMED_AVRO: "the bytes do not match the Avro schema",
    refusal.MALFORMED_PROTOBUF: "the bytes are not a Protobuf message",
    refusal.TOMBSTONE_KEY: "the key of a tombstone does not provide the sink's key columns",
    merging.KEY_NULL: "a key of a sink that merges is null; the stage is `sink`, as for all codes below",
    partitions.PARTITION_VALUE: "a value of a partition column is empty or too long for a folder",
    fitting.TOPIC_NULL: "the expression for a Kafka topic returns null",
    fitting.TOPIC_INVALID: "the expression for a Kafka topic returns an invalid name",
    fitting.TOPIC_MISSING: "a row names a topic that does not exist or cannot be created",
    fitting.TOPIC_NOT_ALLOWED: "a row names a topic that is internal, belongs to the pipeline, is not in "
    "`topics_allowed`, or that this user may not write to",
    fitting.TOPIC_LIMIT: "a row names a new topic, and there are already `max_topics`",
    fitting.BATCH_TOO_LARGE: "a row names a topic whose size limit is below the producer's batch size",
    fitting.PARTITION_INVALID: "the topic has no such partition",
    fitting.RECORD_TOO_LARGE: "the record is larger than the topic or the producer allows",
    postgres.ROW_REFUSED: "the database refuses the row, or cannot hold one of its values",
}


def pages() -> dict[str, str]:
    """Every page of the reference: its file name and its text."""
    found = {
        "pipeline-file.md": _pipeline_file(),
        "expressions.md": _expressions(),
        "tables.md": _tables(),
        "errors.md": _errors(),
        "command-line.md": _command_line(),
    }
    return {name: _MARK + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" for name, text in found.items()}


def _pipeline_file() -> str:
    schema = config.PipelineConfig.model_json_schema(by_alias=True)
    models = {name: getattr(config, name, None) for name in schema["$defs"]}
    parts = [
        "# The pipeline file\n\nUnknown keys, duplicate keys and wrong types are refused. Relative paths are relative "
        "to the file. `${env:NAME}`, `${env:NAME:-default}` and `${file:path}` can replace any value; write a literal "
        "`${` as `$${`. A secret must be given by such a reference.\n",
        _section("The file", config.PipelineConfig.__doc__, schema, config.PipelineConfig),
    ]
    for name, place in _places(schema["properties"], schema["$defs"]):
        body = schema["$defs"][name]
        parts.append(_section(place, body["description"], body, models[name]))
    return "\n".join(parts)


def _places(properties: dict[str, Any], defs: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every model that the properties lead to, once, with the place in the file where it stands."""
    seen: set[str] = set()
    for key, value in properties.items():
        for name in re.findall(r"#/\$defs/(\w+)'", str({k: v for k, v in value.items() if k != "discriminator"})):
            if name in seen:
                continue
            seen.add(name)
            inner = defs[name]["properties"]
            place = f"{path}{key}"
            fixed = next((f"{k}: {v['const']}" for k, v in inner.items() if "const" in v), None)
            if path == "" and key == "transforms":
                yield name, f"`{place}`: `{next(iter(inner))}`"
            else:
                yield name, f"`{place}`" + (f" with `{fixed}`" if fixed else "")
            for found, where in _places(inner, defs, f"{place}."):
                if found not in seen:
                    seen.add(found)
                    yield found, where


def _section(title: str, about: str | None, body: dict[str, Any], model: Any) -> str:
    lines = [f"## {title}\n", f"{about or ''}\n", "| key | value | default | |", "|---|---|---|---|"]
    fields = {f.alias or name: f for name, f in model.model_fields.items()} if model else {}
    for key, value in body["properties"].items():
        needed = key in body.get("required", [])
        default = "**required**" if needed else _default(value.get("default"))
        about = value.get("description") or (fields[key].description if key in fields else "")
        lines.append(f"| `{key}` | {_kind(value)} | {default} | {_cell(about or '')} |")
    return "\n".join(lines) + "\n"


def _kind(value: dict[str, Any]) -> str:
    options = [o for o in value.get("anyOf") or value.get("oneOf") or [] if o != {"type": "null"}]
    if options:
        return ", or ".join(dict.fromkeys(_kind(option) for option in options))
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "$ref" in value:
        return "a section"
    match value.get("type"):
        case "array":
            items = _kind(value["items"]).replace("a section", "sections")
            return f"a list of {items.replace('a whole number', 'whole numbers')}"
        case "object":
            inner = value.get("additionalProperties")
            return f"names, each with {_kind(inner)}" if isinstance(inner, dict) else "names and values"
        case "integer":
            return "a whole number" + (f" from {value['minimum']}" if "minimum" in value else "")
        case "boolean":
            return "`true`, `false`"
        case "string":
            if value.get("format") == "date-time":
                return "a time"
            if value.get("format") == "password":
                return "a secret, by reference"
            return "text" + (f" such as `{value['examples'][0]}`" if "examples" in value else "")
    return "a value"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | int) else ""


def _expressions() -> str:
    parts = [
        "# Expressions\n\n`where` and `derive` take Spark SQL expressions, with the semantics of Spark 4.1 "
        "in ANSI mode and in UTC. An expression that has an exact Arrow form stays in the direct lane. Spark evaluates "
        "any other one: the pipeline takes the frame lane, and `penstock plan` names the expression "
        "and the reason. Both lanes give the same rows.\n\n## With an Arrow form\n\nEach of these was compiled "
        f"when this page was generated, over the columns\n"
        f"`{', '.join(f'{f.name} {arrow_to_ddl(f.type)}' for f in SCHEMA)}`.\n"
    ]
    covered: set[type[exp.Expr]] = set()
    for group, samples in SAMPLES.items():
        parts.append(f"**{group}**\n\n" + "\n".join(f"- `{sample}`" for sample in samples) + "\n")
        for sample in samples:
            form = compile_expression(sample, SCHEMA)
            assert isinstance(form, ArrowExpression), form
            covered |= {type(node) for node in sqlglot.parse_one(sample, dialect="spark").walk()}
    # A Dot is a column again, more than four levels deep.
    forgotten = [kind.__name__ for kind in FORMS if kind not in covered and kind is not exp.Dot]
    assert not forgotten, f"docs/expression_samples.py shows no {forgotten}"
    parts.append("## Evaluated by Spark, for example\n\n| expression | reason |\n|---|---|")
    for sample in LEFT_TO_SPARK:
        form = compile_expression(sample, SCHEMA)
        assert isinstance(form, NoArrowForm), sample
        parts.append(f"| `{sample}` | {_cell(form.reason.partition('`: ')[2])} |")
    return "\n".join(parts)


def _tables() -> str:
    codes = [value for name, value in vars(refusal).items() if name.isupper() and name != "STAGE"]
    rows = "\n".join(f"| `{code}` | {_CODE_MEANS[code]} |" for code in codes if isinstance(code, str))
    return (
        "# Tables that Penstock creates\n\n## The quarantine\n\n"
        "One row for each bad record, with its original bytes.\n\n"
        f"{_columns(QUARANTINE_SCHEMA)}\n## Codes of bad records\n\n| code | when |\n|---|---|\n{rows}\n\n"
        "## The gaps\n\nWith `on_data_loss: record`, one row for each range that was lost before it could be read, in "
        "`<quarantine.table>_gaps`. Ranges are half-open: `from_offset` is missing, `to_offset` is not; it is null "
        f"if the end is unknown.\n\n{_columns(GAPS_SCHEMA)}"
    )


def _columns(schema: pa.Schema) -> str:
    rows = "\n".join(f"| `{f.name}` | `{arrow_to_ddl(f.type)}` |" for f in schema)
    return f"| column | type |\n|---|---|\n{rows}\n"


@dataclass(frozen=True, order=True)
class _Raised:
    code: str
    exit_code: int
    summary: str
    hint: str
    module: str


def _raised() -> list[_Raised]:
    """Every error with a code of its own in the source, read from the syntax."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            code = node.args[0].value
            kind = getattr(errors, node.func.id, None) if isinstance(node.func, ast.Name) else None
            if code == "INVALID_DEFINITION":
                kind = errors.DefinitionError
            if kind is None or not isinstance(code, str) or not re.fullmatch(r"[A-Z0-9_]+", code):
                continue
            hint = next((_text(k.value) for k in node.keywords if k.arg == "hint"), "")
            found.append(_Raised(code, kind.exit_code, _text(node.args[1]), hint, module))
    return sorted(set(found))


def _text(node: ast.expr) -> str:
    """A string in the source as text, with an ellipsis for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return ""


def _errors() -> str:
    rows = [f"| `{e.code}` | {e.exit_code} | {_cell(e.summary)} | {_cell(e.hint)} | `{e.module}` |" for e in _raised()]
    return (
        "# Errors\n\nError codes are stable. Every error has a summary, the facts of both sides and, if there is one, "
        "a way out.\n\n| exit code | meaning |\n|---|---|\n| 0 | done |\n| 2 | the definition is wrong |\n"
        "| 3 | something the pipeline needs is missing or incompatible |\n| 4 | the run cannot continue |\n"
        "| 75 | temporary failure: try again |\n\n"
        "Brokers that do not answer at the start of a run count as missing (3). Later, the run retries with back-off "
        "until `--give-up-after` (75).\n\n"
        "| code | exit | message | way out | raised in |\n|---|---|---|---|---|\n" + "\n".join(rows)
    )


def _command_line() -> str:
    command = typer.main.get_command(app)
    text = typer.cli.get_docs_for_click(obj=command, ctx=typer.Context(command), name="penstock")
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", text)
    return re.sub(r"(\*\*Options\*\*:\n\n)?\* `--help`: .*\n", "", text).replace("{FILE}", "FILE")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"wrote {name}")
