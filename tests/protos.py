"""Protobuf messages out of .proto text, compiled by protoc: what a producer would have generated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet


def descriptor_set(texts: dict[str, str]) -> bytes:
    """A serialized `FileDescriptorSet` of the files, by their names, and of all that they import."""
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text)
        out = Path(folder, "out.bin")
        options = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}", "--include_imports", f"-o{out}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *texts], check=True)
        return out.read_bytes()


def message_classes(texts: dict[str, str]) -> dict[str, Any]:
    """The classes of all messages by their full names, those inside others too."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor_set(texts)).file:
        pool.AddSerializedFile(file.SerializeToString())
    found: dict[str, Any] = {}

    def add(messages: Iterable[Any]) -> None:
        for message in messages:
            found[message.full_name] = message_factory.GetMessageClass(message)
            add(message.nested_types)

    for name in texts:
        add(pool.FindFileByName(name).message_types_by_name.values())
    return found


def first_message(descriptors: bytes) -> str:
    """The full name of the first message of a schema; one that no message has, where it defines none."""
    *_, root = FileDescriptorSet.FromString(descriptors).file
    names = [f"{root.package}.{each.name}".lstrip(".") for each in root.message_type]
    return names[0] if names else "none"
