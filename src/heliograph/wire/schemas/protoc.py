"""The Protocol Buffers compiler: the text of a definition becomes a set of descriptors.

It runs as a process of its own, with a time limit: the text comes from whoever may create schemas, and a compiler in
this process would write its complaints on the server's standard error, and take the server along if it failed.
"""

from __future__ import annotations

import importlib.resources
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from heliograph.errors import FailedPrecondition, InvalidSchema, Unavailable
from heliograph.wire.schemas.protobuf import WELL_KNOWN, bundle

COMPILER_SECONDS_MAX = 20.0
COMPLAINT_LINES_MAX = 5
FILE = "schema.proto"

_COMPLAINT = re.compile(r"\S+\.proto:")


def compile_definition(definition: str, root_message: str = "") -> bytes:
    """The compiled form of a definition, for `wire.schemas.protobuf.ProtobufSchema`.

    Args:
        definition: proto2 or proto3; no imports but Google's well-known types.
        root_message: which message data are; "" = the only one at the top of the file.

    Raises:
        InvalidSchema: the compiler complains, or the definition is not allowed.
        FailedPrecondition: there is no compiler.
        Unavailable: it cannot be started now, or takes too long.
    """
    file = _compiled(definition)
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidSchema("The Protocol Buffers definition must be proto2 or proto3")
    foreign = [name for name in file.dependency if name not in WELL_KNOWN]
    if foreign:
        raise InvalidSchema(f"The Protocol Buffers definition may import well-known types only, not {foreign[0]}")
    if not root_message:
        names = [message.name for message in file.message_type]
        if len(names) != 1:
            what = ", ".join(names) or "none"
            raise InvalidSchema(f"The Protocol Buffers definition must have exactly one message at its top, not {what}")
        root_message = f"{file.package}.{names[0]}" if file.package else names[0]
    return bundle(root_message, FileDescriptorSet(file=[file]).SerializeToString())


def _compiled(definition: str) -> FileDescriptorProto:
    with tempfile.TemporaryDirectory(prefix="heliograph-") as directory:
        folder = Path(directory)
        out = folder / "descriptors"
        try:
            (folder / FILE).write_text(definition, encoding="utf-8")
        except UnicodeEncodeError:
            raise InvalidSchema("The Protocol Buffers definition is not valid Unicode") from None
        _run(folder, out)
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def _run(folder: Path, out: Path) -> None:
    try:
        includes = importlib.resources.files("grpc_tools") / "_proto"
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", "-I.", f"-I{includes}"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={out}", FILE],
            capture_output=True,
            cwd=folder,
            text=True,
            errors="replace",
            timeout=COMPILER_SECONDS_MAX,
            check=False,
        )
    except ModuleNotFoundError:
        raise FailedPrecondition("The Protocol Buffers compiler is missing: install grpcio-tools") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"The Protocol Buffers compiler failed: {type(error).__name__}") from None
    if done.returncode or not out.exists():
        lines = done.stderr.splitlines()
        complaints = [line for line in lines if _COMPLAINT.match(line)] or lines
        raise InvalidSchema(
            f"The Protocol Buffers definition is invalid: {'; '.join(complaints[:COMPLAINT_LINES_MAX])}"
        )
