"""What is to exist when the server starts: schemas, topics, subscriptions and queues that a configuration file names.

Each is created through the same method that a client would call, so the rules are the same. What exists already is left
alone: a difference between it and the file is told, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor

from heliograph.broker.protocol import Broker
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import AlreadyExists, HeliographError, InvalidArgument, QueueExists
from heliograph.server import queue_requests
from heliograph.server.grpc.call import Method
from heliograph.server.grpc.status import RpcError
from heliograph.server.pubsub import proto
from heliograph.server.rest.documents import BadDocument, Document, canonical, fields_of, message_of
from heliograph.server.routing import ClientGone, Event
from heliograph.wire.queues import QueueConfig, check_name

KINDS = ("schemas", "topics", "subscriptions", "queues")
"""In the order in which they are made: a topic may name a schema, a subscription its topic and another one."""

_SHOWN_CHARACTERS_MAX = 60
# fields that hold the name of another resource, and of which collection that is
_REFERENCES: dict[str, dict[tuple[str, ...], str]] = {
    "topics": {("schemaSettings", "schema"): "schemas"},
    "subscriptions": {("topic",): "topics", ("deadLetterPolicy", "deadLetterTopic"): "topics"},
}


class Wanted(NamedTuple):
    """A resource that is to exist.

    Args:
        kind: one of `KINDS`.
        position: which of its kind, for who asked.
        place: where it is asked for, for people: "topics[0]".
        document: its fields under the protocol's names, either spelling. Names may be short: `orders` is
            `projects/PROJECT/topics/orders`.
    """

    kind: str
    position: int
    place: str
    document: Mapping[str, Any]


class Refused(InvalidArgument):
    """Something that is asked for cannot be.

    Args:
        wanted: what.
        problem: why.
        field: which of its fields is at fault, as it was spelled; "" = not known.
    """

    def __init__(self, wanted: Wanted, problem: str, field: str = "") -> None:
        super().__init__(f"{wanted.place}: {problem}")
        self.wanted = wanted
        self.field = field


class _Call:
    """A call that nobody made."""

    request_bytes = 0

    async def receive(self) -> Event:
        raise ClientGone

    def timeout_seconds(self) -> float | None:
        return None


class _Resource(NamedTuple):
    """A resource of Pub/Sub, understood."""

    wanted: Wanted
    name: str
    document: Document
    message: Any


class _Queue(NamedTuple):
    """A queue, understood."""

    wanted: Wanted
    name: str
    settings: SubscriptionSettings


class Initial:
    """What is to exist.

    Args:
        wanted: in any order.
        project: of names that are short; "" = there must be none.
        tell: told each difference, in one line.

    Raises:
        Refused: something is not a resource.
    """

    def __init__(self, wanted: Iterable[Wanted], project: str, tell: Callable[[str], object]) -> None:
        self._project = project
        self._tell = tell
        ordered = sorted(wanted, key=lambda one: KINDS.index(one.kind))
        self._queues = [_queue(one) for one in ordered if one.kind == "queues"]
        self._resources = [self._resource(one) for one in ordered if one.kind != "queues"]

    async def establish(self, broker: Broker, methods: Mapping[str, Method]) -> None:
        """Create what is not there.

        Args:
            broker: for queues.
            methods: of Pub/Sub, by full name.

        Raises:
            Refused: the broker will not have it.
        """
        for resource in self._resources:
            await self._establish(resource, methods)
        for queue in self._queues:
            await self._establish_queue(queue, broker)

    async def _establish(self, resource: _Resource, methods: Mapping[str, Method]) -> None:
        create, get = _METHODS[resource.wanted.kind]
        try:
            await _call(methods, create, _creation(resource))
        except (RpcError, HeliographError) as error:
            if error.code != AlreadyExists.code:
                raise Refused(resource.wanted, error.message) from error
        else:
            return
        argument = "name" if resource.wanted.kind == "schemas" else resource.wanted.kind[:-1]
        stored = await _call(methods, get, {argument: resource.name})
        self._tell_differences(resource.wanted, resource.name, _differences(resource, stored))

    async def _establish_queue(self, queue: _Queue, broker: Broker) -> None:
        try:
            await broker.create_queue(queue.name, queue.settings)
        except QueueExists:
            stored = broker.get_subscription(QUEUE_PREFIX + queue.name).settings
            differences = [
                f"{field} is {_shown(getattr(stored, field))}, not {_shown(getattr(queue.settings, field))}"
                for field in queue.settings.__struct_fields__
                if getattr(stored, field) != getattr(queue.settings, field)
            ]
            self._tell_differences(queue.wanted, queue.name, differences)
        except (AlreadyExists, InvalidArgument) as error:
            raise Refused(queue.wanted, error.message) from error

    def _tell_differences(self, wanted: Wanted, name: str, differences: list[str]) -> None:
        if differences:
            told = "; ".join(differences)
            self._tell(f"{wanted.place}: {name} exists already and stays as it is, although its {told}")

    # ── understanding ───────────────────────────────────────────────────────────────────────────────────────────────

    def _resource(self, wanted: Wanted) -> _Resource:
        kind = _CLASSES[wanted.kind]
        try:
            document = canonical(dict(wanted.document), kind.DESCRIPTOR)
            self._complete_names(wanted, document)
            message = message_of(document, kind())
        except BadDocument as error:
            field = ".".join(part for part in (error.where, error.name) if part)
            problem = f"unknown key {field}" if error.name else error.problem
            raise Refused(wanted, problem, field) from error
        if not message.name:
            raise Refused(wanted, "it has no name")
        return _Resource(wanted, message.name, document, message)

    def _complete_names(self, wanted: Wanted, document: Document) -> None:
        places: dict[tuple[str, ...], str] = {("name",): wanted.kind, **_REFERENCES.get(wanted.kind, {})}
        for (*way, last), collection in places.items():
            holder: Any = document
            for name in way:
                holder = holder.get(name, {})
            short = holder.get(last)
            if isinstance(short, str) and short and "/" not in short:
                holder[last] = self._full(wanted, short, collection, last)

    def _full(self, wanted: Wanted, short: str, collection: str, field: str) -> str:
        if not self._project:
            problem = f"{short} is not a full name, and no project is given: set --project, or project under [server]"
            raise Refused(wanted, problem, field)
        return f"projects/{self._project}/{collection}/{short}"


_CLASSES: dict[str, Any] = {"schemas": proto.Schema, "topics": proto.Topic, "subscriptions": proto.Subscription}

_METHODS = {
    "schemas": ("/google.pubsub.v1.SchemaService/CreateSchema", "/google.pubsub.v1.SchemaService/GetSchema"),
    "topics": ("/google.pubsub.v1.Publisher/CreateTopic", "/google.pubsub.v1.Publisher/GetTopic"),
    "subscriptions": (
        "/google.pubsub.v1.Subscriber/CreateSubscription",
        "/google.pubsub.v1.Subscriber/GetSubscription",
    ),
}


async def _call(methods: Mapping[str, Method], name: str, request: Any) -> Any:
    """Call a method; `request` is its message, or fields of it."""
    method = methods[name]
    message = method.request_class(**request) if isinstance(request, dict) else request
    handler: Any = method.handler
    return method.response_class.FromString(await handler(message, _Call()))


def _creation(resource: _Resource) -> Any:
    """The request that creates a resource."""
    if resource.wanted.kind != "schemas":
        return resource.message
    parent, _, schema_id = resource.name.rpartition("/schemas/")
    return {"parent": parent, "schema_id": schema_id, "schema": resource.message}


def _differences(resource: _Resource, stored: Any) -> list[str]:
    """Where what is stored is not what the document says; what the document does not mention is no difference."""
    wanted, there = (
        json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
        for message in (resource.message, stored)
    )
    return list(_compared(resource.document, wanted, there, resource.message.DESCRIPTOR, ""))


def _compared(
    document: Document, wanted: Document, there: Document, descriptor: Descriptor, prefix: str
) -> Iterable[str]:
    for name, said in document.items():
        field = fields_of(descriptor)[name]
        wish, fact = wanted.get(name), there.get(name)
        message = field.message_type
        is_object = message is not None and not field.is_repeated and isinstance(wish, dict) and said
        if is_object and message is not None and isinstance(fact, dict):
            yield from _compared(said, wish or {}, fact, message, f"{prefix}{field.name}.")
        elif wish != fact:
            yield f"{prefix}{field.name} is {_shown(fact)}, not {_shown(wish)}"


def _queue(wanted: Wanted) -> _Queue:
    known = [*QueueConfig.__struct_fields__, "name"]
    unknown = next((key for key in wanted.document if key not in known), None)
    if unknown is not None:
        raise Refused(wanted, f"unknown key {unknown}; a queue has {', '.join(sorted(known))}", unknown)
    try:
        request = msgspec.convert(dict(wanted.document), queue_requests.Create)
        check_name(request.name)
        return _Queue(wanted, request.name, request.settings())
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise Refused(wanted, f"{path.rstrip('`')}: {text}" if path else text, path.rstrip("`")) from None
    except InvalidArgument as error:
        raise Refused(wanted, error.message) from None


def _shown(value: object) -> str:
    if value is None or value == "":
        return "not set"
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."
