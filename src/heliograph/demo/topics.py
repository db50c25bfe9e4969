"""The topic and the subscriptions that the demonstration uses, made with the official client."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from google.cloud import pubsub_v1
from google.protobuf import duration_pb2

PROJECT = "heliograph-demo"
RETENTION_SECONDS = 24 * 3600
PULL_MAX = 1_000


class Names(NamedTuple):
    """Full resource names."""

    flights: str
    ordered: str
    forwarder: str


NAMES = Names(
    flights=f"projects/{PROJECT}/topics/flights",
    ordered=f"projects/{PROJECT}/subscriptions/flights-in-order",
    forwarder=f"projects/{PROJECT}/subscriptions/flights-to-delays",
)


@contextlib.contextmanager
def emulator_host(endpoint: str) -> Iterator[None]:
    """Official clients made in this block talk to `endpoint` (HOST:PORT): it is all that they have to be told."""
    before = os.environ.get("PUBSUB_EMULATOR_HOST")
    os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
    try:
        yield
    finally:
        if before is None:
            del os.environ["PUBSUB_EMULATOR_HOST"]
        else:
            os.environ["PUBSUB_EMULATOR_HOST"] = before


def create() -> None:
    """Make the topic, which keeps its messages for a day so that Spark can read what is acknowledged, and both
    subscriptions."""
    with pubsub_v1.SubscriberClient() as subscriber:
        publisher = pubsub_v1.PublisherClient()
        retention = duration_pb2.Duration(seconds=RETENTION_SECONDS)
        publisher.create_topic(request={"name": NAMES.flights, "message_retention_duration": retention})
        publisher.transport.close()
        subscriber.create_subscription(
            request={
                "name": NAMES.ordered,
                "topic": NAMES.flights,
                "ack_deadline_seconds": 10,
                "enable_message_ordering": True,
            }
        )
        subscriber.create_subscription(
            request={"name": NAMES.forwarder, "topic": NAMES.flights, "ack_deadline_seconds": 10}
        )


def drain(subscription: str) -> list[tuple[str, bytes]]:
    """Take and acknowledge whatever a subscription still delivers at once: message ids and data."""
    taken: list[tuple[str, bytes]] = []
    with pubsub_v1.SubscriberClient() as subscriber:
        while True:
            # `return_immediately` is discouraged for waiting by polling; this asks once, when all leases are over
            request = {"subscription": subscription, "max_messages": PULL_MAX, "return_immediately": True}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                received = subscriber.pull(request=request).received_messages
            if not received:
                return taken
            taken += [(each.message.message_id, each.message.data) for each in received]
            subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in received])
