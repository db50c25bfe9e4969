"""Clients that speak REST to it, unmodified: Google's own for Python, and gcloud-aio-pubsub."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import Conflict, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherRestTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberRestTransport

from heliograph.server.app import Serving


@pytest.fixture(scope="module")
def transports(server: Serving) -> Iterator[tuple[Any, Any]]:
    """`transport="rest"` by name always means https and a real account; a transport of one's own does not."""
    host = f"http://127.0.0.1:{server.port}"
    publisher = PublisherRestTransport(host=host, credentials=AnonymousCredentials())
    subscriber = SubscriberRestTransport(host=host, credentials=AnonymousCredentials())
    yield publisher, subscriber
    publisher.close()
    subscriber.close()


def test_the_official_client_works_over_rest(transports: tuple[Any, Any], project: str) -> None:
    publisher, subscriber = PublisherClient(transport=transports[0]), SubscriberClient(transport=transports[1])
    topic, subscription = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"
    created = publisher.create_topic(name=topic, timeout=30)
    assert created == publisher.get_topic(topic=topic)
    with pytest.raises(Conflict):
        publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic, ack_deadline_seconds=20)
    published = publisher.publish(topic=topic, messages=[{"data": b"\xff\x00", "attributes": {"k": "v"}}])
    received = subscriber.pull(subscription=subscription, max_messages=1).received_messages[0]
    assert [received.message.message_id] == list(published.message_ids)
    assert (received.message.data, dict(received.message.attributes)) == (b"\xff\x00", {"k": "v"})
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[received.ack_id], ack_deadline_seconds=30)
    subscriber.acknowledge(subscription=subscription, ack_ids=[received.ack_id])
    assert [one.name for one in subscriber.list_subscriptions(project=project)] == [subscription]
    subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound, match=r"Resource not found \(resource=sub-1\)"):
        subscriber.get_subscription(subscription=subscription)


def test_the_official_batching_publisher_works_over_rest(transports: tuple[Any, Any], project: str) -> None:
    topic = f"{project}/topics/topic-1"
    publisher = pubsub_v1.PublisherClient(transport=transports[0])
    publisher.create_topic(name=topic)
    futures = [publisher.publish(topic, b"message %d" % number, number=str(number)) for number in range(20)]
    assert len({future.result(30) for future in futures}) == 20
    publisher.stop()


def test_gcloud_aio_pubsub_works(server: Serving, project: str) -> None:
    aio = pytest.importorskip("gcloud.aio.pubsub")
    root = f"http://127.0.0.1:{server.port}/v1"
    topic, subscription = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"

    async def work() -> tuple[Any, ...]:
        async with aio.PublisherClient(api_root=root) as publisher, aio.SubscriberClient(api_root=root) as subscriber:
            await publisher.create_topic(topic)
            await subscriber.create_subscription(subscription, topic)
            message = aio.PubsubMessage(b"hello", language="en")
            published = await publisher.publish(topic, [message])
            received = await subscriber.pull(subscription, max_messages=10)
            await subscriber.modify_ack_deadline(subscription, [one.ack_id for one in received], 30)
            await subscriber.acknowledge(subscription, [one.ack_id for one in received])
            listed = await publisher.list_topics(project)
            await subscriber.delete_subscription(subscription)
            await publisher.delete_topic(topic)
            return published, received, listed

    published, received, listed = asyncio.run(work())
    assert [one.message_id for one in received] == published["messageIds"]
    assert (received[0].data, received[0].attributes) == (b"hello", {"language": "en"})
    assert listed["topics"] == [{"name": topic, "state": "ACTIVE"}]
