"""Query strings: the fields of a request that are neither in its path nor in its body, and the parameters that every
Google API takes (cloud.google.com/apis/docs/system-parameters)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from heliograph.server.grpc.status import INVALID_ARGUMENT, RpcError
from heliograph.server.rest.documents import Document, fields_of, put, unknown_name

_PARAMETERS_MAX = 1_000
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_IGNORED = frozenset(
    {
        "access_token",
        "bearer_token",
        "key",
        "oauth_token",
        "quotaUser",
        "trace",
        "uploadType",
        "upload_protocol",
        "userIp",
        "xgafv",
    }
)
"""Who calls, and in which form errors come: the one form that this server has."""


class Options(NamedTuple):
    """How the answer is wanted.

    Args:
        pretty: for people.
        numbers_for_enums: ``alt=json;enum-encoding=int``, as official clients ask.
        selection: ``fields``: which parts of the answer; "" = all.
    """

    pretty: bool = True
    numbers_for_enums: bool = False
    selection: str = ""


_DEFAULTS = Options()


def read_query(query_string: bytes, document: Document, descriptor: Descriptor) -> Options:
    """Put the fields that a query string names into `document`, and return the rest.

    Args:
        query_string: ASGI's.
        document: canonical; changed.
        descriptor: of the request.

    Raises:
        RpcError: INVALID_ARGUMENT: no such field or parameter, not a value of it, or the body has another.
    """
    if not query_string:
        return _DEFAULTS
    system: dict[str, str] = {}
    for name, values in _parameters(query_string).items():
        plain = name.removeprefix("$")
        if plain in ("alt", "prettyPrint", "fields", "callback") or plain in _IGNORED or name.startswith("$."):
            system[plain.removeprefix(".")] = values[-1]
        else:
            _put_values(document, descriptor, name, values)
    return _options(system)


def _parameters(query_string: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARAMETERS_MAX
        )
    except ValueError:
        raise RpcError(INVALID_ARGUMENT, "The query string cannot be read.") from None


def _options(system: Mapping[str, str]) -> Options:
    alt, _, encoding = system.get("alt", "json").partition(";")
    if alt != "json" or encoding not in ("", "enum-encoding=int"):
        raise RpcError(INVALID_ARGUMENT, f"Invalid value for alt: {system['alt'][:100]}. This server answers in JSON.")
    if "callback" in system:
        raise RpcError(INVALID_ARGUMENT, "This server does not answer in JavaScript: leave out callback.")
    pretty = _BOOLEANS.get(system.get("prettyPrint", "true").lower())
    if pretty is None:
        raise RpcError(INVALID_ARGUMENT, f"Invalid value for prettyPrint: {system['prettyPrint'][:100]}")
    return Options(pretty, bool(encoding), system.get("fields", ""))


def _put_values(document: Document, descriptor: Descriptor, name: str, values: list[str]) -> None:
    field = _field(descriptor, name)
    if field.is_repeated:
        put(document, descriptor, name, [_json_value(value, field) for value in values], "query")
        return
    if len(values) > 1:
        raise RpcError(INVALID_ARGUMENT, f'The query parameter "{name}" is given more than once.')
    put(document, descriptor, name, _json_value(values[0], field), "query")


def _field(descriptor: Descriptor, name: str) -> FieldDescriptor:
    """The field that a parameter names: a scalar, or a message that JSON writes as a string.

    Raises:
        RpcError: INVALID_ARGUMENT: there is none that a query string can set.
    """
    field: FieldDescriptor | None = None
    message: Descriptor | None = descriptor
    for part in name.split("."):
        if message is None or (field is not None and field.is_repeated):
            raise unknown_name(name)
        field = fields_of(message).get(part)
        if field is None:
            raise unknown_name(name)
        message = field.message_type
    assert field is not None
    if message is not None and not message.full_name.startswith("google.protobuf."):
        raise unknown_name(name)
    return field


def _json_value(text: str, field: FieldDescriptor) -> Any:
    """`json_format` reads numbers and enums from strings as well, but not this."""
    if field.type == FieldDescriptor.TYPE_BOOL:
        return _BOOLEANS.get(text.lower(), text)
    return text
