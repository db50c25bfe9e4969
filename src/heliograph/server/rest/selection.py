"""Partial responses: ``fields=topics(name,labels),nextPageToken`` (the "fields" parameter of Google's APIs)."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor import Descriptor

from heliograph.server.grpc.status import INVALID_ARGUMENT, RpcError
from heliograph.server.rest.documents import fields_of

Selection = dict[str, "Selection"]
"""Names to what is wanted below them; empty = everything. The name "*" means every name."""

_TOKENS = re.compile(r"\s*([(),/]|[A-Za-z0-9_*.\-]+)")
_DEPTH_MAX = 20


def parse_selection(text: str, descriptor: Descriptor) -> Selection:
    """A selection of the fields of a message.

    Raises:
        RpcError: INVALID_ARGUMENT: not the syntax, or there is no such field.
    """
    tokens, position = [], 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            raise _invalid(text)
        tokens.append(match[1])
        position = match.end()
    parser = _Parser(text, tokens)
    selection = parser.names(descriptor, 0)
    if parser.tokens:
        raise _invalid(text)
    return selection


def select(value: Any, selection: Selection) -> Any:
    """What of an answer is wanted. Lists are selected from element by element."""
    if not selection:
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    everything = selection.get("*")
    chosen = {}
    for name, item in value.items():
        below = selection.get(name, everything)
        if below is not None:
            chosen[name] = select(item, below)
    return chosen


class _Parser:
    """names := name [("/" name … | "(" names ")")] {"," …}"""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens[::-1]

    def names(self, descriptor: Descriptor | None, depth: int) -> Selection:
        selection: Selection = {}
        while True:
            self._name(selection, descriptor, depth)
            if self.tokens[-1:] != [","]:
                return selection
            self.tokens.pop()

    def _name(self, selection: Selection, descriptor: Descriptor | None, depth: int) -> None:
        name = self.tokens.pop() if self.tokens else ""
        if name in ("", "(", ")", ",", "/") or depth > _DEPTH_MAX:
            raise _invalid(self.text)
        name, below = self._field(name, descriptor)
        follows = self.tokens[-1:]
        inner: Selection = {}
        if follows == ["/"]:
            self.tokens.pop()
            self._name(inner, below, depth + 1)
        elif follows == ["("]:
            self.tokens.pop()
            inner = self.names(below, depth + 1)
            if not self.tokens or self.tokens.pop() != ")":
                raise _invalid(self.text)
        if name in selection and (not inner or not selection[name]):
            selection[name] = {}
        else:
            selection.setdefault(name, {}).update(inner)

    def _field(self, name: str, descriptor: Descriptor | None) -> tuple[str, Descriptor | None]:
        if name == "*" or descriptor is None or descriptor.GetOptions().map_entry:
            return name, None
        field = fields_of(descriptor).get(name)
        if field is None:
            raise _invalid(name)
        return field.json_name, field.message_type


def _invalid(text: str) -> RpcError:
    return RpcError(INVALID_ARGUMENT, f"Invalid field selection {text[:100]}")
