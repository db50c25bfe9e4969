"""What the store's form of a message costs, beside the protocol's (docs/adr/0003). Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from google.pubsub_v1.types import PublishRequest, PubsubMessage

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph.engine.message import Message

MESSAGES = 20_000
BATCH = 100
ATTRIBUTES = (0, 4)
PAYLOADS = (100, 1000)

# raw protobuf, as on every hot path
_Message: Any = type(PubsubMessage.pb(PubsubMessage()))
_Batch: Any = type(PublishRequest.pb(PublishRequest()))
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message])


def _messages(attributes: int, payload_bytes: int) -> list[Message]:
    named = {f"key{number}": f"value-{number}-abcdef" for number in range(attributes)}
    data = b"x" * payload_bytes
    return [
        Message(10**7 + number, 1_700_000_000_123_456_789 + number, data, named, "N14228") for number in range(BATCH)
    ]


@suite.scenario(peer="encode_protobuf", attributes=ATTRIBUTES, payload_bytes=PAYLOADS)
def encode_msgpack(scale: Scale, *, attributes: int, payload_bytes: int) -> Iterator[Load]:
    """A batch of the engine's messages to bytes."""
    messages = _messages(attributes, payload_bytes)
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> Figures:
        for _ in range(operations // BATCH):
            body = _encoder.encode(messages)
        return {"bytes": len(body) / BATCH}

    yield Load(run, operations)


@suite.scenario(attributes=ATTRIBUTES, payload_bytes=PAYLOADS)
def encode_protobuf(scale: Scale, *, attributes: int, payload_bytes: int) -> Iterator[Load]:
    """The same as a list of PubsubMessage."""
    messages = _messages(attributes, payload_bytes)
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> Figures:
        for _ in range(operations // BATCH):
            body = _to_protobuf(messages)
        return {"bytes": len(body) / BATCH}

    yield Load(run, operations)


@suite.scenario(peer="decode_protobuf", attributes=ATTRIBUTES, payload_bytes=PAYLOADS)
def decode_msgpack(scale: Scale, *, attributes: int, payload_bytes: int) -> Iterator[Load]:
    """Bytes to a batch of the engine's messages."""
    messages = _messages(attributes, payload_bytes)
    body = _encoder.encode(messages)
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> None:
        for _ in range(operations // BATCH):
            decoded = _decoder.decode(body)
        assert decoded == messages

    yield Load(run, operations)


@suite.scenario(attributes=ATTRIBUTES, payload_bytes=PAYLOADS)
def decode_protobuf(scale: Scale, *, attributes: int, payload_bytes: int) -> Iterator[Load]:
    """The same from a list of PubsubMessage."""
    messages = _messages(attributes, payload_bytes)
    body = _to_protobuf(messages)
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> None:
        for _ in range(operations // BATCH):
            decoded = [_from_protobuf(message) for message in _Batch.FromString(body).messages]
        assert decoded == messages

    yield Load(run, operations)


def _to_protobuf(messages: list[Message]) -> bytes:
    batch = _Batch()
    for message in messages:
        seconds, nanos = divmod(message.publish_time_ns, 10**9)
        batch.messages.append(
            _Message(
                data=message.data,
                attributes=message.attributes,
                message_id=str(message.sequence),
                publish_time={"seconds": seconds, "nanos": nanos},
                ordering_key=message.ordering_key,
            )
        )
    body: bytes = batch.SerializeToString()
    return body


def _from_protobuf(message: Any) -> Message:
    time = message.publish_time
    publish_time_ns = time.seconds * 10**9 + time.nanos
    return Message(
        int(message.message_id), publish_time_ns, message.data, dict(message.attributes), message.ordering_key
    )
