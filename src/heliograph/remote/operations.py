"""The operations of a broker as messages between two processes, read off the protocol `Broker` itself, so that both
sides have every operation that it has, with the same arguments, results and errors.

Frames are msgpack. A request is `(number, operation, arguments by name)`; number 0 wants no answer. An answer is
`(number, kind, body)`:

- ``value``: the result, which is durable. ``pending``: the result, and a later ``durable`` or ``failed`` says that its
  commit is over;
- ``error``: what the operation raised: `(name of the error, message, its attributes)`;
- ``event``: a watch, by the number of its request, has something to tell.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from heliograph.broker.protocol import Broker
from heliograph.broker.reply import Reply
from heliograph.errors import HeliographError, Internal, error_named

PATH = "/api/v1/broker"

VALUE, PENDING, DURABLE, FAILED, ERROR, EVENT = "value", "pending", "durable", "failed", "error", "event"

WATCH, UNWATCH, READ_LOG = "watch", "unwatch", "read_log"
"""Operations that are not simply called: the first answers with events, and a log is read in parts."""

_BY_HAND = {"watch", "read_log", "acknowledge_later", "now_ns", "close"}


class Operation(NamedTuple):
    """One operation.

    Args:
        name: of the method.
        signature: of the method, without `self`.
        arguments: a struct with a field for each parameter; those with a default may be left out.
        result: the type of what it answers.
        replies: whether it answers through a `Reply`.
        decode_arguments, decode_result: from msgpack.
    """

    name: str
    signature: inspect.Signature
    arguments: type[msgspec.Struct]
    result: Any
    replies: bool
    decode_arguments: Callable[[bytes | msgspec.Raw], Any]
    decode_result: Callable[[bytes | msgspec.Raw], Any]


def _operation(name: str, method: Callable[..., Any]) -> Operation:
    hints = typing.get_type_hints(method)
    result = hints.pop("return")
    replies = typing.get_origin(result) is Reply
    if replies:
        (result,) = typing.get_args(result)
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    fields: list[Any] = [
        (parameter.name, hints[parameter.name])
        if parameter.default is inspect.Parameter.empty
        else (parameter.name, hints[parameter.name] | UnsetType, UNSET)
        for parameter in parameters
    ]
    arguments = msgspec.defstruct(name, fields, kw_only=True)
    return Operation(
        name,
        signature.replace(parameters=parameters),
        arguments,
        result,
        replies,
        msgspec.msgpack.Decoder(arguments).decode,
        msgspec.msgpack.Decoder(result).decode,
    )


def _methods() -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in vars(Broker).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in _BY_HAND
    }


def _gives_parts(method: Callable[..., Any]) -> bool:
    return typing.get_origin(typing.get_type_hints(method)["return"]) is Iterator


OPERATIONS: dict[str, Operation] = {
    name: _operation(name, method) for name, method in _methods().items() if not _gives_parts(method)
}

NOT_REMOTE: tuple[str, ...] = tuple(name for name, method in _methods().items() if _gives_parts(method))
"""What gives its result in parts, which no single answer can carry: Spark's doors over HTTP have them."""


class WatchArguments(msgspec.Struct):
    """Of `watch`."""

    subscription: str


class UnwatchArguments(msgspec.Struct):
    """Of `unwatch`: the number of the request that began the watch."""

    number: int


class ReadLogArguments(msgspec.Struct):
    """Of `read_log`: one part, from `first` on, is answered."""

    topic: str
    first: int
    last: int


Request = tuple[int, str, msgspec.Raw]
Answer = tuple[int, str, msgspec.Raw]
_ErrorBody = tuple[str, str, dict[str, Any]]

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
decode_request: Callable[[bytes], Request] = msgspec.msgpack.Decoder(Request).decode
decode_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode
_decode_error: Callable[[bytes | msgspec.Raw], _ErrorBody] = msgspec.msgpack.Decoder(_ErrorBody).decode


def error_body(error: HeliographError) -> _ErrorBody:
    """An error, to be raised on the other side."""
    attributes = {name: value for name, value in vars(error).items() if isinstance(value, str | int | list)}
    return error.reason, error.message, attributes


def error_of(body: bytes | msgspec.Raw) -> HeliographError:
    """The error that the other side met."""
    reason, message, attributes = _decode_error(body)
    error = error_named(reason, message, otherwise=Internal)
    vars(error).update(attributes)
    return error
