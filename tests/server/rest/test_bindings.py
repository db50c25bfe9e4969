"""Every binding of every method, with random requests."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.server.rest.bindings import Binding
from heliograph.server.rest.paths import PathTable, PathTemplate
from tests.server.rest.echo import BINDINGS, Echo, request_class
from tests.server.rest.messages import messages

ECHO = Echo()
IDS = st.text("abcXYZ019-_.~+%", min_size=3, max_size=8).map("a".__add__)


def name_of(binding: Binding) -> str:
    return f"{binding.http_method} {binding.template}"


def test_all_unary_methods_of_pubsub_and_iam_have_bindings() -> None:
    methods = {binding.method for binding in BINDINGS}
    by_service = {service: sum(f".{service}/" in method for method in methods) for service in SERVICES}
    assert by_service == SERVICES


SERVICES = {"Publisher": 9, "Subscriber": 15, "SchemaService": 10, "IAMPolicy": 3}


@pytest.mark.parametrize("binding", BINDINGS, ids=name_of)
@settings(max_examples=12)
@given(data=st.data())
def test_a_request_sent_by_its_binding_arrives_as_it_was(binding: Binding, data: st.DataObject) -> None:
    template = PathTemplate(binding.template)
    request = data.draw(messages(request_class(binding.method)))
    bound = {}
    for variable in template.variables:
        pattern = template.segments[variable.first : variable.last + 1]
        bound[variable.field] = "/".join(data.draw(IDS) if part == "*" else part for part in pattern)
        set_field(request, variable.field, bound[variable.field])
    document = json_format.MessageToDict(request, preserving_proto_field_name=data.draw(st.booleans()))
    for field in bound:
        if not (binding.body == "*" and data.draw(st.booleans())):  # the body may repeat what the path says
            take(document, field)
    body, query = None, {}
    if binding.body == "*":
        body = document
    else:
        body = document.pop(binding.body, None) if binding.body else None
        keep_what_a_query_can_say(request, binding)
        query = flat(json_format.MessageToDict(without(request, bound, binding.body)))
    assert ECHO.understood(binding.http_method, template.expand(bound), body, **query) == request


def set_field(message: Any, path: str, value: str) -> None:
    *way, last = path.split(".")
    for name in way:
        message = getattr(message, name)
    setattr(message, last, value)


def take(document: dict[str, Any], path: str) -> None:
    *way, last = path.split(".")
    for name in way:
        document = document.get(name, {})
    document.pop(last, None)


def keep_what_a_query_can_say(request: Any, binding: Binding) -> None:
    """Not a list, nor that an object is there but empty."""
    for field, value in request.ListFields():
        is_empty = field.message_type is not None and not field.is_repeated and not value.ListFields()
        if field.name != binding.body and (field.is_repeated or is_empty):
            request.ClearField(field.name)


def without(request: Any, bound: dict[str, str], body: str) -> Any:
    rest = type(request)()
    rest.CopyFrom(request)
    for name in [*bound, *([body] if body else [])]:
        rest.ClearField(name)
    return rest


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            pairs |= flat(value, f"{prefix}{name}.")
        else:
            pairs[prefix + name] = str(value).lower() if isinstance(value, bool) else value
    return pairs


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/projects/p/topics/t", "projects/p/topics/t"),
        ("/v1/projects/example.com:p/topics/t", "projects/example.com:p/topics/t"),
        ("/v1/projects/p/topics/t:publish", None),
        ("/v1/projects/p/topics/", None),
        ("/v1/projects//topics/t", None),
        ("/v1/projects/p/topics/t/", None),
        ("/v1/projects/p/subscriptions/t", None),
        ("/v1/projects/p/topics", None),
        ("/v1", None),
        ("", None),
    ],
)
def test_a_template_matches_its_own_paths_alone(path: str, field: str | None) -> None:
    table = PathTable([("GET", PathTemplate("/v1/{topic=projects/*/topics/*}"), "topic")])
    assert table.find("GET", path) == (None if field is None else ("topic", {"topic": field}))


@pytest.mark.parametrize("text", ["/v1/{name=**}", "/v1/{name=projects/*"])
def test_a_template_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path template"):
        PathTemplate(text)
