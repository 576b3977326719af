"""Registered Protobuf schemas, compiled by a process of their own."""

from __future__ import annotations

import pytest

from penstock.errors import TransientError
from penstock.registry import RegisteredSchema, protobuf

TEXT = 'syntax = "proto3"; message Order { int64 id = 1; }'


def test_schema_whose_compiler_does_not_end_in_time_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(protobuf, "_PROTOC_SECONDS", 0.001)
        with pytest.raises(TransientError) as raised:
            protobuf.protobuf_reader(RegisteredSchema(41, "PROTOBUF", TEXT))
    assert raised.value.code == "PROTOBUF_COMPILER"
    assert "schema id 41" in raised.value.summary
    assert protobuf.protobuf_reader(RegisteredSchema(41, "PROTOBUF", TEXT)), "not kept as a failure"
