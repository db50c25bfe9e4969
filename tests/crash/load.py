"""Clients that publish and consume without a pause, whatever becomes of the broker: official Pub/Sub clients, and one
of the work queue. They tell the ledger."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import os
import random
import threading
import zlib
from collections.abc import Callable
from typing import Any

import grpc
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, FlowControl, LimitExceededBehavior, PublisherOptions
from google.cloud.pubsub_v1.types import PublishFlowControl as PublishFlow
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from heliograph.demo.publishers import RETRY
from tests.crash.ledger import Deliveries, Jobs, Published
from tests.server.clients import Http

KEYS = 8
PAYLOAD_BYTES = 400
ATTEMPTS_MAX = 5  # of the subscription whose dead letters are forwarded
RETRIES_MAX = 2  # of the queue
LEASE_SECONDS = 10  # the shortest that Pub/Sub has: what a crash interrupts comes again so soon
FLOW = FlowControl(
    max_messages=300,
    min_duration_per_lease_extension=LEASE_SECONDS,
    max_duration_per_lease_extension=LEASE_SECONDS,
)
CONNECTION = [
    # as a client whose broker restarts in a second would be set up; by default it waits up to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def is_poison(payload: bytes) -> bool:
    """Whether no consumer will ever acknowledge it."""
    return zlib.crc32(payload) % 16 == 0


def channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=[*CONNECTION, ("grpc.use_local_subchannel_pool", 1)])


def publisher_client(port: int, *, ordering: bool) -> Any:
    flow = PublishFlow(message_limit=200, limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
    return pubsub_v1.PublisherClient(
        batch_settings=BatchSettings(max_messages=20, max_latency=0.01),
        publisher_options=PublisherOptions(enable_message_ordering=ordering, flow_control=flow, retry=RETRY),
        transport=PublisherGrpcTransport(channel=channel(port)),
    )


def subscriber_client(port: int) -> Any:
    return pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel(port)))


class Worker:
    """A thread that works in turns until it is told to stop.

    Args:
        turn: what it does each time.
        pause_seconds: between two turns.
    """

    def __init__(self, turn: Callable[[], object], pause_seconds: float) -> None:
        self.failure: BaseException | None = None
        self._turn = turn
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_seconds):
                self._turn()
        except BaseException as error:
            self.failure = error


class Publisher:
    """Publishes to one topic; with `ordering`, messages of several keys, numbered in each.

    The client itself repeats a call that got no answer. Where it gives up, the number is published again before any
    later one of its key.
    """

    def __init__(self, port: int, topic: str, *, ordering: bool, per_turn: int = 8) -> None:
        self.published = Published()
        self.given_up: list[BaseException] = []
        self._client = publisher_client(port, ordering=ordering)
        self._topic = topic
        self._ordering = ordering
        self._per_turn = per_turn
        self._numbers = itertools.count(1)
        self._unanswered = 0
        self._changed = threading.Condition()
        self._worker = Worker(self._turn, 0.04)

    def _turn(self) -> None:
        for _ in range(self._per_turn):
            number = next(self._numbers)
            key = f"key-{number % KEYS}" if self._ordering else ""
            head = f"{key} {number // KEYS + (number % KEYS > 0)} " if self._ordering else f"message {number} "
            payload = head.encode() + os.urandom(PAYLOAD_BYTES)
            self.published.attempted.add(payload)
            with self._changed:
                self._unanswered += 1
            future = self._client.publish(self._topic, payload, ordering_key=key)
            future.add_done_callback(functools.partial(self._note, payload))

    def _note(self, payload: bytes, future: Any) -> None:
        failure = future.exception()
        if failure is None:
            self.published.answered[future.result()] = payload
        else:
            self.given_up.append(failure)
        with self._changed:
            self._unanswered -= 1
            self._changed.notify_all()

    def abandon(self) -> None:
        """Publish no more, whatever becomes of what is on its way. Idempotent, also after `stop`."""
        self._worker.tell_to_stop()
        self._client.transport.close()

    def stop(self) -> None:
        """Publish no more, and wait for every answer. Raises AssertionError: one was refused, or none came."""
        self._worker.stop()
        with self._changed:
            assert self._changed.wait_for(lambda: not self._unanswered, 60), f"{self._unanswered} publishes unanswered"
        self._client.stop()
        self._client.transport.close()
        assert self._worker.failure is None, self._worker.failure
        assert not self.given_up, self.given_up[:3]


class Consumer:
    """A streaming pull on one subscription.

    Args:
        port: of the broker.
        subscription: full resource name.
        deliveries: told of each message.
        settle: what becomes of it then.
    """

    def __init__(
        self, port: int, subscription: str, deliveries: Deliveries, settle: Callable[[Any, Deliveries], object]
    ) -> None:
        self.deliveries = deliveries
        self.failures: list[BaseException] = []
        self._settle = settle
        self._client = subscriber_client(port)
        self._subscription = subscription
        self._future = self._client.subscribe(subscription, self._receive, flow_control=FLOW)

    def _receive(self, message: Any) -> None:
        try:
            self.deliveries.note(message.message_id, message.data, message.delivery_attempt or 0)
            self._settle(message, self.deliveries)
        except BaseException as error:
            self.failures.append(error)
            raise

    def keep_open(self) -> None:
        """The client takes up a lost stream by itself; if it gives up, as an application that is started again."""
        if self._future.done():
            self.failures += [error for error in [self._future.exception()] if not _is_outage(error)]
            self._future = self._client.subscribe(self._subscription, self._receive, flow_control=FLOW)

    def abandon(self) -> None:
        """Consume no more. Idempotent, also after `stop`."""
        self._future.cancel()
        self._client.transport.close()

    def stop(self) -> None:
        self._future.cancel()
        with contextlib.suppress(Exception):
            self._future.result(15)
        self._client.close()
        assert not self.failures, self.failures[:3]


def _is_outage(error: BaseException | None) -> bool:
    return error is None or isinstance(error, exceptions.ServiceUnavailable | exceptions.RetryError)


def acknowledge(chance: random.Random, message: Any, _deliveries: Deliveries) -> None:
    """A plain subscription: now and then a message is given back."""
    if chance.random() < 0.05:
        message.nack()
    else:
        message.ack()


def acknowledge_exactly_once(message: Any, deliveries: Deliveries) -> None:
    """What is answered with success must never come again."""

    def note(future: Any) -> None:
        answered = deliveries.acknowledged if future.exception() is None else deliveries.unsure
        answered.add(message.message_id)

    message.ack_with_response().add_done_callback(note)


def acknowledge_unless_poison(chance: random.Random, message: Any, _deliveries: Deliveries) -> None:
    """Poison is always given back, others sometimes."""
    if is_poison(message.data) or chance.random() < 0.1:
        message.nack()
    else:
        message.ack()


class QueueClient:
    """A producer and two consumers of one work queue, over HTTP. A call without an answer is not repeated: whether it
    was carried out is unknown then.

    Job numbers tell what becomes of them: `n % 10 == 7` is rejected, `n % 10 == 3` given back whenever it comes.
    """

    def __init__(self, port: int, jobs: Jobs, queue: str, seed: int) -> None:
        self.jobs = jobs
        self._http = Http(port)
        self._queue = queue
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._producer = Worker(self._publish, 0.02)
        self._consumers = [Worker(self._consume, 0.002) for _ in range(2)]

    @staticmethod
    def must_die(number: int) -> bool:
        return number % 10 in (3, 7)

    def _call(self, command: str, **payload: Any) -> Any:
        """The answer's payload; None if there is none. An error that the broker answers with raises `Refused`."""
        try:
            answer = self._http.try_command(command, queue=self._queue, **payload)
        except (OSError, http.client.HTTPException):
            return None
        if not isinstance(answer.body, dict):
            return None
        if not answer.body["success"]:
            if answer.body["code"] == "Unavailable":
                return None
            raise Refused(answer.body["code"])
        return answer.body["payload"]

    def _publish(self) -> None:
        number = next(self._numbers)
        self.jobs.attempted.add(number)
        message = {"n": number, "pad": "x" * PAYLOAD_BYTES}
        answer = self._call("queue.publish", message=message, priority=self._chance.randrange(10))
        if answer is not None:
            self.jobs.answered[number] = answer["message_id"]

    def _consume(self) -> None:
        answer = self._call("queue.consume", timeout=0.2)
        if answer is None or answer["message_id"] is None:
            return
        number, jobs = answer["message"]["n"], self.jobs
        jobs.delivered(number, answer["message_id"], answer["retry_count"])
        lease = {"message_id": answer["message_id"], "lease_id": answer["lease_id"]}
        with contextlib.suppress(Refused):  # the lease is over: it comes again, or died
            if number % 10 == 7:
                self._settle(number, "rejected", self._call("queue.nack", requeue=False, **lease))
            elif number % 10 == 3 or self._chance.random() < 0.05:
                settled = self._call("queue.nack", **lease)
                if settled is not None and settled["action"] == "dead_lettered":
                    jobs.settled[number] = "dead"
            else:
                self._settle(number, "acknowledged", self._call("queue.ack", **lease))

    def _settle(self, number: int, fate: str, answer: Any) -> None:
        if answer is None:
            self.jobs.unsure.add(number)
        else:
            self.jobs.settled[number] = fate

    def abandon(self) -> None:
        """No more of it. Idempotent, also after `stop`."""
        for worker in (self._producer, *self._consumers):
            worker.tell_to_stop()

    def stop_producing(self) -> None:
        self._producer.stop()
        assert self._producer.failure is None, self._producer.failure

    def stop(self) -> None:
        for consumer in self._consumers:
            consumer.stop()
            assert consumer.failure is None, consumer.failure

    def depth(self) -> int:
        """Jobs that wait or are leased; -1 if there is no answer."""
        answer = self._call("queue.stats")
        return -1 if answer is None else int(answer["depth"] + answer["outstanding"])

    def dead_letters(self) -> list[dict[str, Any]]:
        answer = self._call("dlq.list", limit=10_000)
        assert answer is not None
        return list(answer["messages"])


class Refused(Exception):
    """The broker answered with an error of this code."""
