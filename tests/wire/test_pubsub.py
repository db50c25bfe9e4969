"""Messages put together by hand are what the official classes make of them."""

from __future__ import annotations

from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from heliograph.engine.message import Delivery, Message
from heliograph.wire.pubsub import DeliveryEncoder, draft, encode_message, publish_response, received_message
from heliograph.wire.varint import varint

PubsubMessage = types.PubsubMessage.pb()
PullResponse = types.PullResponse.pb()
StreamingPullResponse = types.StreamingPullResponse.pb()
PublishResponse = types.PublishResponse.pb()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
messages = st.builds(
    Message,
    sequence=st.integers(1, 10**12 - 1),
    publish_time_ns=st.integers(0, 2**62),
    data=st.binary(max_size=300),
    attributes=st.dictionaries(texts, texts, max_size=5),
    ordering_key=texts,
)
ids = st.integers(1, 10**30).map(str)


def official(message: Message, message_id: str) -> object:
    expected = PubsubMessage(
        data=message.data, attributes=message.attributes, ordering_key=message.ordering_key, message_id=message_id
    )
    expected.publish_time.FromNanoseconds(message.publish_time_ns)
    return expected


@given(messages, ids)
def test_a_message_is_encoded_as_the_official_class_does(message: Message, message_id: str) -> None:
    assert PubsubMessage.FromString(encode_message(message, message_id)) == official(message, message_id)


@given(st.lists(st.tuples(messages, ids, texts, st.integers(0, 2**31 - 1)), max_size=5))
def test_joined_entries_are_a_pull_response_and_a_streaming_pull_response(
    rows: list[tuple[Message, str, str, int]],
) -> None:
    encoded = b"".join(received_message(ack_id, encode_message(m, number), tries) for m, number, ack_id, tries in rows)
    expected = [
        {"ack_id": ack_id, "message": official(m, number), "delivery_attempt": tries}
        for m, number, ack_id, tries in rows
    ]
    assert PullResponse.FromString(encoded) == PullResponse(received_messages=expected)
    assert StreamingPullResponse.FromString(encoded) == StreamingPullResponse(received_messages=expected)


@given(st.lists(ids, max_size=20))
def test_message_ids_are_a_publish_response(message_ids: list[str]) -> None:
    assert PublishResponse.FromString(publish_response(message_ids)) == PublishResponse(message_ids=message_ids)


@given(messages)
def test_what_was_published_is_what_is_delivered(message: Message) -> None:
    published = PubsubMessage.FromString(encode_message(message, "1"))
    again = draft(published)
    assert (again.data, dict(again.attributes), again.ordering_key) == (
        message.data,
        dict(message.attributes),
        message.ordering_key,
    )


@given(st.integers(0, 2**63))
def test_varints_are_read_back_by_protobuf(value: int) -> None:
    # field 1 of google.protobuf.UInt64Value
    from google.protobuf.wrappers_pb2 import UInt64Value

    assert UInt64Value.FromString(b"\x08" + varint(value)).value == value


def delivery(number: int, attempt: int = 1, data: bytes = b"x") -> Delivery:
    return Delivery(Message(number, 1, data), str(number), f"ack-{number}-{attempt}", attempt, 0)


def test_a_message_is_encoded_once_for_all_its_deliveries() -> None:
    encoder = DeliveryEncoder()
    (first,) = encoder.encode([delivery(1)], tell_attempt=False)
    changed = Delivery(Message(1, 1, b"never looked at"), "1", "ack-1-2", 2, 0)
    assert encoder.encode([changed], tell_attempt=False) == [first.replace(b"ack-1-1", b"ack-1-2")]


def test_the_attempt_is_told_only_when_asked_for() -> None:
    encoder = DeliveryEncoder()
    told = PullResponse.FromString(encoder.encode([delivery(1, attempt=3)], tell_attempt=True)[0])
    untold = PullResponse.FromString(encoder.encode([delivery(1, attempt=3)], tell_attempt=False)[0])
    assert (told.received_messages[0].delivery_attempt, untold.received_messages[0].delivery_attempt) == (3, 0)


def test_encoded_messages_are_kept_within_a_bound() -> None:
    encoder = DeliveryEncoder(bytes_max=10_000)
    for number in range(1, 1_000):
        encoder.encode([delivery(number, data=b"x" * 100)], tell_attempt=False)
    encoder.encode([delivery(1_000, data=b"x" * 20_000)], tell_attempt=False)
    kept = [*encoder._young.values(), *encoder._old.values()]
    assert 0 < sum(map(len, kept)) <= 10_000
