"""Registered Protobuf schemas, text or base64, with their references, to descriptors."""

from __future__ import annotations

import base64
import re
import subprocess

import pytest
from google.protobuf import descriptor_pb2
from tests.unit.decoders.protobuf_messages import ORDERS, descriptors, registered

from penstock.decoders.protobuf.types import message_of
from penstock.errors import DefinitionError, MissingError
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import protobuf_reader

COMMON = 'syntax = "proto3"; package c; message Common { int32 x = 1; }'
MIDDLE = 'syntax = "proto3"; package m; import "common.proto"; message Middle { c.Common c = 1; }'
ROOT = """syntax = "proto3"; package r; import "middle.proto"; import "common.proto";
    import "google/protobuf/timestamp.proto";
    message Root { m.Middle m = 1; c.Common c = 2; google.protobuf.Timestamp at = 3; }"""


def as_base64(text: str, **references: str) -> str:
    """What the Python serializer of others registers: the one file, under a name of its own."""
    compiled = descriptor_pb2.FileDescriptorSet.FromString(protobuf_reader(registered(text, **references)))
    return base64.b64encode(compiled.file[-1].SerializeToString()).decode()


COMMON64 = as_base64(COMMON)
MIDDLE64 = as_base64(MIDDLE, common__proto=COMMON)
ROOT64 = as_base64(ROOT, common__proto=COMMON, middle__proto=MIDDLE)


@pytest.mark.parametrize("root", [ROOT, ROOT64], ids=["text", "base64"])
@pytest.mark.parametrize("middle", [MIDDLE, MIDDLE64], ids=["text", "base64"])
@pytest.mark.parametrize("common", [COMMON, COMMON64], ids=["text", "base64"])
def test_references_as_text_or_base64_are_put_together(root, middle, common):
    found = protobuf_reader(registered(root, common__proto=common, middle__proto=middle))

    names = [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(found).file]
    assert names.index("common.proto") < names.index("middle.proto") < len(names) - 1
    assert str(message_of(found, "r.Root").schema.field("m").type) == "struct<c: struct<x: int32>>"


def test_invalid_text_is_refused_with_the_words_of_protoc():
    with pytest.raises(MissingError) as caught:
        protobuf_reader(registered('syntax = "proto3"; message M { strin x = 1; }', 42))
    assert caught.value.code == "PROTOBUF_SCHEMA"
    assert "42" in caught.value.summary
    assert '"strin" is not defined' in caught.value.summary


@pytest.mark.parametrize("root", [ROOT, COMMON64], ids=["text", "base64"])
@pytest.mark.parametrize(
    "name",
    [
        *("../up.proto", "/etc/up.proto", "a/../../up.proto", "./up.proto", "a//up.proto", "", "up", ".proto"),
        *("--plugin=protoc-gen-x=/bin/sh", "--x_out=.proto", "-I.proto", "@args.proto", "a/-b.proto", "a=b.proto"),
        *("a\nb.proto", "a.proto\n", "a\0.proto", 'a"; import "b.proto', "a" * 300 + ".proto", "ä.proto"),
        "registered.proto",
    ],
)
def test_reference_whose_name_is_no_path_below_the_folder_is_refused(root, name):
    for text in (COMMON, COMMON64):
        with pytest.raises(MissingError) as caught:
            protobuf_reader(RegisteredSchema(1, "PROTOBUF", root, (ReferencedSchema(name, text),)))
        assert caught.value.code == "PROTOBUF_SCHEMA"


def test_reference_names_that_are_options_of_protoc_run_nothing(tmp_path):
    ran = tmp_path / "ran"
    names = ("--plugin=protoc-gen-x=/bin/sh", "--x_out=.", f"a\ntouch {ran}\nb.proto")
    references = tuple(ReferencedSchema(name, COMMON) for name in names)
    with pytest.raises(MissingError):
        protobuf_reader(RegisteredSchema(1, "PROTOBUF", COMMON64, references))
    assert not ran.exists()


def test_arguments_of_protoc_are_the_same_for_every_schema(monkeypatch):
    seen = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **given: seen.append(command) or run(command, **given))
    for root in (ROOT, ROOT64):
        protobuf_reader(registered(root, 77, common__proto=COMMON + " ", middle__proto=MIDDLE))
    first, second = ([re.sub("penstock-protoc-[^/]+", "", part) for part in command] for command in seen)
    assert first == second
    assert first[-1] == "registered.proto"


def test_reference_that_is_named_as_the_folder_of_another_is_refused():
    references = (ReferencedSchema("a.proto", COMMON), ReferencedSchema("a.proto/b.proto", COMMON))
    with pytest.raises(MissingError) as caught:
        protobuf_reader(RegisteredSchema(1, "PROTOBUF", COMMON64, references))
    assert caught.value.code == "PROTOBUF_SCHEMA"


def test_import_that_nobody_has_is_named():
    with pytest.raises(DefinitionError) as caught:
        protobuf_reader(registered(MIDDLE64))
    assert caught.value.code == "PROTOBUF_IMPORT"
    assert "common.proto" in caught.value.summary


@pytest.mark.parametrize("content", [b"", b"no descriptors", ORDERS.encode()])
def test_file_that_holds_no_descriptors_is_refused(content):
    with pytest.raises(DefinitionError) as caught:
        message_of(content, "M")
    assert caught.value.code == "PROTOBUF_DESCRIPTORS"


def test_descriptor_file_in_any_order_and_without_the_well_known_imports_is_read():
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors(ORDERS)).file
    own = [file for file in files if not file.name.startswith("google/")]
    extra = descriptor_pb2.FileDescriptorProto(name="extra.proto", dependency=[own[0].name])
    shuffled = descriptor_pb2.FileDescriptorSet(file=[extra, *own]).SerializeToString()

    assert message_of(shuffled, "shop.Order").schema == message_of(descriptors(ORDERS), "shop.Order").schema


def test_message_that_is_not_there_is_refused_with_the_near_one():
    with pytest.raises(DefinitionError) as caught:
        message_of(descriptors(ORDERS), "shop.Ordr")
    assert caught.value.code == "PROTOBUF_MESSAGE"
    assert caught.value.hint == 'did you mean "shop.Order"?'
    assert caught.value.context["messages"] == "shop.Address, shop.Order"
