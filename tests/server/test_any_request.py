"""Whatever a request holds, a handler answers it, or fails with a code that no client retries (1.1.8)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.broker.broker import LocalBroker
from heliograph.errors import HeliographError
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.grpc.call import Unary
from heliograph.server.grpc.status import RpcError
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.methods import pubsub_methods
from heliograph.server.pubsub.texts import translate
from heliograph.server.routing import Event
from tests.server.clients import METHODS

ALLOWED = {3, 5, 6, 9, 10, 12}
"""Of those that clients retry only ABORTED, the answer to an outdated IAM policy."""

KINDS = ("topics", "subscriptions", "snapshots", "schemas")
TEXTS = st.sampled_from(
    ["", "x", "ä", "a.b.c", "labels", "push_config", "dead_letter_policy", "retry_policy", "1-1-1", "http://localhost/"]
    + [f"projects/p/{kind}/abc" for kind in KINDS]
)
PATHS = st.sampled_from(
    [
        field.name
        for resource in (proto.Topic, proto.Subscription, proto.Snapshot)
        for field in resource.DESCRIPTOR.fields
    ]
    + ["dead_letter_policy.max_delivery_attempts", "expiration_policy.ttl.nanos", "push_config.oidc_token.audience"]
)
NUMBERS = st.sampled_from([0, 1, 5, 10, 600, 86_400, 2**31 - 1, -1])
LARGE = st.one_of(NUMBERS, st.sampled_from([253_402_300_799, 2**63 - 1, -(2**63)]))


def names(field: Any, descriptor: Any) -> list[str]:
    """Names that the field is for; most of them exist."""
    if field.name in ("project", "parent"):
        return ["projects/p"]
    what = f"{descriptor.name}_{field.name}".lower() if field.name == "name" else field.name
    kinds = KINDS if what == "resource" else [kind for kind in KINDS if kind.rstrip("s") in what]
    return [f"projects/p/{kind}/{name}" for kind in kinds for name in ("abc", "abc", "xyz")]


def values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.sampled_from([b"", b"x", b"\xff\0", b'"x"'])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return st.sampled_from([0.0, 1.5])
    return LARGE if field.type == FieldDescriptor.TYPE_INT64 else NUMBERS


def messages(descriptor: Any, depth: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of the message's class: some of its fields, whatever they mean."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    named: dict[str, st.SearchStrategy[Any]] = {}
    if depth <= 0 or descriptor.full_name == "google.protobuf.Struct":
        return st.just({})
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fields[field.name] = st.dictionaries(TEXTS, TEXTS, max_size=2)
        elif descriptor.full_name == "google.protobuf.FieldMask":
            fields[field.name] = st.lists(PATHS, min_size=1, max_size=2)
        elif field.is_repeated:
            fields[field.name] = st.lists(values(field, depth), max_size=2)
        else:
            fields[field.name] = values(field, depth)
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated and (usual := names(field, descriptor)):
            named[field.name] = st.sampled_from([*usual * 2, ""])
            del fields[field.name]
        elif field.name in ("topic", "subscription", "snapshot", "update_mask"):
            named[field.name] = fields.pop(field.name)
    return st.fixed_dictionaries(named, optional=fields)


class Call:
    request_bytes = 100

    @staticmethod
    async def receive() -> Event:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    @staticmethod
    def timeout_seconds() -> float:
        return 0.0


async def code_of(method: str, request: Any) -> int:
    broker = LocalBroker()
    table = pubsub_methods(broker, Feeds(broker), Closing())

    async def call(name: str, message: Any) -> None:
        unary = table[METHODS[name][0]]
        assert isinstance(unary, Unary)
        await unary.handler(message, Call())

    try:
        await call("CreateTopic", proto.Topic(name="projects/p/topics/abc"))
        subscription = proto.Subscription(name="projects/p/subscriptions/abc", topic="projects/p/topics/abc")
        await call("CreateSubscription", subscription)
        snapshot = proto.CreateSnapshotRequest(name="projects/p/snapshots/abc", subscription=subscription.name)
        await call("CreateSnapshot", snapshot)
        await call(method, request)
    except RpcError as error:
        return error.code
    except HeliographError as error:
        return translate(error).code
    finally:
        broker.close()
    return 0


UNARY = sorted(name for name, (_, method) in METHODS.items() if isinstance(method, Unary))


@pytest.mark.parametrize("name", UNARY)
def test_1_1_8_no_request_makes_a_handler_fail(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request_class = METHODS[name][1].request_class

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(request_class.DESCRIPTOR))
    def check(fields: dict[str, Any]) -> None:
        caplog.set_level(logging.CRITICAL)
        try:
            request = request_class(**fields)
        except (ValueError, TypeError):
            return  # not what could be sent
        assert asyncio.run(code_of(name, request)) in ALLOWED | {0}

    check()
