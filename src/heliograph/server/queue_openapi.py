"""The OpenAPI description of the work-queue door, made from the types that its requests are checked by; at
`/openapi.json`."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.server import queue_answers as a
from heliograph.server.http import answer_json
from heliograph.server.queue_rest import OPERATIONS, PREFIX, Operation
from heliograph.server.routing import Receive, Route, Scope, Send

OPENAPI_PATH = "/openapi.json"

_REF = "#/components/schemas/"
_NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]*$"}


def openapi_route(version: str) -> Route:
    """Serves the description; made when it is first asked for.

    Args:
        version: of Heliograph.
    """
    kept: list[dict[str, Any]] = []

    async def describe(_scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        if not kept:
            kept.append(openapi_document(version))
        await answer_json(send, kept[0])

    return Route("GET", OPENAPI_PATH, describe)


def openapi_document(version: str) -> dict[str, Any]:
    """The description.

    Args:
        version: of Heliograph.
    """
    types: dict[type, None] = dict.fromkeys([a.Request, a.Answer, a.Failure])
    for operation in OPERATIONS:
        types.update(dict.fromkeys((operation.request, *operation.answers)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    by_type = dict(zip(types, schemas, strict=True))
    envelope, answer, failure = by_type[a.Request], by_type[a.Answer], by_type[a.Failure]
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        fields = components[by_type[operation.request]["$ref"].removeprefix(_REF)]
        answers = [by_type[kind] for kind in operation.answers]
        described = _operation(operation, fields, answers[0] if len(answers) == 1 else {"anyOf": answers}, failure)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    paths["/api/v1/command"] = {
        "post": {
            "operationId": "command",
            "summary": "Any command of work queues, in an envelope; also over a WebSocket, at /api/v1/ws.",
            "requestBody": _content(envelope),
            "responses": {"200": _response(answer), "default": _response(failure)},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Heliograph: work queues", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(
    operation: Operation, fields: dict[str, Any], answered: dict[str, Any], failure: dict[str, Any]
) -> dict[str, Any]:
    in_path = {"queue": "name" if operation.command == "queue.create" else "queue", "consumer": "consumer_id"}
    named = [name for name in in_path if f"{{{name}}}" in operation.path]
    taken = {in_path[name] for name in named}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _NAME if name == "queue" else _CONSUMER}
        for name in named
    ]
    properties = {name: schema for name, schema in fields["properties"].items() if name not in taken}
    required = [name for name in fields.get("required", ()) if name not in taken]
    described: dict[str, Any] = {
        "operationId": operation.command.replace(".", "_"),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": _response(answered), "default": _response(failure)},
    }
    if operation.method == "GET":
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in properties.items()
        ]
    elif operation.method == "POST" and properties:
        described["requestBody"] = _content({"type": "object", "properties": properties, "required": required})
    return described


_CONSUMER = {"type": "string", "minLength": 1, "pattern": r"^[^/\x00-\x1f\x7f]+$"}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _response(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "JSON", "content": {"application/json": {"schema": schema}}}
