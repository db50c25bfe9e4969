"""A subscriber of the priority API: threads that take one message at a time and call its callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from heliograph.broker.reply import Reply
from heliograph.client.priority_broker import PriorityBroker
from heliograph.client.priority_message import PriorityMessage
from heliograph.client.priority_routing import Queue
from heliograph.client.priority_sources import Sources
from heliograph.engine.message import Delivery
from heliograph.errors import HeliographError, NotFound

Callback = Callable[[PriorityMessage], Any]

_log = logging.getLogger("heliograph")

_RETRY_SECONDS = 1.0  # after the broker could not answer (`Unavailable`), when nothing tells that it can again


class PrioritySubscription:
    """What `PriorityPubSub.subscribe` gives: one subscriber of a topic or pattern, until `close`.

    Messages are taken one at a time by each worker, when it is free to process it: so the one with the highest priority
    goes first, and subscribers that share a topic get as much as they can do.
    """

    def __init__(
        self,
        broker: PriorityBroker,
        topic: str,
        callback: Callback,
        *,
        auto_acknowledge: bool,
        workers: int,
        consumer: str,
    ) -> None:
        self.topic = topic
        self._broker = broker
        self._callback = callback
        self._auto_acknowledge = auto_acknowledge
        with broker.routing.lock:
            queues = broker.routing.subscribe(topic, broker.settings)
            self.sources = Sources(broker, queues, consumer)
            broker.routing.attend(self, self.sources.leave)
        self._threads = [
            threading.Thread(target=self._work, name=f"heliograph-{topic}-{number}", daemon=True)
            for number in range(1, workers + 1)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether it gets messages no more."""
        return self.sources.closed

    @property
    def is_mine(self) -> bool:
        """Whether this is called from one of its own workers, so from its callback."""
        return threading.current_thread() in self._threads

    def close(self) -> None:
        """Take no more messages, and wait for the callbacks that run. Called from its own callback it does not wait.

        The topic's messages are kept for its other subscribers, and for those to come. Idempotent.
        """
        self.sources.close()
        self._broker.routing.absent(self)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> PrioritySubscription:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        failing = False
        while not self.sources.closed:
            try:
                taken = self.sources.take()
                if taken is not None:
                    self._process(*taken)
                failing = False
            except NotFound:
                _log.info("the queue of %s was deleted: its subscriber ends", self.topic)
                self.sources.close()
            except HeliographError as error:
                if not failing:
                    _log.warning("no messages of %s for now: %s", self.topic, error)
                failing = True
                self.sources.pause(_RETRY_SECONDS)
            else:
                if taken is None:
                    self.sources.wait()

    def _process(self, queue: Queue, reply: Reply[list[Delivery]]) -> None:
        """Call the callback when the message's publication and lease are durable."""
        for delivery in reply.result():
            message = self._broker.received(queue, delivery)
            if message is None:
                continue
            if self.sources.closed:
                self._broker.backing.release(queue.resource, [delivery.ack_id])
            else:
                self._broker.leases.hold(message, extend=True)
                self._call(message)

    def _call(self, message: PriorityMessage) -> None:
        """An exception, whatever it is, is a failure of this message alone; the worker goes on."""
        try:
            self._callback(message)
        except BaseException as error:
            _log.warning(
                "message %s of %s failed (retry %d): %r",
                message.id,
                message.topic,
                message.retries,
                error,
                exc_info=error,
            )
            self._settle(message, "retry")
        else:
            if self._auto_acknowledge:
                self._settle(message, "acknowledge")
            else:
                self._broker.leases.returned(message)

    def _settle(self, message: PriorityMessage, how: str) -> None:
        """Unless the callback did. Nobody waits until it is durable: what a crash undoes is delivered again."""
        try:
            reply = self._broker.settle_soon(message, how)
            if reply is not None and reply.provisional:
                _log.warning("message %s of %s took too long: it was handed out once more", message.id, message.topic)
        except HeliographError as error:
            _log.warning(
                "message %s of %s comes again, for it could not be settled: %s", message.id, message.topic, error
            )
