"""A Protobuf schema, as text or as a registry may hold it, with all that it imports."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from google.protobuf import descriptor_pool, timestamp_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from penstock.sinks.kafka.shapes import UnfitError

_ROOT = "penstock_root.proto"
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_PROTOC_SECONDS = 60


def compiled(text: str, references: Mapping[str, str]) -> bytes:
    """A schema and its references (by name) as a serialized `FileDescriptorSet`, the schema itself last.

    Raises `UnfitError` with what protoc says where it is not valid.
    """
    given = {name: _descriptor(each, name) for name, each in {**references, _ROOT: text}.items()}
    known = [file for file in given.values() if file is not None]
    known += [_timestamp()] if known else []
    texts = {name: {**references, _ROOT: text}[name] for name, file in given.items() if file is None}
    if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in texts):
        raise UnfitError("the name of a reference leads out of its folder")
    with TemporaryDirectory(prefix="penstock-protoc-") as folder:
        sources, have, out = Path(folder, "texts"), Path(folder, "known.bin"), Path(folder, "out.bin")
        for name, each in texts.items():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_text(each, encoding="utf-8")
        have.write_bytes(FileDescriptorSet(file=known).SerializeToString())
        sources.mkdir(exist_ok=True)
        options = [f"-I{sources}", f"-I{files('grpc_tools') / '_proto'}", "--include_imports"]
        options += [f"--descriptor_set_in={have}"] if known else []
        # A process of its own: protoc writes its words to the standard error of its process.
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, f"--descriptor_set_out={out}", _ROOT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROTOC_SECONDS, check=False)
        if done.returncode:
            lines = done.stderr.replace(f"{sources}/", "").splitlines()
            words = [line for line in lines if line and "warning:" not in line]
            raise UnfitError(f"the Protobuf schema is not valid: {'; '.join(words[:5])}")
        descriptors = out.read_bytes()
    for file in FileDescriptorSet.FromString(descriptors).file:
        if file.syntax == "proto3":
            _refuse_alike(file.message_type)
    return descriptors


def root_of(descriptors: bytes) -> FileDescriptorProto:
    """The schema itself, without what it imports."""
    return FileDescriptorSet.FromString(descriptors).file[-1]


def describe(descriptors: bytes) -> str:
    """The messages of a schema in one line, for people."""
    return " ".join(_described(message) for message in root_of(descriptors).message_type)


def message_of(descriptors: bytes, name: str | None) -> Descriptor:
    """The message of that full name, or the first of the schema."""
    root = root_of(descriptors)
    names = list(_names(root.package, root.message_type))
    wanted = name or (names[0] if names else "")
    if wanted not in names:
        raise UnfitError(f"the Protobuf schema has no message {wanted}; it has {', '.join(names[:20]) or 'none'}")
    return pool_of(descriptors).FindMessageTypeByName(wanted)


def message_before(descriptors: bytes, name: str) -> DescriptorProto | None:
    """The message that a version before has at the top under this name, whose numbers a new version keeps."""
    messages = root_of(descriptors).message_type
    return next((message for message in messages if message.name == name.rpartition(".")[2]), None)


def message_index(message: Descriptor) -> bytes:
    """Where the message is in its file, as the framing has it: zigzag numbers, a single zero for the first."""
    path: list[int] = []
    at = message
    while at.containing_type is not None:
        path.insert(0, [nested.name for nested in at.containing_type.nested_types].index(at.name))
        at = at.containing_type
    path.insert(0, list(at.file.message_types_by_name).index(at.name))
    return b"\0" if path == [0] else b"".join(map(_zigzag, [len(path), *path]))


@lru_cache(maxsize=64)
def pool_of(descriptors: bytes) -> descriptor_pool.DescriptorPool:
    """A pool of its own with these files."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _refuse_alike(messages: Iterable[DescriptorProto]) -> None:
    """Names that differ in capitals and _ only: protoc warns of them, the encoder takes none of the whole file."""
    for message in messages:
        alike: dict[str, str] = {}
        for field in message.field:
            other = alike.setdefault(field.name.replace("_", "").lower(), field.name)
            if other != field.name:
                raise UnfitError(f"{message.name}: Protobuf takes {other} and {field.name} for one name; rename one")
        _refuse_alike(message.nested_type)


def _names(scope: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            name = f"{scope}.{message.name}" if scope else message.name
            yield name
            yield from _names(name, message.nested_type)


def _described(message: DescriptorProto) -> str:
    fields = (f"{_type_of(field)} {field.name} = {field.number};" for field in message.field)
    nested = (_described(inner) for inner in message.nested_type if not inner.options.map_entry)
    return f"message {message.name} {{ {' '.join((*nested, *fields))} }}"


def _type_of(field: FieldDescriptorProto) -> str:
    name = field.type_name.removeprefix(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def _descriptor(text: str, name: str) -> FileDescriptorProto | None:
    if not _BASE64.fullmatch(text):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, DecodeError):
        return None
    file.name = name
    return file


def _timestamp() -> FileDescriptorProto:
    return FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)


def _zigzag(number: int) -> bytes:
    """A number that is not negative, as a zigzag varint."""
    left, made = number << 1, bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])
