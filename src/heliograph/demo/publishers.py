"""The publishers: one per airline, each a thread with an official client of its own, all publishing at once.

What they record is what the broker answered, nothing else. A flight counts as published when its future has a message
id; whether the client had to send it more than once, only the log can tell.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping, Sequence

import msgspec
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.futures import Future
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublisherOptions, PublishFlowControl

from heliograph.demo.flights import Flight

# With ordering keys the client sends one batch per key at a time, each in a thread of its own, so a call carries what
# has come together for one aircraft in `max_latency`. A longer wait makes fuller batches, and so does a wider window.
BATCHES = BatchSettings(max_messages=100, max_latency=0.3)
UNANSWERED_MAX = 4_000
# The client's own retry quadruples its wait each time, up to a minute: when a broker is back, much would still wait.
RETRY = Retry(
    predicate=if_exception_type(
        exceptions.Aborted,
        exceptions.Cancelled,
        exceptions.DeadlineExceeded,
        exceptions.InternalServerError,
        exceptions.ResourceExhausted,
        exceptions.ServiceUnavailable,
        exceptions.Unknown,
    ),
    initial=0.1,
    maximum=2.0,
    multiplier=1.5,
)


class Answer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A flight that the broker answered.

    Args:
        carrier: its airline.
        row: see `Flight.row`.
        message_id: what the broker calls it.
        duration_ns: from `publish()` to the answer.
    """

    carrier: str
    row: int
    message_id: str
    duration_ns: int


class Publishers:
    """All airlines' publishers.

    Args:
        topic: full resource name.
        airlines: flights per airline, in the order in which they are to be published.
    """

    def __init__(self, topic: str, airlines: Mapping[str, Sequence[Flight]]) -> None:
        self.complete = threading.Event()
        self.completed = 0.0
        self._topic = topic
        self._airlines = airlines
        self._unanswered = sum(map(len, airlines.values()))
        self._answers: list[Answer] = []
        self._clients: list[pubsub_v1.PublisherClient] = []
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to publish; `complete` is set when every flight is answered.

        The threads are daemons: with ordering the client repeats a call for ever, and must not keep a process alive
        whose broker is gone.
        """
        for carrier, flights in self._airlines.items():
            client = _client()
            self._clients.append(client)
            arguments = client, flights
            threading.Thread(target=self._run, args=arguments, name=f"publisher-{carrier}", daemon=True).start()

    def failure(self) -> BaseException | None:
        """What the first flight that was refused was refused with; None = none was."""
        return self._failure

    def stop(self) -> None:
        """Close the clients. Idempotent."""
        while self._clients:
            client = self._clients.pop()
            client.stop()
            client.transport.close()

    def expect(self, count: int) -> None:
        """Nothing to learn: what is to be published says how much it is."""

    def done(self) -> int:
        """How many flights are answered."""
        return len(self._answers)

    def result(self) -> list[Answer]:
        """What the broker has answered so far, in the order of the answers."""
        return list(self._answers)

    def _run(self, client: pubsub_v1.PublisherClient, flights: Sequence[Flight]) -> None:
        try:
            self._publish(client, flights)
        except Exception as error:
            self._failure = self._failure or error

    def _publish(self, client: pubsub_v1.PublisherClient, flights: Sequence[Flight]) -> None:
        encode = msgspec.json.Encoder().encode
        for flight in flights:
            future = client.publish(
                self._topic,
                encode(flight),
                ordering_key=flight.ordering_key,
                carrier=flight.carrier,
                origin=flight.origin,
                dest=flight.dest,
                cancelled="true" if flight.cancelled else "false",
            )
            future.add_done_callback(functools.partial(self._note, flight, time.perf_counter_ns()))

    def _note(self, flight: Flight, sent_ns: int, future: Future) -> None:
        failure = future.exception()
        if failure is not None:
            self._failure = self._failure or failure
            return
        answer = Answer(flight.carrier, flight.row, future.result(), time.perf_counter_ns() - sent_ns)
        with self._lock:
            self._answers.append(answer)
            self._unanswered -= 1
            if not self._unanswered:
                self.completed = time.monotonic()
                self.complete.set()


def encode_task(topic: str, airlines: Mapping[str, Sequence[Flight]]) -> bytes:
    """The arguments of `Publishers`, for another process."""
    return msgspec.msgpack.encode((topic, airlines))


def from_task(task: bytes) -> Publishers:
    """Publishers with the arguments that `encode_task` encoded."""
    return Publishers(*msgspec.msgpack.decode(task, type=tuple[str, dict[str, list[Flight]]]))


def _client() -> pubsub_v1.PublisherClient:
    flow_control = PublishFlowControl(message_limit=UNANSWERED_MAX, limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
    return pubsub_v1.PublisherClient(
        batch_settings=BATCHES,
        publisher_options=PublisherOptions(enable_message_ordering=True, flow_control=flow_control, retry=RETRY),
    )
