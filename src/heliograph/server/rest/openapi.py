"""An OpenAPI 3 description of the REST door, made from the same bindings and descriptors that it answers by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from heliograph.broker.protocol import Broker
from heliograph.server.grpc.call import Method, Unary
from heliograph.server.http import answer_json
from heliograph.server.rest.bindings import Binding
from heliograph.server.rest.documents import message_in
from heliograph.server.rest.paths import PathTemplate
from heliograph.server.routing import Receive, Route, Scope, Send

OPENAPI_PATH = "/openapi/pubsub.json"

_ID_PATTERN = "^[A-Za-z][A-Za-z0-9_.~+%-]{2,254}$"
_PROJECT_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
_REF = "#/components/schemas/"
_QUERY_DEPTH_MAX = 3

_STRING: dict[str, Any] = {"type": "string"}
_WELL_KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]{1,11}(\.[0-9]{1,9})?s$"},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.FieldMask": {"type": "string", "description": "field paths with commas between them"},
}
_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0},
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]{1,18}$"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "pattern": "^[0-9]{1,18}$"},
    FieldDescriptor.TYPE_STRING: _STRING,
}


def openapi_document(bindings: Iterable[Binding], methods: Mapping[str, Method], version: str) -> dict[str, Any]:
    """The description of those bindings whose method the server has.

    Args:
        bindings: see `RestDoor`.
        methods: see `RestDoor`.
        version: of Heliograph.
    """
    described = _Description()
    for binding in bindings:
        method = methods.get(binding.method)
        if isinstance(method, Unary):
            described.add(binding, method)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Heliograph: Google Cloud Pub/Sub v1 over REST",
            "version": version,
            "description": "Also: `fields`, `prettyPrint` and `alt` of every Google API.",
        },
        "paths": described.paths,
        "components": {"schemas": described.schemas},
    }


def openapi_route(bindings: Iterable[Binding], methods: Mapping[str, Method], version: str) -> Route:
    """Serves the description; made when it is first asked for."""
    make = partial(openapi_document, bindings, methods, version)
    kept: list[dict[str, Any]] = []

    async def describe(_scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        if not kept:
            kept.append(make())
        await answer_json(send, kept[0])

    return Route("GET", OPENAPI_PATH, describe)


class _Description:
    def __init__(self) -> None:
        self.paths: dict[str, dict[str, Any]] = {}
        self.schemas: dict[str, Any] = {"Error": _ERROR}

    def add(self, binding: Binding, method: Unary) -> None:
        template = PathTemplate(binding.template)
        path, parameters = _path(template)
        service, _, name = binding.method[1:].rpartition("/")
        collection = next(segment for segment in reversed(template.segments) if segment != "*")
        request: Descriptor = method.request_class.DESCRIPTOR
        operation: dict[str, Any] = {
            "operationId": f"{service.rpartition('.')[2]}_{name}_{collection}_{binding.http_method.lower()}",
            "summary": f"{service}.{name}",
            "parameters": parameters,
            "responses": {
                "200": _json_content("Done", self._message(method.response_class.DESCRIPTOR)),
                "default": _json_content("Refused", {"$ref": f"{_REF}Error"}),
            },
        }
        if binding.body:
            body = request if binding.body == "*" else message_in(request, binding.body)[1]
            operation["requestBody"] = _json_content("", self._message(body)) | {"required": True}
            del operation["requestBody"]["description"]
        if binding.body != "*":
            taken = {variable.field for variable in template.variables} | {binding.body}
            parameters += self._query(request, taken)
        self.paths.setdefault(path, {})[binding.http_method.lower()] = operation

    def _query(self, descriptor: Descriptor, taken: set[str], prefix: str = "", depth: int = 0) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = []
        for field in descriptor.fields:
            message = field.message_type
            if f"{prefix}{field.name}" in taken:
                continue
            if message is None or message.full_name in _WELL_KNOWN:
                name = f"{prefix}{field.json_name}"
                parameters.append({"name": name, "in": "query", "schema": self._field(field)})
            elif not field.is_repeated and depth < _QUERY_DEPTH_MAX:
                parameters += self._query(message, taken, f"{prefix}{field.json_name}.", depth + 1)
        return parameters

    def _message(self, descriptor: Descriptor) -> dict[str, Any]:
        known = _WELL_KNOWN.get(descriptor.full_name)
        if known is not None:
            return known
        name = descriptor.full_name.removeprefix("google.pubsub.v1.")
        if name not in self.schemas:
            schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
            self.schemas[name] = schema  # before its fields: some messages hold their own kind
            schema["properties"] = {field.json_name: self._field(field) for field in descriptor.fields}
        return {"$ref": _REF + name}

    def _field(self, field: FieldDescriptor) -> dict[str, Any]:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": self._value(message.fields_by_name["value"])}
        if field.is_repeated:
            return {"type": "array", "items": self._value(field)}
        return self._value(field)

    def _value(self, field: FieldDescriptor) -> dict[str, Any]:
        if field.message_type is not None:
            return self._message(field.message_type)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        return _SCALARS[field.type]


_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": _STRING,
                "status": _STRING,
                "details": {"type": "array", "items": {"type": "object"}},
            },
        }
    },
}


def _path(template: PathTemplate) -> tuple[str, list[dict[str, Any]]]:
    """OpenAPI has no variable of several segments: each ``*`` becomes one, named for the collection before it."""
    segments, parameters = [], []
    before = ""
    for segment in template.segments:
        if segment == "*":
            name = before[:-1] if before.endswith("s") else before
            pattern = _PROJECT_PATTERN if name == "project" else _ID_PATTERN
            parameters.append(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": pattern}}
            )
            segment = f"{{{name}}}"
        segments.append(segment)
        before = segment
    verb = f":{template.verb}" if template.verb else ""
    return "/" + "/".join(segments) + verb, parameters


def _enum(enum: EnumDescriptor) -> dict[str, Any]:
    return {"type": "string", "enum": [value.name for value in enum.values]}


def _json_content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
