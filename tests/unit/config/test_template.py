import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import load
from penstock.config.fields import Section
from penstock.config.template import SCHEMA_PATH, json_schema, new_files, template


def test_template_for_a_name_validates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BROKERS", raising=False)
    for name, text in new_files("clicks.web-1").items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    config = load(tmp_path / "clicks.web-1.yaml")
    assert config.name == "clicks.web-1"
    assert json.loads((tmp_path / SCHEMA_PATH).read_text()) == json_schema()


def test_template_first_line_names_the_schema_file() -> None:
    assert template("x").splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA_PATH}"


def nodes(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for item in node for found in nodes(item)]
    if isinstance(node, dict):
        return [node, *(found for item in node.values() for found in nodes(item))]
    return []


def test_json_schema_every_reference_resolves_and_nothing_is_null() -> None:
    schema = json_schema()
    for node in nodes(schema):
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        assert node.get("type") != "null"


def test_json_schema_names_keys_as_the_file_does() -> None:
    schema = json_schema()
    assert "schema" in schema["$defs"]["JsonDecodeConfig"]["properties"]
    assert "columns" not in schema["$defs"]["JsonDecodeConfig"]["properties"]
    assert schema["required"] == ["name", "sinks", "checkpoint"]
    assert schema["oneOf"] == [{"required": ["source", "decode"]}, {"required": ["sources"]}]
    choices = schema["$defs"]["DeltaSinkConfig"]["properties"]["evolve"]["anyOf"][0]
    assert choices["enum"] == ["fail", "ignore", "add_columns", "widen"]


def models(section: type[Section]) -> list[type[Section]]:
    return [found for child in section.__subclasses__() for found in (child, *models(child))]


@pytest.mark.parametrize("model", models(Section), ids=lambda model: model.__name__)
def test_model_every_field_and_the_model_itself_are_described(model: type[Section]) -> None:
    assert model.__doc__
    assert [name for name, field in model.model_fields.items() if not field.description] == []
