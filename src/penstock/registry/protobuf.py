"""Protobuf schemas of a registry or a file: compiled to one `FileDescriptorSet`, and the messages in it.

A registered schema is `.proto` text or a `FileDescriptorProto` in base64, and so is each of its references. Text goes
through `protoc`, which brings the well-known types with it. In the resulting set every file comes after what it
imports, and the schema itself is the last.

Whoever may register a schema is not trusted: the arguments of `protoc` are the same for every schema, and a reference
has the name of a `.proto` file below the folder or is refused.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from penstock.config.problems import did_you_mean
from penstock.errors import DefinitionError, MissingError, TransientError
from penstock.registry import RegisteredSchema

_ROOT = "registered.proto"
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_FILE_NAME = re.compile(rf"(?=.{{1,250}}\Z)(?:{_PART}/)*{_PART}\.proto", re.ASCII)
"""A relative path to a `.proto` file: no part of it begins with a dot or a dash."""
_PROTOC_SECONDS = 60


@lru_cache(maxsize=256)
def protobuf_reader(schema: RegisteredSchema) -> bytes:
    """A registered schema with all that it imports, as a serialized `FileDescriptorSet`.

    Raises `MissingError` PROTOBUF_SCHEMA with what protoc says where it is not valid.
    """
    if schema.kind != "PROTOBUF":
        raise _invalid(schema, f"it is {schema.kind}, and not PROTOBUF")
    for reference in schema.references:
        if reference.name == _ROOT or not _FILE_NAME.fullmatch(reference.name):
            raise _invalid(
                schema, f"the reference {reference.name[:100]!r} has no name that a .proto file can have here"
            )
    root = _descriptor(schema, schema.text, _ROOT)
    texts, given = {}, []
    for reference in schema.references:
        found = _descriptor(schema, reference.text, reference.name)
        if found:
            given.append(found)
        else:
            texts[reference.name] = reference.text
    if not root:
        return _ordered(_compiled(schema, {**texts, _ROOT: schema.text}, given)).SerializeToString()
    if texts:
        # Stands in for the root, so that protoc has one file to compile, whose name is ours.
        imports = "".join(f'import "{name}"; ' for name in texts)
        compiled = _compiled(schema, {**texts, _ROOT: f'syntax = "proto3"; {imports}'}, given)
        given = [*(file for file in compiled if file.name != _ROOT), *given]
    return _ordered([*given, root]).SerializeToString()


def find_message(descriptors: bytes, message: str) -> Descriptor:
    """The message of that full name. Raises `DefinitionError`, with the names that there are."""
    pool, found = _loaded(descriptors)
    if message in found:
        return pool.FindMessageTypeByName(message)
    own = sorted(name for name in found if not name.startswith("google.protobuf."))
    context, hint = {"messages": ", ".join(own[:20]) or "none"}, did_you_mean(message, own)
    raise DefinitionError("PROTOBUF_MESSAGE", f"finding message {message}: not found", context=context, hint=hint)


def root_file(descriptors: bytes) -> FileDescriptor:
    """The file that the schema itself is: the last of the set."""
    pool, _ = _loaded(descriptors)
    return pool.FindFileByName(read_descriptors(descriptors).file[-1].name)


def read_descriptors(descriptors: bytes) -> FileDescriptorSet:
    """The set as a message, in the order of the imports. Raises `DefinitionError` PROTOBUF_DESCRIPTORS."""
    try:
        found = FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        found = FileDescriptorSet()
    if not found.file or not all(file.name for file in found.file):
        raise DefinitionError(
            "PROTOBUF_DESCRIPTORS",
            "reading the descriptors: this is no FileDescriptorSet",
            hint="make it with: protoc --include_imports --descriptor_set_out=FILE ...",
        )
    return _ordered(found.file)


def load(files: Iterable[FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """A pool of its own with these files, which are in the order of their imports."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as exc:
            raise DefinitionError("PROTOBUF_DESCRIPTORS", f"loading {file.name}: {exc}") from None
    return pool


@lru_cache(maxsize=64)
def _loaded(descriptors: bytes) -> tuple[descriptor_pool.DescriptorPool, frozenset[str]]:
    found = read_descriptors(descriptors)
    names = (name for file in found.file for name in message_names(file.package, file.message_type))
    return load(found.file), frozenset(names)


def message_names(scope: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    """The full names of messages and of those inside them, entries of maps left out."""
    for message in messages:
        if not message.options.map_entry:
            name = f"{scope}.{message.name}" if scope else message.name
            yield name
            yield from message_names(name, message.nested_type)


def _ordered(given: Iterable[FileDescriptorProto]) -> FileDescriptorSet:
    """The files, each after what it imports; missing well-known ones are added."""
    by_name = {file.name: file for file in given}
    found: dict[str, FileDescriptorProto] = {}
    open_: set[str] = set()

    def visit(name: str, asked_by: str) -> None:
        if name in found or name in open_:
            return
        open_.add(name)
        file = by_name.get(name) or _well_known(name)
        if file is None:
            raise DefinitionError(
                "PROTOBUF_IMPORT",
                f"loading {asked_by}: it imports {name}, which is not among the descriptors",
                hint="make them with protoc --include_imports, or register the import as a reference",
            )
        for needed in file.dependency:
            visit(needed, name)
        found[name] = file

    for name in by_name:
        visit(name, name)
    return FileDescriptorSet(file=found.values())


def _well_known(name: str) -> FileDescriptorProto | None:
    """A file that nobody registers: `google/protobuf/*.proto` and `google/type/*.proto`."""
    if not name.startswith("google/") or not _FILE_NAME.fullmatch(name):
        return None
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        return None
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _descriptor(schema: RegisteredSchema, text: str, name: str) -> FileDescriptorProto | None:
    """A descriptor in base64; None for `.proto` text, which has other signs as well."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, DecodeError):
        raise _invalid(schema, f"{name} is neither .proto text nor a descriptor in base64") from None
    # A name that is not UTF-8 comes as bytes.
    if not all(isinstance(each, str) for each in file.dependency):
        raise _invalid(schema, f"{name} imports a file whose name is no text")
    file.name = name
    return file


def _compiled(
    schema: RegisteredSchema, texts: Mapping[str, str], given: Sequence[FileDescriptorProto]
) -> list[FileDescriptorProto]:
    """The text named `_ROOT` and all that it imports, by protoc. No argument comes from the schema."""
    with TemporaryDirectory(prefix="penstock-protoc-") as folder:
        sources, known, out = Path(folder, "texts"), Path(folder, "known.bin"), Path(folder, "out.bin")
        try:
            for name, text in texts.items():
                (sources / name).parent.mkdir(parents=True, exist_ok=True)
                (sources / name).write_text(text, encoding="utf-8")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _invalid(schema, "a reference has the name of a folder that another one is in") from None
        options = [f"-I{path}" for path in (sources, *_bundled())]
        if given:
            known.write_bytes(FileDescriptorSet(file=given).SerializeToString())
            options.append(f"--descriptor_set_in={known}")
        options += ["--include_imports", f"--descriptor_set_out={out}"]
        # A process of its own: protoc writes its words to the standard error of its process, and a schema that it
        # crashes on ends that process only. -P: nothing is imported from the current folder.
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *options, _ROOT]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_PROTOC_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise _unfinished(schema, f"it took more than {_PROTOC_SECONDS} seconds") from None
        if done.returncode < 0:
            raise _unfinished(schema, f"it was ended by signal {-done.returncode}")
        if done.returncode:
            said = done.stderr.decode(errors="replace").splitlines()
            words = [line[:200] for line in said if line and "warning:" not in line]
            raise _invalid(schema, "; ".join(words[:5]) or f"protoc ended with {done.returncode}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _bundled() -> list[str]:
    """Where `google/protobuf/*.proto` and `google/type/*.proto` are."""
    types = find_spec("google.type")
    locations = types.submodule_search_locations if types and types.submodule_search_locations else []
    return [str(files("grpc_tools") / "_proto"), *(str(Path(location).parent.parent) for location in locations)]


def _unfinished(schema: RegisteredSchema, why: str) -> TransientError:
    return TransientError("PROTOBUF_COMPILER", f"compiling schema id {schema.id}: protoc did not finish: {why}")


def _invalid(schema: RegisteredSchema, why: str) -> MissingError:
    return MissingError(
        "PROTOBUF_SCHEMA",
        f"compiling schema id {schema.id}: {why}",
        context={"references": ", ".join(repr(each.name[:60])[1:-1] for each in schema.references[:10]) or "none"},
    )
