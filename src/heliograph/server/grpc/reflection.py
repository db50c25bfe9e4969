"""gRPC server reflection (`grpc.reflection.v1` and `v1alpha`): tools such as grpcurl ask here which services and
messages there are.

The message classes know their descriptors; the services of Pub/Sub have none in Python, so their descriptions are made
from the table of methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as proto

from heliograph.server.grpc.call import Bidi, BidiCall, Method
from heliograph.server.grpc.status import INVALID_ARGUMENT, NOT_FOUND

_OLD, _NEW = "grpc.reflection.v1alpha", "grpc.reflection.v1"
_SERVICE, _METHOD = "ServerReflection", "ServerReflectionInfo"


def reflection_methods(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The methods, by full name.

    Args:
        methods: those of all other services.
    """
    own = [f"/{package}.{_SERVICE}/{_METHOD}" for package in (_NEW, _OLD)]
    answers = _Reflection(_Descriptions(methods, [_as_v1(proto.DESCRIPTOR)]), _services([*methods, *own]))
    return dict.fromkeys(own, Bidi(proto.ServerReflectionRequest, proto.ServerReflectionResponse, answers))


class _Descriptions:
    """Descriptor files by name and by symbol: those made here, then those of the message classes."""

    def __init__(self, methods: Mapping[str, Method], more: Iterable[FileDescriptorProto]) -> None:
        self._pool: Any = descriptor_pool.Default()
        self._files: dict[str, FileDescriptorProto] = {}
        self._by_symbol: dict[str, FileDescriptorProto] = {}
        for file in (*_service_files(methods, self._pool), *more):
            self._files[file.name] = file
            for kind in (file.service, file.message_type):
                self._by_symbol |= {f"{file.package}.{one.name}": file for one in kind}
            for service in file.service:
                full_name = f"{file.package}.{service.name}"
                self._by_symbol |= {f"{full_name}.{method.name}": file for method in service.method}

    def by_name(self, name: str) -> bytes:
        """Raises: KeyError."""
        made = self._files.get(name)
        return _serialized(self._pool.FindFileByName(name)) if made is None else made.SerializeToString()

    def by_symbol(self, symbol: str) -> bytes:
        """Raises: KeyError."""
        made = self._by_symbol.get(symbol)
        return _serialized(self._pool.FindFileContainingSymbol(symbol)) if made is None else made.SerializeToString()

    def by_extension(self, message: str, number: int) -> bytes:
        """Raises: KeyError."""
        extension = self._pool.FindExtensionByNumber(self._pool.FindMessageTypeByName(message), number)
        return _serialized(extension.file)

    def extensions(self, message: str) -> list[int]:
        """Raises: KeyError."""
        return [field.number for field in self._pool.FindAllExtensions(self._pool.FindMessageTypeByName(message))]


class _Reflection:
    """The handler: an answer for each request."""

    def __init__(self, descriptions: _Descriptions, services: list[str]) -> None:
        self._descriptions = descriptions
        self._services = services

    async def __call__(self, call: BidiCall) -> None:
        while (requests := await call.read()) is not None:
            for request in requests:
                await call.write(self._answer(request).SerializeToString())

    def _answer(self, request: Any) -> Any:
        response = proto.ServerReflectionResponse(valid_host=request.host, original_request=request)
        asked = request.WhichOneof("message_request")
        descriptions = self._descriptions
        try:
            if asked == "list_services":
                response.list_services_response.service.extend(
                    [proto.ServiceResponse(name=name) for name in self._services]
                )
            elif asked == "all_extension_numbers_of_type":
                message = request.all_extension_numbers_of_type
                response.all_extension_numbers_response.extension_number.extend(descriptions.extensions(message))
                response.all_extension_numbers_response.base_type_name = message
            elif asked is None:
                response.error_response.error_code = INVALID_ARGUMENT
                response.error_response.error_message = "The request asks for nothing."
            else:
                response.file_descriptor_response.file_descriptor_proto.append(self._file(request, asked))
        except KeyError:
            response.error_response.error_code = NOT_FOUND
            response.error_response.error_message = "Not found."
        return response

    def _file(self, request: Any, asked: str) -> bytes:
        if asked == "file_by_filename":
            return self._descriptions.by_name(request.file_by_filename)
        if asked == "file_containing_symbol":
            return self._descriptions.by_symbol(request.file_containing_symbol)
        extension = request.file_containing_extension
        return self._descriptions.by_extension(extension.containing_type, extension.extension_number)


def _services(methods: Iterable[str]) -> list[str]:
    return sorted({name.split("/")[1] for name in methods})


def _service_files(methods: Mapping[str, Method], pool: Any) -> list[FileDescriptorProto]:
    """A file for each package with services that no descriptor tells of."""
    files: dict[str, FileDescriptorProto] = {}
    for full_name in _services(methods):
        try:
            pool.FindServiceByName(full_name)
        except KeyError:
            package, _, name = full_name.rpartition(".")
            path = f"{package.replace('.', '/')}/services.proto"
            file = files.setdefault(package, FileDescriptorProto(name=path, package=package, syntax="proto3"))
            _add_service(file, name, {key: one for key, one in methods.items() if key.startswith(f"/{full_name}/")})
    return list(files.values())


def _add_service(file: FileDescriptorProto, name: str, methods: Mapping[str, Method]) -> None:
    service = file.service.add(name=name)
    for path, method in methods.items():
        described = [method.request_class.DESCRIPTOR, method.response_class.DESCRIPTOR]
        service.method.add(
            name=path.rpartition("/")[2],
            input_type=f".{described[0].full_name}",
            output_type=f".{described[1].full_name}",
            client_streaming=isinstance(method, Bidi),
            server_streaming=isinstance(method, Bidi),
        )
        for descriptor in described:
            if descriptor.file.name not in file.dependency:
                file.dependency.append(descriptor.file.name)


def _as_v1(descriptor: Any) -> FileDescriptorProto:
    """Reflection's own description in its newer package: the same messages."""
    file = FileDescriptorProto.FromString(_serialized(descriptor))
    file.name, file.package = file.name.replace("v1alpha", "v1"), _NEW
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".{_OLD}.", f".{_NEW}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{_OLD}.", f".{_NEW}.")
            method.output_type = method.output_type.replace(f".{_OLD}.", f".{_NEW}.")
    return file


def _serialized(file: Any) -> bytes:
    serialized: bytes = file.serialized_pb
    return serialized
